"""A run that was recorded in memory, in the form in which the rest of TwinProbe knows runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from twinprobe.live.memory import MemoryEngine
from twinprobe.record.rows import Entry, Note
from twinprobe.record.rows import Leaf as PlainLeaf
from twinprobe.runs.host_tensor import HostTensor
from twinprobe.runs.inside import inside
from twinprobe.runs.leaf import TENSOR, Leaf, settle
from twinprobe.runs.names import parse_op
from twinprobe.runs.run import Run
from twinprobe.runs.stacks import Stacks
from twinprobe.runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER, TableBuilder
from twinprobe.runs.tensor_files import open_tensor

ToHost = Callable[[Any], HostTensor]
_ROLES = {"input_args": INPUT, "input_kwargs": INPUT, "input": INPUT, "parameters": PARAMETER, "output": OUTPUT}
IN_OUT = "in_out"


@dataclass
class Values(Run):
    """A run together with its tensors, wherever they are.

    ``notes_of_row`` has the in-memory note of each row of the table; it is empty for a run read from a folder.
    """

    notes_of_row: list[Note | None] = field(default_factory=list)
    to_host: ToHost | None = None
    measured: bool = True

    def tensor(self, row: int) -> HostTensor | None:
        """The tensor of a row; None where it was not kept."""
        if self.to_host is not None:
            note = self.notes_of_row[row]
            if note is None or note.row is None:
                return None
            if note.row.payload is None:
                return _empty(note)
            return _hosted(note.row, self.to_host)
        file = self.table["file"][row]
        return open_tensor(inside(self.tensor_folder, file)) if file else None

    def identity(self, row: int) -> int:
        """Equal for rows that hold the same tensor; 0 where that is not known."""
        note = self.notes_of_row[row] if self.notes_of_row else None
        return id(note.row) if note is not None and note.row is not None else 0

    def layout(self, row: int) -> str:
        """``in_out`` where a weight is stored the other way round."""
        if not self.notes_of_row:
            return self._recorded_layout(row)
        note = self.notes_of_row[row]
        return str((note.extra or {}).get("layout", "")) if note is not None else ""

    def _recorded_layout(self, row: int) -> str:
        if self.framework != "paddle":
            return ""
        name = self.table["name"][row]
        is_linear = parse_op(self.ops[self.table["op"][row]]).cls.endswith("Linear")
        return IN_OUT if is_linear and name.endswith(".weight") else ""

    def measure(self) -> None:
        """Fill in the statistics, which the automatic alignment goes by."""
        if self.measured:
            return
        self.measured = True
        self.table = _table(self._rows, statistics=self.to_host)

    _rows: list[tuple[int, int, str, Any]] = field(default_factory=list)


def live_run(engine: MemoryEngine, *, title: str, framework: str, to_host: ToHost) -> Values:
    """What a recorder has left in its engine, as a run."""
    ops = [entry.name for entry in engine.entries]
    rows: list[tuple[int, int, str, Any]] = []
    for op, entry in enumerate(engine.entries):
        rows += sorted(((op, role, name, value) for role, name, value in _rows_of(entry)), key=lambda row: row[1])
    run = Values(
        Path(title), "tensor", "mix", framework, ops, _table(rows, statistics=None), [],
        [value if isinstance(value, Note) else None for *_, value in rows], to_host, False,
    )  # fmt: skip
    run._rows = rows
    assert engine.step is not None
    run.__dict__["parents"] = dict(engine.parents)
    run.__dict__["stacks"] = _stacks(engine.step.stacks.to_json())
    return run


def read_run(run: Run) -> Values:
    """A run from a folder in the same form."""
    return Values(run.path, run.task, run.level, run.framework, run.ops, run.table, run.notes)


def _rows_of(entry: Entry) -> Iterator[tuple[int, str, Any]]:
    for key, (segment, value) in entry.parts.items():
        if entry.boxed:
            yield from _leaves(value, GRADIENT, f"{entry.name}.{key}")
        elif key in _ROLES:
            shown = "input" if segment == "kwargs" else segment
            yield from _leaves(value, _ROLES[key], f"{entry.name}.{shown}")


def _leaves(value: Any, role: int, name: str) -> Iterator[tuple[int, str, Any]]:
    if isinstance(value, list):
        for at, item in enumerate(value):
            yield from _leaves(item, role, f"{name}.{at}")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, role, f"{name}.{key}")
    elif not isinstance(value, PlainLeaf) or "value" in value.json:
        yield role, name, value


def _table(rows: list[tuple[int, int, str, Any]], *, statistics: ToHost | None) -> Any:
    builder = TableBuilder()
    for op, role, name, value in rows:
        builder.add(op, role, name, settle(_leaf(value, statistics), name.rpartition(".")[2]))
    return builder.build()


def _leaf(value: Any, statistics: ToHost | None) -> Leaf | None:
    if value is None:
        return None
    if isinstance(value, Note):
        leaf = Leaf(value.type, value.dtype, list(value.shape), requires_grad=value.requires_grad, kind=TENSOR)
        if statistics is not None and value.row is not None and value.row.payload is not None:
            leaf.Max, leaf.Min, leaf.Mean, leaf.Norm = _statistics(value.row, statistics)
        return leaf
    if isinstance(value, PlainLeaf):
        return Leaf(str(value.json.get("type")), value=value.json["value"])
    return Leaf(type(value).__name__, value=value)


def _statistics(row: Any, to_host: ToHost) -> tuple[Any, Any, Any, Any]:
    if row.values is None:
        from twinprobe.measure.statistics import statistics

        row.values = statistics(_hosted(row, to_host))
    values = row.values
    return values.max, values.min, values.mean, values.norm


def _hosted(row: Any, to_host: ToHost) -> HostTensor:
    if not isinstance(row.payload, HostTensor):
        row.payload = to_host(row.payload)
    found: HostTensor = row.payload
    return found


def _empty(note: Note) -> HostTensor | None:
    return HostTensor("float32", note.shape, np.empty(0, np.float32)) if 0 in note.shape else None


@lru_cache(maxsize=256)
def short_dtype(text: str) -> str:
    """``float32`` for torch.float32, paddle.float32 and Float32."""
    return text.rpartition(".")[2].lower()


def _stacks(document: dict[str, Any]) -> Stacks:
    stacks = Stacks()
    for names, frames in document.values():
        at = len(stacks.frames)
        stacks.frames.append(frames)
        stacks.of_op.update(dict.fromkeys(names, at))
    return stacks
