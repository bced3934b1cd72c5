"""A run that was recorded in memory, in the form in which the rest of TwinProbe knows runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import numpy as np

from twinprobe._measure.elements import address_of
from twinprobe._record.calls import StackTable
from twinprobe._record.entries import Note
from twinprobe._record.memory.engine import Columns, LiveRows, MemoryEngine, plain_leaf
from twinprobe._runs.dump_json import Stacks
from twinprobe._runs.run import Run
from twinprobe._runs.table import GRADIENT, PARAMETER, TENSOR, Leaf, table_of
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe.errors import DamagedTensor

ToHost = Callable[[Any], HostTensor]
_FLOAT32 = np.dtype(np.float32)
_FLOAT32_NAMES = frozenset({"torch.float32", "paddle.float32", "Float32", "float32"})
IN_OUT = "in_out"
_NO_TENSOR = Note("", "", (), None)
_extra_of = attrgetter("extra")


@dataclass
class LiveRun(Run):
    """A run together with its tensors, wherever they are.

    ``live`` has the rows of a run in memory; it is None for a run read from a folder. The table of a live run is made
    when somebody asks for it, which few comparisons do.
    """

    live: LiveRows | None = None
    to_host: ToHost | None = None
    measured: bool = True
    stack_table: StackTable | None = None
    ask_settings: Callable[[], dict[str, Any]] = dict  # asked when a difference is judged: Paddle takes a while

    @cached_property
    def stacks(self) -> Stacks:
        """Call sites of the calls."""
        if self.stack_table is None:
            return super().stacks
        stacks = Stacks()
        for names, frames in self.stack_table.to_json().values():
            stacks.of_op.update(dict.fromkeys(names, len(stacks.frames)))
            stacks.frames.append(frames)
        return stacks

    def __getattr__(self, name: str) -> Any:
        if name != "table" or self.__dict__.get("live") is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        self.table = self._new_table(None)
        return self.table

    def _new_table(self, to_host: ToHost | None) -> Any:
        """With statistics where ``to_host`` brings tensors to the host; else those that look the same have one leaf."""
        assert self.live is not None
        alike: dict[tuple[Any, ...], Leaf] = {}

        def leaf_of(row: int, value: Any) -> Leaf | None:
            if type(value) is not Note:
                return plain_leaf(value)
            if to_host is not None:
                return _leaf(value, to_host, row)
            key = value.type, value.dtype, value.shape, value.requires_grad
            if key not in alike:
                alike[key] = _leaf(value, None, row)
            return alike[key]

        leaves = [leaf_of(row, value) for row, value in enumerate(self.live.value)]
        return table_of(zip(*(self.columns[name] for name in ("op", "role", "name")), leaves, strict=True))

    @cached_property
    def columns(self) -> dict[str, list[Any]]:
        """What comparing needs to know of each row: op, role, name, kind, shape and dtype."""
        if self.live is None:
            return {name: self.table[name].to_list() for name in ("op", "role", "name", "kind", "shape", "dtype")}
        return Columns(self.live)

    def tensor(self, row: int) -> HostTensor | None:
        """The tensor of a row; None where it was not kept."""
        if self.to_host is not None:
            assert self.live is not None
            note = self.live.value[row]
            if type(note) is not Note or note.row is None:
                return None
            if note.row.payload is None:
                return HostTensor("float32", note.shape, np.empty(0, np.float32)) if 0 in note.shape else None
            return _hosted(note.row, self.to_host)
        file = self.table["file"][row]
        return super().load(file) if file else None

    @property
    def in_memory(self) -> bool:
        return self.live is not None

    def load(self, name: str) -> HostTensor:
        """The tensor that the column ``file`` names: of a run in memory it holds the number of the row."""
        tensor = super().load(name) if self.live is None else self.tensor(int(name))
        if tensor is None:
            raise DamagedTensor("was written to before it was compared")
        return tensor

    def release(self) -> None:
        """The tensors of a live run are no longer needed."""
        if self.live is not None:
            self.live.release()

    @cached_property
    def plain(self) -> set[int]:
        """Rows that are no tensors."""
        if self.live is not None:
            return set(self.live.plain)
        return {row for row, kind in enumerate(self.columns["kind"]) if kind != TENSOR}

    @cached_property
    def turned(self) -> set[int]:
        """Rows of weights and of their gradients that are stored transposed."""
        if self.live is None:
            rows = [row for row, layout in enumerate(self.table["layout"].to_list()) if layout == IN_OUT]
        else:
            notes = self.live.value
            if self.live.plain:
                notes = [value if type(value) is Note else _NO_TENSOR for value in notes]
            extras = enumerate(map(_extra_of, notes))
            rows = [row for row, extra in extras if extra and extra.get("layout") == IN_OUT]
        roles = self.columns["role"]
        return {row for row in rows if roles[row] in (PARAMETER, GRADIENT)}

    def measure(self) -> None:
        """Fill in the statistics, which the automatic alignment needs."""
        if self.measured:
            return
        self.measured = True
        self.table = self._new_table(self.to_host)


def live_run(engine: MemoryEngine, *, title: str, framework: str, to_host: ToHost) -> LiveRun:
    """What a recorder has left in its engine, as a run."""
    # Recorders are held by circles: their content must not wait for the garbage collector.
    rows, engine.rows = engine.rows, LiveRows()
    run = LiveRun(Path(title), "tensor", "mix", framework, rows.names, None, [], rows, to_host, False)  # type: ignore[arg-type]
    del run.table  # made when it is first used
    assert engine.step is not None
    run.__dict__["parents"] = dict(engine.parents)
    run.stack_table = engine.step.stacks
    run.ask_settings = engine.framework.settings
    return run


def read_run(run: Run) -> LiveRun:
    """A run from a folder in the same form."""
    return LiveRun(
        run.path, run.task, run.level, run.framework, run.ops, run.table, run.notes,
        sketch_file=run.sketch_file, settings=run.settings,
    )  # fmt: skip


def _leaf(note: Note, to_host: ToHost | None, number: int) -> Leaf:
    """A tensor as a row of a table; with its statistics where ``to_host`` brings it to the host."""
    leaf = Leaf(note.type, note.dtype, list(note.shape), requires_grad=note.requires_grad, kind=TENSOR)
    if to_host is not None and note.row is not None and note.row.payload is not None:
        from twinprobe._measure.statistics import statistics

        row = note.row
        if row.values is None:
            row.values = statistics(_hosted(row, to_host))
        leaf.Max, leaf.Min, leaf.Mean, leaf.Norm = row.values.max, row.values.min, row.values.mean, row.values.norm
        leaf.data_name = str(number)
        leaf.layout = (note.extra or {}).get("layout")
    return leaf


def address_in(note: Note) -> int:
    """The address of a float32 tensor; 0 for any other one, and where it is not known."""
    if note.row is None or note.dtype not in _FLOAT32_NAMES:
        return 0
    payload = note.row.payload
    kind = type(payload)
    if payload is None or kind is HostTensor or tuple(payload.shape) != note.shape:  # of a sparse tensor, its values
        return 0
    if kind is not np.ndarray:
        return int(payload.data_ptr())  # recorders keep tensors on the host only
    return address_of(payload) if payload.dtype == _FLOAT32 and payload.flags.c_contiguous else 0


def _hosted(row: Any, to_host: ToHost) -> HostTensor:
    if not isinstance(row.payload, HostTensor):
        row.payload = to_host(row.payload)
    return cast("HostTensor", row.payload)
