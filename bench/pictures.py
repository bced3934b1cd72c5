"""Make the pictures of the pages in docs/images again: python bench pictures [NAME ...]

The runs are those of ./demo where that is enough; the browser is the system's Chromium. Run it after changing the front
end or of the sentences, and look at what comes out.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]
IMAGES = PROJECT / "docs/images"
DEMO = PROJECT / "examples/demo"


def command(folder: Path, *words: str) -> None:
    """A command, in a folder whose relative paths the page shows."""
    subprocess.run([sys.executable, "-m", "twinprobe", *words, "--quiet"], cwd=folder, check=True)


def two_runs(folder: Path) -> None:
    """The two runs of ./demo, under the names of the README."""
    shutil.copytree(DEMO / "target", folder / "run_b")
    shutil.copytree(DEMO / "golden", folder / "run_a")


def hide_language(page: Any) -> None:
    """Leave out the button to Chinese, for which a machine without such fonts draws boxes."""
    page.evaluate(
        "[...document.querySelectorAll('button')].filter((b) => b.textContent === '中文').map((b) => b.remove())"
    )


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of ``twinprobe view`` on a folder."""
    from twinprobe._view.app import make

    server = make(folder, port=0)
    threading.Thread(target=server.run, daemon=True).start()
    yield server.url


def report(browser: Any, folder: Path) -> None:
    """The html report of a comparison."""
    two_runs(folder)
    files = [f"{run}/step0/rank0/dump.json" for run in ("run_b", "run_a")]
    command(folder, "compare", "-tp", files[0], "-gp", files[1], "-o", "out", "--format", "html")
    page = browser.new_page(viewport={"width": 1280, "height": 860})
    page.goto(next((folder / "out").glob("compare_result*.html")).as_uri())
    hide_language(page)
    page.screenshot(path=IMAGES / "report.png")


def view(browser: Any, folder: Path) -> None:
    """Both models in the viewer: as it opens, and dark, coloured by error, with the growth of the error."""
    two_runs(folder)
    files = [f"{run}/step0/rank0" for run in ("run_b", "run_a")]
    command(folder, "graph_visualize", "-tp", files[0], "-gp", files[1], "-o", "out")
    with served(folder / "out") as url:
        for name, address in (("view", ""), ("view_dark", "#color=error&above=0.05&growth=1&theme=dark")):
            page = browser.new_page(viewport={"width": 1600, "height": 950})
            page.goto(url + address)
            page.wait_for_selector(".details .table")
            page.wait_for_selector(".tabs .count")
            page.wait_for_timeout(1000)
            hide_language(page)
            page.screenshot(path=IMAGES / f"{name}.png")


def inside(browser: Any, folder: Path) -> None:
    """Inside the tensor: needs recordings with tensors."""
    sys.path.insert(0, str(PROJECT / "examples"))
    import torch
    from tiny_transformer import TinyTransformer

    import twinprobe.torch

    for run, faulty in (("run_a", False), ("run_b", True)):
        torch.manual_seed(0)
        model = TinyTransformer(faulty=faulty)
        tokens = torch.randint(0, 48, (3, 20))
        with twinprobe.torch.record(model, folder / run, level="mix", task="tensor"):
            model(tokens).sum().backward()
    runs = [str(next((folder / run).rglob("dump.json")).parent) for run in ("run_b", "run_a")]
    command(folder, "graph_visualize", "-tp", runs[0], "-gp", runs[1], "-o", "out")
    with served(folder / "out") as url:
        page = browser.new_page(viewport={"width": 1300, "height": 1500})
        page.goto(url + "#tall=1100")
        figure = page.locator(".inside-figure").first
        figure.wait_for()
        page.wait_for_timeout(1500)
        figure.screenshot(path=IMAGES / "inside.png")


def ranks(browser: Any, folder: Path) -> None:
    """The map of ranks and steps: one rank goes wrong at step 1, all of them at step 2."""
    for step in range(3):
        for rank in range(4):
            wrong = step == 2 or (step, rank) == (1, 3)
            place = f"step{step}/rank{rank}"
            shutil.copytree(DEMO / "golden/step0/rank0", folder / "run_a" / place)
            shutil.copytree(DEMO / ("target" if wrong else "golden") / "step0/rank0", folder / "run_b" / place)
    command(folder, "compare", "-tp", "run_b", "-gp", "run_a", "-o", "out", "--format", "html")
    page = browser.new_page(viewport={"width": 1280, "height": 520})
    page.goto(next((folder / "out").glob("compare_summary*.html")).as_uri())
    page.screenshot(path=IMAGES / "map.png")


def align(browser: Any, folder: Path) -> None:
    """The page of ``twinprobe align`` on a Megatron-style Llama that lacks a layer, and Hugging Face's."""
    sys.path.insert(0, str(PROJECT / "tests"))
    from models.catalogue import PAIRS, SHORTENED, record_pair

    pair = next(one for one in PAIRS if "suite, fused" in one.name)
    record_pair(pair, SHORTENED, folder)
    for run, made in (("run_b", "target"), ("run_a", "golden")):
        (folder / made / "step0").rename(folder / run)
    dumps = [str(next((folder / run).rglob("dump.json")).relative_to(folder)) for run in ("run_b", "run_a")]
    command(folder, "align", *dumps, "-o", "out")
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.goto((folder / "out/alignment.html").as_uri())
    page.get_by_text("query_key_value").first.hover()
    page.wait_for_timeout(300)
    page.screenshot(path=IMAGES / "align.png")


PICTURES: dict[str, Callable[[Any, Path], None]] = {
    "report": report, "view": view, "inside": inside, "map": ranks, "align": align,
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    """Make the pictures named, or all."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(PICTURES)} (default: all)")
    args = parser.parse_args(argv)
    with sync_playwright() as tool:
        path = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        browser = tool.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for name in args.names or PICTURES:
            with tempfile.TemporaryDirectory() as folder:
                PICTURES[name](browser, Path(folder))
        browser.close()


if __name__ == "__main__":
    main()
