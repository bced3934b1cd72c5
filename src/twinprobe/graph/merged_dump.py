"""A merged run written as a dump again, to be drawn or compared like any other."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from twinprobe.report.atomic import Staging, prepare_folder
from twinprobe.report.text import json_bytes
from twinprobe.runs.leaf import NULL, TENSOR
from twinprobe.runs.names import BACKWARD, GRADIENTS, parse_op
from twinprobe.runs.run import Run
from twinprobe.runs.table import FLOAT, GRADIENT, INT, OUTPUT, PARAMETER, STATS

_TITLES = {"max": "Max", "min": "Min", "mean": "Mean", "norm": "Norm"}


def write_merged(run: Run, folder: Path) -> list[Path]:
    """Write construct.json, dump.json (marked ``is_merged``) and stack.json of a merged run."""
    prepare_folder(folder)
    header = {"task": run.task, "level": run.level, "framework": run.framework, "dump_data_dir": None}
    stacks = {str(at): [[], frames] for at, frames in enumerate(run.stacks.frames)}
    for name, at in run.stacks.of_op.items():
        stacks[str(at)][0].append(name)
    documents = {
        "construct.json": run.parents,
        "dump.json": header | {"is_merged": True, "data": dict(_entries(run))},
        "stack.json": stacks,
    }
    with Staging() as staging:
        for name, document in documents.items():
            staging.file(folder / name).write_bytes(json_bytes(document))
    return [folder / name for name in documents]


def _entries(run: Run) -> Iterator[tuple[str, dict[str, Any]]]:
    current, entry = -1, dict[str, Any]()
    for row in run.table.iter_rows(named=True):
        if row["op"] != current:
            if current >= 0:
                yield run.ops[current], _lists(entry)
            current, entry = row["op"], _empty(run.ops[row["op"]])
        path = row["name"].removeprefix(run.ops[current]).strip(".").split(".")
        _put(entry, _section(row["role"], path, backward="input" in entry), _leaf(row))
    if current >= 0:
        yield run.ops[current], _lists(entry)


def _empty(op: str) -> dict[str, Any]:
    direction = parse_op(op).direction
    if direction == GRADIENTS:
        return {}
    return (
        {"input": {}, "output": {}} if direction == BACKWARD else {"input_args": {}, "input_kwargs": {}, "output": {}}
    )


def _section(role: int, path: list[str], *, backward: bool) -> list[str]:
    """Where a value lies in its entry."""
    if role == GRADIENT:
        return [*path, "0"]
    if role in (OUTPUT, PARAMETER) or backward:
        return path
    return ["input_args" if path[1].isdecimal() else "input_kwargs", *path[1:]]


def _put(entry: dict[str, Any], path: list[str], leaf: Any) -> None:
    for part in path[:-1]:
        entry = entry.setdefault(part, {})
    entry[path[-1]] = leaf


def _lists(value: Any) -> Any:
    """Objects whose keys count from zero become lists; leaves stay as they are."""
    if not isinstance(value, dict) or "type" in value:
        return value
    if value and list(value) == [str(at) for at in range(len(value))]:
        return [_lists(item) for item in value.values()]
    return {key: _lists(item) if item or key == "input_kwargs" else [] for key, item in value.items()}


def _leaf(row: dict[str, Any]) -> dict[str, Any] | None:
    if row["kind"] == NULL:
        return None
    if row["kind"] != TENSOR:
        return {"type": row["type"], "value": row["meaning"] if row["meaning"] is not None else _statistic(row, "max")}
    leaf = {"type": row["type"], "dtype": row["dtype"]}
    leaf["shape"] = literal_eval(row["shape"] or "[]")
    leaf |= {_TITLES[stat]: _statistic(row, stat) for stat in STATS}
    return leaf | ({"requires_grad": row["requires_grad"]} if row["requires_grad"] is not None else {})


def _statistic(row: dict[str, Any], stat: str) -> Any:
    if row[f"{stat}_kind"] == INT:
        return int(row[stat])
    if row[f"{stat}_kind"] == FLOAT:
        return row[stat]
    text = row[f"{stat}_text"]
    return {"None": None, "True": True, "False": False}.get(text, text)
