"""Two recorders or two commands on one folder do not mix their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fault_checks import FORMATS, check_recording, check_results, hidden, visible
from fault_tools import Victims, command_job

from support import forward, tensor, write_dump
from twinprobe._record.writer import DumpFolder, is_disk_error
from twinprobe._report.files import own_timestamp

HEADER = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None}


def test_two_recorders_that_believe_to_be_the_same_rank(victims: Victims, tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    jobs = [
        {"work": "record", "folder": str(folder), "task": "statistics", "value": value, "store": str(tmp_path / store)}
        for value, store in ((1, "a"), (2, "b"))
    ]
    results = victims.run(*jobs)
    assert check_recording(folder) == {0, 1, 2, 3}
    for index in folder.glob("step*/rank0/dump.json"):
        assert len(_values(json.loads(index.read_text(encoding="utf-8"))["data"])) == 1, "entries of two runs in a file"
    for result in results:
        said = result["said"]
        assert "trained to the end" in said or "holds an earlier dump" in said, said
    told = sum("another recorder" in result["said"] or "holds an earlier dump" in result["said"] for result in results)
    assert told >= 1


def _values(data: dict[str, Any]) -> set[float]:
    """The value that a run's model was fed with, by what the first layer took."""
    return {
        entry["input_args"][0]["Max"]
        for name, entry in data.items()
        if name.startswith("Module.0.Linear") and name.endswith("forward.0")
    }


def test_an_index_of_another_recorder_is_neither_appended_to_nor_replaced(tmp_path: Path) -> None:
    first, second = DumpFolder(tmp_path, HEADER), DumpFolder(tmp_path, HEADER)
    first.open()
    first.add("a", "{}")
    with pytest.raises(FileExistsError, match="another recorder is writing to this folder") as caught:
        second.open()
    assert is_disk_error(caught.value)
    first.close({})
    with pytest.raises(FileExistsError, match="another recorder has written to this folder"):
        second.open()
    assert json.loads((tmp_path / "dump.json").read_text())["data"] == {"a": {}}


def _two_dumps(folder: Path) -> tuple[Path, Path]:
    data = {f"Torch.mul.{i}.forward": forward([tensor()], [tensor()]) for i in range(30)}
    return write_dump(folder / "a", data), write_dump(folder / "b", data)


def test_two_comparisons_of_the_same_second(victims: Victims, tmp_path: Path) -> None:
    target, golden = _two_dumps(tmp_path)
    out = tmp_path / "out"
    words = ("compare", "-tp", target, "-gp", golden, "-o", out, "--quiet", "--format", ",".join(FORMATS))
    results = victims.run(*[command_job(out, *words) for _ in range(4)])
    assert [result["told"] for result in results] == [[0]] * 4, [result["said"] for result in results]
    names = [name for name in visible(out) if name != "index.html"]
    assert len(names) == 4 * len(FORMATS), names
    stems = {name.rpartition(".")[0] for name in names}
    assert len(stems) == 4
    assert hidden(out) == []
    check_results(out, rows=60)


def test_a_timestamp_is_given_to_one_command_only(tmp_path: Path) -> None:
    with own_timestamp(tmp_path, "20260102235959") as first, own_timestamp(tmp_path, "20260102235959") as second:
        assert (first, second) == ("20260102235959", "20260103000000")
    assert hidden(tmp_path) == []
    (tmp_path / "step0").mkdir()
    (tmp_path / "step0" / "compare_result_rank0_20260102235959.xlsx").touch()
    with own_timestamp(tmp_path, "20260102235959") as third:
        assert third == "20260103000000"
