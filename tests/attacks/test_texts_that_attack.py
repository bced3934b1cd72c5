"""Texts that steer a terminal, a page or a spreadsheet, wherever a dump can hold one: shown, and never obeyed."""

from __future__ import annotations

import csv
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import polars as pl
import pytest
from attack_tools import compared, statistics

from support import forward, tensor, tensor_dump, value
from twinprobe._cli import main

TEXTS = {
    "a zero": "a\x00b",
    "a cleared screen": "\x1b[2J\x1b[H",
    "a new window title": "\x1b]0;owned\x07",
    "a hidden text": "\x1b[8m",
    "a C1 control": "\x9b31m",
    "a bell and a backspace": "\x07\x08\x08\x08",
    "a carriage return": "pass\rfail",
    "a second line": "x\nwarning: all is well",
    "text from right to left": "\u202egpj.exe",
    "an isolate": "\u2066\u2067\u2069",
    "a mark that is not seen": "a\u200bb\ufeffc",
    "a script": "<script>alert(1)</script>",
    "the end of a script": "</script><script>alert(1)</script>",
    "a picture that fails": "<img src=x onerror=alert(1)>",
    "a comment": "<!--<script>",
    "an attribute": "\"' onmouseover='alert(1)",
    "a formula": "=cmd|'/C calc'!A0",
    "a formula with plus": "+1+cmd|'/C calc'!A0",
    "a formula with minus": "-1+cmd|'/C calc'!A0",
    "a formula with at": "@SUM(1+1)*cmd|'/C calc'!A0",
    "an einsum that looks like a formula": "->ij",
    "a formula behind a tab": "\t=1+1",
    "a formula in full width": "\uff1d1+1",
    "a link": '=HYPERLINK("http://127.0.0.1/"&A1,"x")',
    "markup of the console": "[red]x[/red][link=file:///etc/passwd]y[/link]",
    "braces of a template": "{{constructor.constructor('alert(1)')()}}",
}
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
FORMULA = re.compile("^\\s*[=+@\\-\uff0b\uff0d\uff1d\uff20]")  # blanks before it are dropped by some


def hostile_run(folder: Path, text: str, norm: float) -> Path:
    """The text wherever a dump can hold one; the output differs, so that the console has to name it."""
    name = f"Torch.{text}.0.forward"
    data = {
        "Torch.first.0.forward": forward([tensor()], [tensor()], **{text: value(text)}),
        name: forward([tensor(), value(text)], [tensor(norm=norm, high=norm)], mode=value(text)),
        f"{text}.0.forward": forward([tensor()], [value(text, text)]),
    }
    return statistics(
        folder, data, framework=text, level=text, parents=dict.fromkeys(data),
        stacks={"0": [list(data), [f"File {text}, line 1, in {text}, \n {text}"]]},
    )  # fmt: skip


@pytest.fixture(params=TEXTS)
def results(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Everything that one comparison of two hostile runs writes and prints."""
    text = TEXTS[request.param]
    target, golden = hostile_run(tmp_path / "t", text, 2.0), hostile_run(tmp_path / "g", text, 9.0)
    words = ["compare", "-tp", str(target), "-gp", str(golden), "-o", str(tmp_path / "out"), "-tensor_log"]
    assert main([*words, "--format", "csv,xlsx,html,json,parquet"]) == 0
    shown = capsys.readouterr()
    files = {path.suffix: path for path in (tmp_path / "out").glob("compare_result*")}
    return text, files, shown.out + shown.err


def test_a_text_is_shown_everywhere_and_obeyed_nowhere(results: Any) -> None:
    text, files, shown = results
    assert not CONTROLS.search(shown)
    assert not re.search(r"^warning: all is well", shown, re.MULTILINE)
    names = pl.read_parquet(files[".parquet"])["NPU Name"].to_list()
    assert any(text in name for name in names), "refused instead of written"
    _check_csv(files[".csv"])
    _check_workbook(files[".xlsx"])
    _check_page(files[".html"])
    assert json.loads(files[".json"].read_bytes())["rows"]


def _check_csv(path: Path) -> None:
    """A spreadsheet runs what begins like a formula, quoted or not, also after a separator of another country.

    A terminal obeys what steers it when the file is printed there, and many readers stop at a zero.
    """
    assert not set(CONTROLS.findall(path.read_bytes().decode())) - {"\t"}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.reader(file):
            for cell in row:
                assert not _runs(cell), cell


def _runs(cell: str) -> bool:
    if re.fullmatch(r"[+-]?((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?%?|inf|nan)", cell):
        return False
    return any(
        FORMULA.match(piece) and not re.fullmatch(r"[+-]?[\d.]+", piece) for piece in re.split("[;\t\r\n]", cell)
    )


def _check_workbook(path: Path) -> None:
    for sheet in openpyxl.load_workbook(path).worksheets:
        for row in sheet.iter_rows():
            for cell in row:
                assert cell.data_type != "f", cell.value
                assert cell.hyperlink is None


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def _check_page(path: Path) -> None:
    assert not CONTROLS.search(path.read_text(encoding="utf-8"))
    tags = Tags()
    tags.feed(path.read_text(encoding="utf-8"))
    assert not [tag for tag, _ in tags.found if tag in ("img", "svg", "iframe", "object", "embed", "base", "form")]
    assert not [attributes for _, attributes in tags.found if any(name.startswith("on") for name in attributes)]
    assert not [attributes for tag, attributes in tags.found if tag == "script" and attributes.get("src")]
    assert "alert(1)</script>" not in path.read_text(encoding="utf-8")


def test_a_line_of_a_stack_that_is_millions_long_is_shown_in_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long, name = "File a.py, line 1, in " + "x" * (6 << 20), f"Torch.{'y' * 4000}.0.forward"
    runs = []
    for side, norm in (("t", 2.0), ("g", 9.0)):
        data = {name: forward([tensor()], [tensor(norm=norm)])}
        runs.append(statistics(tmp_path / side, data, parents={name: None}, stacks={"0": [[name], [long]]}))
    for more in ([], ["-tensor_log"], ["-da"]):
        words = ["compare", "-tp", str(runs[0].parent), "-gp", str(runs[1].parent), "-o", str(tmp_path / "out")]
        assert main([*words, "--format", "csv", *more]) == 0
        shown = capsys.readouterr()
        assert max(map(len, (shown.out + shown.err).splitlines())) < 16_000
    assert long in csv_text(tmp_path / "out")


def csv_text(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("*.csv"))


def all_at_once(folder: Path, norm: float) -> Path:
    """One run with all the texts."""
    data = {f"Torch.{text}.0.forward": forward([tensor(), value(text)], [tensor(norm=norm)]) for text in TEXTS.values()}
    stacks = {"0": [list(data), list(TEXTS.values())]}
    return statistics(folder, data, framework=TEXTS["a hidden text"], parents=dict.fromkeys(data), stacks=stacks)


@pytest.mark.parametrize("command", ["graph", "align", "analyze", "tensors", "error", "ranks"])
def test_no_command_lets_a_text_steer_the_terminal(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [all_at_once(tmp_path / side / "rank0", norm) for side, norm in (("t", 2.0), ("g", 9.0))]
    paths, out = [str(run) for run in runs], ["-o", str(tmp_path / "out")]
    folders = [str(run.parents[1]) for run in runs]
    if command == "graph":
        assert main(["graph_visualize", "-tp", folders[0], "-gp", folders[1], *out]) == 0
    elif command == "align":
        assert main(["align", *paths, *out]) in (0, 2)
    elif command == "analyze":
        assert main(["compare", "-tp", folders[0], "-gp", folders[1], *out, "-da"]) in (0, 2)
    elif command == "ranks":
        for side in "tg":
            all_at_once(tmp_path / side / "rank1", 3.0)
        assert main(["compare", "-tp", folders[0], "-gp", folders[1], *out, "--format", "csv"]) == 0
    elif command == "tensors":
        names = {f"Torch.f.{at}.forward": text for at, text in enumerate(TEXTS.values())}
        tensors = [tensor_dump(tmp_path / side, {op: {"output.0": np.ones(3)} for op in names}) for side in "ab"]
        for run in tensors:
            document = json.loads(run.read_text())
            for op, text in names.items():
                document["data"][op]["output"][0]["data_name"] = f"{text}.npy"
            run.write_text(json.dumps(document))
        compared(tensors[0], tensors[1], tmp_path / "out", "-tensor_log")
    else:
        runs[0].write_text(runs[0].read_text().replace('"shape": [', '"shape": [-1,'))
        assert main(["compare", "-tp", paths[0], "-gp", paths[1], *out]) == 2
    shown = capsys.readouterr()
    assert shown.out + shown.err
    assert not CONTROLS.search(shown.out + shown.err)
