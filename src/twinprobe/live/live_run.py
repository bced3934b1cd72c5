"""A run that was recorded in memory, in the form in which the rest of TwinProbe knows runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from twinprobe.live.memory import MemoryEngine
from twinprobe.measure.gaps import Spot, address_of, spot_of
from twinprobe.record.rows import Entry, Note
from twinprobe.record.rows import Leaf as PlainLeaf
from twinprobe.runs.host_tensor import HostTensor
from twinprobe.runs.inside import inside
from twinprobe.runs.leaf import TENSOR, Leaf, settle
from twinprobe.runs.run import Run
from twinprobe.runs.stacks import Stacks
from twinprobe.runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER, TableBuilder
from twinprobe.runs.tensor_files import open_tensor

ToHost = Callable[[Any], HostTensor]
# In the order of roles, in which the rows of a call stand.
_ROLES = {"input_args": INPUT, "input_kwargs": INPUT, "input": INPUT, "parameters": PARAMETER, "output": OUTPUT}
_FLOAT32 = np.dtype(np.float32)
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

    def spot(self, row: int) -> Spot | None:
        """Where the tensor of a row lies in memory; what was read from a file stays there until ``let_go``."""
        if self.to_host is not None:
            note = self.notes_of_row[row]
            payload = note.row.payload if note is not None and note.row is not None else None
            if note is not None and payload is not None:
                known = _spot_of_payload(note, payload)
                if known is not None:
                    return known
        host = self.tensor(row)
        if host is None:
            return None
        if self.to_host is None:
            self._read.append(host)
        return spot_of(host)

    def let_go(self) -> None:
        """Nobody uses the spots of tensors from files any more."""
        self._read.clear()

    def identity(self, row: int) -> int:
        """Equal for rows that hold the same tensor; 0 where that is not known."""
        note = self.notes_of_row[row] if self.notes_of_row else None
        return id(note.row) if note is not None and note.row is not None else 0

    def layout(self, row: int) -> str:
        """``in_out`` where a weight is stored the other way round."""
        if not self.notes_of_row:
            return self._recorded_layouts[row] or ""
        note = self.notes_of_row[row]
        return str(note.extra.get("layout", "")) if note is not None and note.extra else ""

    @cached_property
    def _recorded_layouts(self) -> list[str | None]:
        found: list[str | None] = self.table["layout"].to_list()
        return found

    def measure(self) -> None:
        """Fill in the statistics, which the automatic alignment goes by."""
        if self.measured:
            return
        self.measured = True
        self.table = _table(self._rows, statistics=self.to_host)

    _rows: list[tuple[int, int, str, Any]] = field(default_factory=list)
    _read: list[HostTensor] = field(default_factory=list)


def live_run(engine: MemoryEngine, *, title: str, framework: str, to_host: ToHost) -> Values:
    """What a recorder has left in its engine, as a run."""
    ops = [entry.name for entry in engine.entries]
    rows: list[tuple[int, int, str, Any]] = []
    for op, entry in enumerate(engine.entries):
        _add_rows(op, entry, rows)
    run = Values(
        Path(title), "tensor", "mix", framework, ops, _table(rows, statistics=None), [],
        [value if isinstance(value, Note) else None for *_, value in rows], to_host, False,
    )  # fmt: skip
    run._rows = rows
    assert engine.step is not None
    run.__dict__["parents"] = dict(engine.parents)
    run.__dict__["stacks"] = _stacks(engine.step.stacks.to_json())
    engine.entries.clear()  # recorders are held by circles: their content must not wait for the garbage collector
    return run


def read_run(run: Run) -> Values:
    """A run from a folder in the same form."""
    return Values(run.path, run.task, run.level, run.framework, run.ops, run.table, run.notes)


def _add_rows(op: int, entry: Entry, rows: list[tuple[int, int, str, Any]]) -> None:
    parts = entry.parts
    if entry.boxed:
        for key, (_, value) in parts.items():
            _add_leaves(op, GRADIENT, f"{entry.name}.{key}", value, rows)
        return
    for key, role in _ROLES.items():  # in the order of roles
        part = parts.get(key)
        if part is not None and part[1]:
            shown = "input" if part[0] == "kwargs" else part[0]
            _add_leaves(op, role, f"{entry.name}.{shown}", part[1], rows)


def _add_leaves(op: int, role: int, name: str, value: Any, rows: list[tuple[int, int, str, Any]]) -> None:
    kind = type(value)
    if kind is list:
        for at, item in enumerate(value):
            _add_leaves(op, role, f"{name}.{at}", item, rows)
    elif kind is dict:
        for key, item in value.items():
            _add_leaves(op, role, f"{name}.{key}", item, rows)
    elif kind is not PlainLeaf or "value" in value.json:
        rows.append((op, role, name, value))


def _table(rows: list[tuple[int, int, str, Any]], *, statistics: ToHost | None) -> Any:
    builder = TableBuilder()
    alike: dict[tuple[Any, ...], Leaf] = {}  # tensors that are not measured differ in nothing else
    for op, role, name, value in rows:
        if type(value) is not Note or statistics is not None:
            leaf = settle(_leaf(value, statistics), name.rpartition(".")[2])
        else:
            key = value.type, value.dtype, value.shape, value.requires_grad
            known = alike.get(key)
            leaf = known if known is not None else settle(_leaf(value, None), "")
            alike[key] = leaf
        builder.add(op, role, name, leaf)
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


def _spot_of_payload(note: Note, payload: Any) -> Spot | None:
    """Where a recorder's plain copy of a float32 tensor lies; None for everything else, which goes by the host."""
    if short_dtype(note.dtype) != "float32":
        return None
    if type(payload) is np.ndarray:
        if payload.dtype != _FLOAT32 or not payload.flags.c_contiguous:
            return None
        return Spot("float32", note.shape, payload.size, address_of(payload))
    if type(payload) is HostTensor or not hasattr(payload, "data_ptr") or not payload.is_cpu:
        return None
    return Spot("float32", note.shape, payload.numel(), payload.data_ptr())


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
