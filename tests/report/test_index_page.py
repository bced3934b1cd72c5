"""The index page of an output folder: whatever command wrote it, everything in it is one click away."""

from __future__ import annotations

import json
import re
import shutil
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest

import twinprobe
from support import forward, tensor, write_dump
from twinprobe._cli import main

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "demo"
PAIR = ["-tp", str(DEMO / "target"), "-gp", str(DEMO / "golden")]
WATCHED = str(ROOT / "tests" / "data" / "cross" / "watch_torch")


def links(folder: Path) -> dict[str, str]:
    """Where the index leads, and what it says of each."""
    page = (folder / "index.html").read_text()
    found = re.findall(r'<li><a href="([^"]+)"><bdi>.*?</bdi></a> <small>([^<]*)</small></li>', page)
    return {unquote(unescape(link)): unescape(said) for link, said in found}


def logprobs(tmp_path: Path) -> list[str]:
    row = {"input_ids": [3, 4, 5], "logprobs": [-0.1, -2.0, -0.5]}
    for side in "tg":
        (tmp_path / f"{side}.jsonl").write_text(json.dumps(row) + "\n")
    return [str(tmp_path / f"{side}.jsonl") for side in "tg"]


@pytest.mark.parametrize("command", [
    ["compare", *PAIR, "--format", "html,csv"],
    ["compare", WATCHED, WATCHED],
    ["graph_visualize", *PAIR],
    ["align", str(DEMO / "target"), str(DEMO / "golden")],
    ["llm", "logprobs"],
], ids=lambda command: " ".join(command[:2]) if command[0] == "llm" else f"{command[0]} {len(command)}")  # fmt: skip
def test_every_folder_that_a_command_writes_has_links_to_all_of_it(command: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    given = logprobs(tmp_path) if command[0] == "llm" else []
    assert main([*command, *given, "-o", str(out)]) == 0
    written = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert written > {"index.html"}
    assert set(links(out)) == written - {"index.html"}


def test_the_index_says_what_the_pages_say(tmp_path: Path) -> None:
    assert main(["compare", *PAIR, "--format", "html", "-o", str(tmp_path)]) == 0
    (said,) = links(tmp_path).values()
    assert re.search(r"\b\d+ errors?, \d+ warnings? · ", said)


@pytest.mark.parametrize(("places", "off", "said", "told"), [
    ([f"step0/rank{rank}" for rank in range(4)], {"step0/rank0": 2.04, "step0/rank1": 2.04, "step0/rank3": 2.04},
     "4 ranks: 3 with warnings", "4 ranks compared"),
    (["step0/rank0", "step1/rank0"], {"step1/rank0": 2.04}, "2 steps: 1 with warnings", "1 of 2 steps differ"),
    (["step0/rank0", "step0/rank1", "step1/rank0", "step1/rank1"], {"step1/rank0": 2.04, "step1/rank1": 9.0},
     "4 results (2 ranks, 2 steps): 1 with errors, 1 with warnings", "2 of 4 results (2 ranks at 2 steps) differ"),
])  # fmt: skip
def test_ranks_and_steps_are_counted_as_what_they_are_and_warnings_are_no_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], places: list[str], off: dict[str, float], said: str, told: str
) -> None:
    for place in places:
        for side, norm in (("t", off.get(place, 2.0)), ("g", 2.0)):
            write_dump(tmp_path / side / place, {"Torch.f.0.forward": forward([tensor()], [tensor(norm=norm)])})
    sides = ["-tp", str(tmp_path / "t"), "-gp", str(tmp_path / "g")]
    assert main(["compare", *sides, "-o", str(tmp_path / "out"), "--format", "html"]) == 0
    assert told in capsys.readouterr().out
    (page,) = (tmp_path / "out").glob("compare_summary_*.html")
    assert links(tmp_path / "out")[page.name].startswith(f"{said} · ")


def test_other_folders_are_linked_with_their_pages(tmp_path: Path) -> None:
    recording = tmp_path / "watch" / "target"
    recording.mkdir(parents=True)
    for name in (
        "rank10.csv",
        "rank9.csv",
        "watch/curves.html",
        "watch/target.log",
        "watch/target/dump.json",
        "find.json",
        ".hidden",
    ):
        (tmp_path / name).write_text("{}")
    shutil.copytree(recording, tmp_path / "step0" / "rank0")
    twinprobe.align(DEMO / "target", DEMO / "golden").save(tmp_path)
    found = set(links(tmp_path))
    assert {"find.json", "watch/", "watch/curves.html", "step0/rank0/", "alignment.html"} <= found
    assert not found & {".hidden", "watch/target.log", "watch/target/dump.json", "watch/target/"}
    assert all((tmp_path / name).exists() for name in found)
    assert [name for name in links(tmp_path) if name.endswith(".csv")] == ["rank9.csv", "rank10.csv"]


def test_a_table_alone_the_working_folder_and_a_page_of_yours_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare = ["compare", *PAIR, "--format"]
    assert main([*compare, "csv", "-o", str(tmp_path / "table")]) == 0
    assert len(list((tmp_path / "table").iterdir())) == 1
    monkeypatch.chdir(tmp_path)
    assert main([*compare, "html", "-o", "."]) == 0
    assert not Path("index.html").exists()
    Path("site").mkdir()
    Path("site/index.html").write_text("<title>mine</title>")
    assert main([*compare, "html", "-o", "site"]) == 0
    assert Path("site/index.html").read_text() == "<title>mine</title>"
