"""A rank whose recorder is still at work is said to be, and costs only itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from many_ranks import compare, ranks_at

from twinprobe._cli import main
from twinprobe._runs.run import unchanged
from twinprobe.errors import BadInput

_WRITER = """
import sys
with open(sys.argv[1], "ab", buffering=0) as file:
    file.write(b" ")
    print("begun", flush=True)
    while True:
        file.write(b" ")
"""


@contextmanager
def being_written(path: Path) -> Iterator[None]:
    """Another process appends blanks to a file, which change nothing in a JSON document but its size and time."""
    with subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        try:
            yield
        finally:
            writer.kill()


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    for side in ("t", "g"):
        for folder in ranks_at(tmp_path / side, 2, calls=300).iterdir():
            names = json.loads((folder / "dump.json").read_text())["data"]
            (folder / "construct.json").write_text(json.dumps(dict.fromkeys(names)))
            (folder / "stack.json").write_text("{}")
    return tmp_path


def test_a_file_that_changes_while_it_is_read(dumps: Path) -> None:
    path = dumps / "t/rank0/dump.json"
    with pytest.raises(BadInput, match="still being written") as told, unchanged(path), path.open("a") as file:
        file.write(" ")
    assert str(path) in str(told.value)


def test_compare_leaves_out_a_rank_that_is_still_written(dumps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "-tp", str(dumps / "t"), "-gp", str(dumps / "g"), "-o", str(dumps / "out"), "--csv"]
    with being_written(dumps / "t/rank1/dump.json"):
        assert main([*words, "--engine", "inline"]) == 2  # a rank that was asked for is missing
    said = capsys.readouterr().err
    assert "rank1/dump.json: changed while it was read: it is still being written" in said
    assert "--resume adds what is missing" in said
    assert [path.name[:20] for path in (dumps / "out").glob("*.csv")] == ["compare_result_rank0"]
    assert compare(dumps / "t", dumps / "g", dumps / "out", "--csv", "--engine", "inline", "--resume") == 0
    assert len(list((dumps / "out").glob("*.csv"))) == 2


def test_graph_leaves_out_a_rank_that_is_still_written(dumps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["graph_visualize", "-tp", str(dumps / "t"), "-gp", str(dumps / "g"), "-o", str(dumps / "out")]
    words += ["--file_type", "vis", "--engine", "inline"]
    with being_written(dumps / "g/rank0/dump.json"):
        assert main(words) == 2
    assert "g/rank0/dump.json: changed while it was read" in capsys.readouterr().err
    assert [path.name[:13] for path in (dumps / "out").glob("*.vis")] == ["compare_rank1"]
    assert main([*words, "--resume"]) == 0
    assert len(list((dumps / "out").glob("*.vis"))) == 2
