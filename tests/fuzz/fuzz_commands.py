"""What follows the reading: whole commands and the page's questions, run on a file that was tampered with."""

from __future__ import annotations

import contextlib
import io
import shutil
from pathlib import Path
from typing import Any

import fuzz_seeds as seeds

QUESTIONS = (
    "files", "open", "first", "children", "children?parent=DefaultModel", "counts", "strip", "heat", "list",
    "list?kind=unmatched", "search?text=a", "edges?parent=DefaultModel", "step", "node?order=0", "node?order=1",
    "unfold?order=1", "restore?target=0,1", "strip?metric=max", "children?side=golden&parent=DefaultModel",
    "node?side=golden&order=0", "matches",
)  # fmt: skip


def ask_page(path: Path) -> None:
    """Ask all that the page can ask; 200, 202 and 422 are answers, an exception is not."""
    from werkzeug.test import Client

    from twinprobe._view.app import ViewApp

    client = Client(ViewApp(path.parent))
    for question in QUESTIONS:
        reply = client.get(f"/api/{question}")
        assert reply.status_code in (200, 202, 422), (question, reply.status_code)
    _forget_index(path)


def _forget_index(path: Path) -> None:
    from twinprobe._graph.read.json import index_of

    if path.suffix == ".vis":
        index_of(path).unlink(missing_ok=True)


def read_result(path: Path) -> None:
    """Read a result as merge_result does."""
    from twinprobe._compare.merge.config import METRICS, RankFiles
    from twinprobe._compare.merge.read import ReadJob, kind_of, read_rank

    spill = path.parent / "spill"
    spill.mkdir(exist_ok=True)
    kind = kind_of(path)
    read_rank(ReadJob(RankFiles(0, (path,)), ("Torch", "Module"), "^(?:Torch|Module)", METRICS[kind], spill))


def compare(path: Path) -> None:
    """Compare the file with a sound one and write a table."""
    golden = path.parent / "golden"
    if not golden.exists():
        golden.mkdir()
        (golden / "dump.json").write_bytes(seeds.dumps()[0])
    _command("compare", "-tp", path, "-gp", golden / "dump.json", "-o", path.parent / "out", "--format", "csv,json")
    shutil.rmtree(path.parent / "out", ignore_errors=True)


def compare_mapped(path: Path) -> None:
    """Compare two sound runs by a mapping file that was tampered with."""
    run = _whole_run(path.parent / "run")
    _command("compare", "-tp", run, "-gp", run, "-o", path.parent / "out", "--format", "csv", "-lm", path)
    shutil.rmtree(path.parent / "out", ignore_errors=True)


def draw(path: Path) -> None:
    """Draw a run whose hierarchy was tampered with."""
    run = _whole_run(path.parent / "run").parent
    shutil.copyfile(path, run / "construct.json")
    _command("graph_visualize", "-tp", run, "-gp", run, "-o", path.parent / "out")
    shutil.rmtree(path.parent / "out", ignore_errors=True)


def _whole_run(folder: Path) -> Path:
    if not folder.exists():
        folder.mkdir()
        (folder / "dump.json").write_bytes(seeds.dumps()[0])
        for name in ("construct.json", "stack.json"):
            shutil.copyfile(seeds.DATA / "align" / "pt" / name, folder / name)
    return folder / "dump.json"


def _command(*words: Any) -> None:
    """Run a command; it ends with 0 or 2, and nothing that it prints steers a terminal."""
    from twinprobe._cli import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    assert code in (0, 2), code
    shown = out.getvalue() + err.getvalue()
    assert "\x1b" not in shown, "an escape sequence reaches the terminal"
