"""Do our graph files open in the real viewer?

    python bench/compat [--version 8.3.2] [--environment DIR] [--pictures DIR] [--reference ../shared/reference]

Installs tb-graph-ascend from the package index into an environment of its own, draws single graphs and comparisons of
the reference dumps in both forms, starts TensorBoard on them, asks the endpoints that the page asks, opens nodes, and
shows the page in Chromium. Exit code 1 if anything is missing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from viewer_environment import install_viewer
from viewer_page import open_in_browser
from viewer_server import ViewerServer

from twinprobe._cli import main as twinprobe

TOP = "Module.language_model.LM.forward.0"
INNER = "Module.language_model.embedding.Embedding.forward.0"
DUMPS = {
    "single": ("base_statistics", None),
    "statistics": ("pert_statistics", "base_statistics"),
    "md5": ("pert_md5", "base_md5"),
    "ranks": ("dist_pert", "dist_base"),
}


def main() -> int:
    """Draw, open, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", default="8.3.2")
    parser.add_argument("--environment", type=Path, default=Path(tempfile.gettempdir()) / "twinprobe-viewer")
    parser.add_argument("--pictures", type=Path, help="keep the page's pictures here")
    parser.add_argument("--reference", type=Path, default=Path(__file__).resolve().parents[3] / "shared" / "reference")
    arguments = parser.parse_args()
    command = install_viewer(arguments.environment, arguments.version)
    pictures = arguments.pictures or Path(tempfile.gettempdir())
    pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        failures = 0
        for form in ("db", "vis"):
            logdir = Path(folder, form)
            draw_all(arguments.reference / "graph" / "dumps", logdir, form)
            with ViewerServer(command, logdir) as server:
                failures += check_form(server, form, pictures / f"viewer_{arguments.version}_{form}.png")
    print("all files open" if not failures else f"{failures} checks failed")
    return int(failures > 0)


def check_form(server: ViewerServer, form: str, picture: Path) -> int:
    """Check all files of one form; return how many checks failed."""
    runs = server.runs()
    failures = report(f"{form}: files listed", expect, set(runs), set(DUMPS))
    for run, info in sorted(runs.items()):
        failures += report(f"{form}: {run}", check, server, run, info)
    return failures + report(f"{form}: page in Chromium", open_in_browser, server.page, TOP, "Embedding", picture)


def draw_all(dumps: Path, logdir: Path, form: str) -> None:
    """Draw every pair into a folder of its own."""
    for name, (target, golden) in DUMPS.items():
        words = [
            "graph_visualize",
            "-tp",
            dumps / target / "step0",
            "-o",
            logdir / name,
            "--file_type",
            form,
            "--quiet",
        ]
        words += ["-gp", dumps / golden / "step0"] if golden else []
        if twinprobe([str(word) for word in words]):
            sys.exit(f"drawing {name} failed")


def check(server: ViewerServer, run: str, info: dict[str, object]) -> None:
    """Ask everything that the page asks about one file."""
    meta = server.load(run, info)
    compared = DUMPS[run][1] is not None
    side = "NPU" if compared else "Single"
    config = server.ask("loadGraphConfigInfo", meta)
    expect(config["isSingleGraph"], not compared)
    if compared:
        expect("#C7C7C7" in str(config["colors"]), True)
    top = server.ask("changeNodeExpandState", meta, nodeInfo={"nodeName": "root", "nodeType": side})
    expect(TOP in top, True)
    opened = server.ask("changeNodeExpandState", meta, nodeInfo={"nodeName": TOP, "nodeType": side})
    expect(INNER in opened, True)
    if compared:
        expect(opened[INNER]["matchedNodeLink"][-1].removeprefix("B___"), INNER)
    server.ask("loadGraphAllNodeList", meta)
    info = server.ask("getNodeInfo", meta, nodeInfo={"nodeName": INNER, "nodeType": side})
    expect(f"{INNER}.output.0" in str(info["npu"]["output_data"]), True)


def report(what: str, function: Callable[..., None], *arguments: object) -> int:
    """Run one check and print how it went."""
    try:
        function(*arguments)
    except Exception as error:
        print(f"FAILED {what}: {type(error).__name__}: {str(error)[:500]}")
        return 1
    print(f"ok     {what}")
    return 0


def expect(found: object, wanted: object) -> None:
    """Raise unless both are equal."""
    if found != wanted:
        raise AssertionError(f"{found!r} instead of {wanted!r}")


if __name__ == "__main__":
    sys.exit(main())
