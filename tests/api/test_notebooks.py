"""Results in notebooks: small html that cannot be abused, and the example notebook, run cell by cell."""

from __future__ import annotations

import ast
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

import twinprobe

PROJECT = Path(__file__).resolve().parents[2]
DEMO = PROJECT / "examples" / "demo"


class Tags(HTMLParser):
    """Counts what is open and remembers what was there."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check(html: str) -> None:
    tags = Tags()
    tags.feed(html)
    assert tags.open == []
    assert tags.seen <= {"div", "b", "table", "tr", "td", "th"}  # no script, no link, no picture
    assert "http" not in html
    assert len(html) < 20_000


def test_every_result_has_a_small_html_form(tmp_path: Path) -> None:
    run = twinprobe.open(DEMO / "target")
    result = twinprobe.compare(DEMO / "target", DEMO / "golden")
    found = twinprobe.find(DEMO / "target", DEMO / "golden", output_path=tmp_path)
    for one in (run, result, result.first, found, twinprobe.align(run, DEMO / "golden")):
        check(one._repr_html_())
    assert "line 98" in result.first._repr_html_()
    assert "Module.layers.1.post_norm.Norm.forward.0" in result._repr_html_()
    assert "the runs agree" in twinprobe.compare(run, run)._repr_html_()


def test_names_from_a_dump_cannot_become_markup() -> None:
    name = "<script>alert(1)</script>\u202e"
    result = twinprobe.compare({name: np.ones(2)}, {name: np.zeros(2)})
    check(result._repr_html_())
    assert "&lt;script&gt;" in result._repr_html_()
    assert "\u202e" not in result._repr_html_()


def test_the_example_notebook_runs() -> None:
    cells = json.loads((PROJECT / "examples" / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {}
    shown = []
    for cell in (cell for cell in cells if cell["cell_type"] == "code"):
        body = ast.parse("".join(cell["source"]).replace("Path()", f"Path({str(PROJECT / 'examples')!r})"))
        last = body.body[-1]
        assert isinstance(last, ast.Expr)  # every cell shows something
        exec(compile(ast.Module(body.body[:-1], []), "cell", "exec"), names)
        shown.append(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
    assert [type(one).__name__ for one in shown] == ["Run", "Comparison", "DataFrame", "dict", "Aligned"]
    assert all(hasattr(one, "_repr_html_") for one in shown if not isinstance(one, dict))
    assert shown[3]["agrees"] == 0.0
    assert shown[3]["error"] > 0
