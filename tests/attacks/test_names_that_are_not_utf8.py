"""Folders and files whose names are bytes that are no UTF-8: read, written, listed and shown like any other."""

from __future__ import annotations

import json
import os
import shutil
import urllib.request
from pathlib import Path
from threading import Thread
from urllib.parse import quote

import polars as pl
import pytest

from support import forward, tensor, write_dump
from twinprobe._cli import main
from twinprobe._report.tables import find_dataset
from twinprobe._view.app import make

ODD = os.fsdecode(b"caf\xe9 \xff")
SHOWN = r"caf\udce9 \udcff"  # how it is spelled wherever it has to be text
CALL = "Torch.a.0.forward"
FORMATS = ("csv", "xlsx", "html", "json", "parquet")


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A folder of an odd name, with two runs of two ranks that differ."""
    folder = tmp_path / ODD
    for side, norm in (("target", 1.0), ("golden", 9.0)):
        for rank in range(2):
            data = {CALL: forward([tensor()], [tensor(norm=norm, high=norm)])}
            write_dump(folder / side / "step0" / f"rank{rank}", data, parents=dict.fromkeys(data), stacks={})
    return folder


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """What a command that must succeed prints."""
    code = main([str(word) for word in words])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    return shown.out


def test_a_pair_is_compared_into_every_format(odd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = ["-tp", odd / "target/step0/rank0/dump.json", "-gp", odd / "golden/step0/rank0/dump.json"]
    for form in FORMATS:
        assert SHOWN in run(capsys, "compare", *pair, "-o", odd / "out", "--format", form)
        assert [path.stat().st_size > 0 for path in (odd / "out").glob(f"compare*.{form}")] == [True]
    assert SHOWN in json.dumps(json.loads(run(capsys, "compare", *pair, "-o", odd / "more", "--json"))).replace(
        "\\\\", "\\"
    )


def test_ranks_are_compared_and_merged(odd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("csv", "xlsx", "parquet", "dataset"):
        sides = ["-tp", odd / "target/step0", "-gp", odd / "golden/step0"]
        run(capsys, "compare", *sides, "-o", odd / form, "--format", form)
        (odd / "merge.yaml").write_text("api: [Torch.a]\n")
        for more in ([], ["--resume"]):
            words = ["-i", odd / form, "-o", odd / "merged" / form, "-config", odd / "merge.yaml", *more]
            assert "2 ranks" in run(capsys, "merge_result", *words)
    dataset = find_dataset(odd / "dataset")
    assert dataset
    with (dataset / "step=0/rank=1/part.parquet").open("rb") as part:
        assert pl.read_parquet(part).height


@pytest.mark.parametrize("form", ["db", "vis"])
def test_graphs_are_drawn_and_exported(odd: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    words = ["-tp", odd / "target", "-gp", odd / "golden", "-o", odd / "graphs", "--file_type", form]
    assert SHOWN in run(capsys, "graph_visualize", *words)
    assert SHOWN in run(capsys, "view", odd / "graphs", "--export", odd / "page.html")
    for file in (odd / "graphs").glob(f"*.{form}"):
        named = file.rename(file.with_name(ODD + "".join(file.suffixes)))
        assert SHOWN in run(capsys, "view", named, "--export", odd / "page.html")
    assert (odd / "page.html").stat().st_size > 10_000


def test_the_page_lists_and_opens_them_beside_the_others(odd: Path, reference: Path) -> None:
    source = next((reference / "graph" / "results" / "cmp_stat").glob("*.vis.db"))
    names = ("plain.vis.db", f"{ODD}.vis.db", f"{ODD}/inside.vis.db")
    for name in names:
        (odd / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(source, odd / name)
    server = make(odd, port=0)
    thread = Thread(target=server.run, daemon=True)
    thread.start()

    def ask(question: str) -> dict[str, object]:
        with urllib.request.urlopen(f"{server.url}api/{question}") as reply:
            return dict(json.load(reply))

    try:
        listed = ask("files")
        assert listed["place"] == SHOWN
        files = [file["id"] for file in listed["files"]]  # type: ignore[attr-defined]
        assert sorted(files) == sorted(name.replace(ODD, SHOWN) for name in names)
        for file in files:
            assert ask(f"open?file={quote(file, safe='')}")["file"] == file
    finally:
        server.wsgi.shutdown()
        thread.join()
