"""What is under a final name is on the disk: files are synced before they are renamed, indexes come last."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from fault_tools import Victims

from support import forward, tensor, write_dump

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="open files are told by name under /proc only")

Trace = list[list[str]]


def _trace(path: Path) -> Trace:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _check_synced_before_renamed(trace: Trace, suffixes: tuple[str, ...]) -> list[str]:
    renamed = []
    for at, (event, *words) in enumerate(trace):
        if event == "os.rename" and words[1].endswith(suffixes):
            assert ["fsync", words[0]] in trace[:at], f"{words[1]} was renamed before it was synced"
            renamed.append(words[1])
    return renamed


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_of_a_recording(victims: Victims, tmp_path: Path, task: str) -> None:
    folder = tmp_path / "dump"
    result = victims.record(folder, task=task, trace=str(tmp_path / "trace"))
    assert result["status"] == 0, result["said"]
    trace = _trace(tmp_path / "trace")
    renamed = _check_synced_before_renamed(trace, (".json",))
    assert sorted(renamed) == sorted(map(str, folder.rglob("*.json")))
    for index in folder.rglob("dump.json"):
        _check_index_is_last(trace, index, task)


def _check_index_is_last(trace: Trace, index: Path, task: str) -> None:
    here = str(index.parent)
    renames = [(at, words[1]) for at, (event, *words) in enumerate(trace) if event == "os.rename"]
    mine = [(at, name) for at, name in renames if name.startswith(here)]
    last_at, last_name = mine[-1]
    assert last_name == str(index)
    tensors = [at for at, name in mine if name.endswith(".pt")]
    assert bool(tensors) is (task == "tensor")
    if tensors:
        assert ["syncfs"] in trace[tensors[-1] : last_at], "the index came before its tensors were on the disk"
    removed = trace.index(["os.remove", f"{index}.part"])
    assert ["fsync", here] in trace[last_at:removed], "the part went before the index's name was on the disk"


def test_of_reports(victims: Victims, tmp_path: Path) -> None:
    data = {"Torch.mul.0.forward": forward([tensor()], [tensor()])}
    target, golden = (write_dump(tmp_path / name, data) for name in "ab")
    out = tmp_path / "out"
    words = ("compare", "-tp", target, "-gp", golden, "-o", out, "--format", "xlsx,csv,parquet,json,html")
    result = victims.command(out, *words, trace=str(tmp_path / "trace"))
    assert result["told"] == [0], result["said"]
    trace = _trace(tmp_path / "trace")
    renamed = _check_synced_before_renamed(trace, ("",))
    assert sorted(renamed) == sorted(map(str, out.iterdir()))
    assert ["fsync", str(out)] in trace[trace.index(["os.rename", *_rename_of(trace, renamed[-1])]) :]


def _rename_of(trace: Trace, name: str) -> list[str]:
    return next(words for event, *words in trace if event == "os.rename" and words[1] == name)


def test_of_a_graph(victims: Victims, tmp_path: Path) -> None:
    name = "Module.layer.Linear.forward.0"
    data = {name: forward([tensor()], [tensor()])}
    for side in "ab":
        write_dump(tmp_path / side / "rank0", data, parents={name: None}, stacks={})
    out = tmp_path / "out"
    words = ("graph_visualize", "-tp", tmp_path / "a", "-gp", tmp_path / "b", "-o", out)
    result = victims.command(out, *words, trace=str(tmp_path / "trace"))
    assert result["told"] == [0], result["said"]
    renamed = _check_synced_before_renamed(_trace(tmp_path / "trace"), ("",))
    assert sorted(renamed) == sorted(map(str, out.iterdir()))
