"""Files of a dump folder: readable at every moment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Any

import pytest

from twinprobe._record.writer import DumpFolder

HEADER = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None}


def save_text(payload: Any, stream: IO[bytes]) -> None:
    stream.write(payload.encode())


def test_the_index_grows_line_by_line_and_is_closed_into_one_document(tmp_path: Path) -> None:
    folder = DumpFolder(tmp_path / "step0" / "rank0", HEADER)
    folder.open()
    folder.add("a.0.forward", '{"output": []}')
    folder.add('odd "name"\n', '{"output": [NaN]}')
    folder.flush()
    lines = folder.part.read_text(encoding="utf-8").splitlines()
    assert json.loads(lines[0]) == HEADER
    assert [list(json.loads(line)) for line in lines[1:]] == [["a.0.forward"], ['odd "name"\n']]
    folder.close({"construct": {"a.0.forward": None}, "stack": {}})
    document = json.loads((folder.path / "dump.json").read_text(encoding="utf-8"))
    assert list(document) == ["task", "level", "framework", "dump_data_dir", "data"]
    assert list(document["data"]) == ["a.0.forward", 'odd "name"\n']
    assert json.loads((folder.path / "construct.json").read_text()) == {"a.0.forward": None}
    assert sorted(path.name for path in folder.path.iterdir()) == ["construct.json", "dump.json", "stack.json"]


def test_a_closed_index_can_be_continued(tmp_path: Path) -> None:
    folder = DumpFolder(tmp_path, HEADER)
    folder.add("a", "{}")
    folder.close({})
    folder.reopen()
    folder.add("b", '{"x": "{\\n"}')
    folder.close({})
    folder.reopen()
    folder.close({})
    assert json.loads((tmp_path / "dump.json").read_text())["data"] == {"a": {}, "b": {"x": "{\n"}}


def test_an_empty_dump_is_a_document(tmp_path: Path) -> None:
    folder = DumpFolder(tmp_path, HEADER)
    folder.close({})
    assert json.loads((tmp_path / "dump.json").read_text())["data"] == {}


def test_a_failed_tensor_leaves_no_file(tmp_path: Path) -> None:
    folder = DumpFolder(tmp_path, HEADER)

    def fails(payload: Any, stream: IO[bytes]) -> None:
        stream.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        folder.tensor("x", ".pt", "text", fails)
    assert list((tmp_path / "dump_tensor_data").iterdir()) == []


def test_file_names_are_safe_short_and_distinct(tmp_path: Path) -> None:
    folder = DumpFolder(tmp_path, HEADER)
    names = [folder.tensor(name, ".pt", "t", save_text) for name in ("a/b", "a\\b", "a_b", "k" * 400, "k" * 401)]
    assert len(set(names)) == 5
    assert all("/" not in name and "\\" not in name and len(name) < 255 for name in names)
    same = folder.same_tensor("again", ".pt", names[0])
    assert (tmp_path / "dump_tensor_data" / same).read_text() == "t"
