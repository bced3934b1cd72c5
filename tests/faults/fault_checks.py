"""What must hold for a recording and for results, whatever happened while they were written."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import polars as pl

from twinprobe._runs.run import open_run
from twinprobe._runs.tensors.tensor_files import open_tensor

FORMATS = ("xlsx", "csv", "parquet", "json", "html")


def check_recording(path: Path) -> set[int]:
    """No file under a final name is half, all that an index names is there; the steps that have an index."""
    whole = set()
    for folder in sorted(path.glob("step*/*")):
        for file in folder.glob("*.json"):
            json.loads(file.read_text(encoding="utf-8"))
        for file in folder.glob("dump_tensor_data/*.pt"):
            if not file.name.startswith("."):
                open_tensor(file)
        index = folder / "dump.json"
        if index.exists():
            whole.add(int(folder.parent.name.removeprefix("step")))
            assert (folder / "construct.json").exists()
            _check_named(folder, json.loads(index.read_text(encoding="utf-8"))["data"])
        elif (folder / "dump.json.part").exists():
            _check_part(folder)
    return whole


def _check_part(folder: Path) -> None:
    lines = (folder / "dump.json.part").read_bytes().split(b"\n")
    entries: dict[str, Any] = {}
    for line in lines[1:-1]:
        entries |= json.loads(line)
    _check_named(folder, entries)
    if entries:
        assert "the recorder did not finish" in open_run(folder).notes[0]


def _check_named(folder: Path, entries: dict[str, Any]) -> None:
    for name in _files(entries):
        assert (folder / "dump_tensor_data" / name).is_file(), f"{folder}: {name} is named and not there"


def _files(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["data_name"]] if isinstance(value.get("data_name"), str) else []
        return own + [name for item in value.values() for name in _files(item)]
    return [name for item in value for name in _files(item)] if isinstance(value, list) else []


def visible(folder: Path) -> list[str]:
    """The files of a folder under final names."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def hidden(folder: Path) -> list[str]:
    """What is under temporary names."""
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def check_results(folder: Path, rows: int) -> None:
    """Every result under a final name is whole."""
    for name in visible(folder):
        path = folder / name
        if path.suffix == ".xlsx":
            with zipfile.ZipFile(path) as archive:
                assert archive.testzip() is None
                assert archive.read("xl/worksheets/sheet1.xml").count(b"<row ") == rows + 1
        elif path.suffix == ".csv":
            assert pl.read_csv(path, infer_schema=False).height == rows
        elif path.suffix == ".parquet":
            assert pl.read_parquet(path).height == rows
        elif path.suffix == ".json":
            assert len(json.loads(path.read_text(encoding="utf-8"))["rows"]) == rows
        else:
            assert path.suffix == ".html"
            assert path.read_text(encoding="utf-8").rstrip().endswith("</html>")
