"""A run that was recorded in memory, in the form in which the rest of TwinProbe knows runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from twinprobe.live.live_rows import Columns, LiveRows, table_of
from twinprobe.live.memory import MemoryEngine
from twinprobe.measure.addresses import address_of
from twinprobe.measure.gaps import Spot, spot_of
from twinprobe.record.rows import Note
from twinprobe.record.stacks import StackTable
from twinprobe.runs.host_tensor import HostTensor
from twinprobe.runs.inside import inside
from twinprobe.runs.leaf import TENSOR, Leaf
from twinprobe.runs.run import Run
from twinprobe.runs.stacks import Stacks
from twinprobe.runs.table import GRADIENT, PARAMETER
from twinprobe.runs.tensor_files import open_tensor

ToHost = Callable[[Any], HostTensor]
_FLOAT32 = np.dtype(np.float32)
_FLOAT32_NAMES = frozenset({"torch.float32", "paddle.float32", "Float32", "float32"})
IN_OUT = "in_out"
_NO_TENSOR = Note("", "", (), None)
_extra_of = attrgetter("extra")


@dataclass
class Values(Run):
    """A run together with its tensors, wherever they are.

    ``live`` has the rows of a run in memory; it is None for a run read from a folder. The table of a live run is made
    when somebody asks for it, which few comparisons do.
    """

    live: LiveRows | None = None
    to_host: ToHost | None = None
    measured: bool = True
    stack_table: StackTable | None = None
    _read: list[HostTensor] = field(default_factory=list)

    @cached_property
    def stacks(self) -> Stacks:
        """Call sites of the calls."""
        return super().stacks if self.stack_table is None else _stacks(self.stack_table.to_json())

    def __getattr__(self, name: str) -> Any:
        if name != "table" or self.__dict__.get("live") is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        self.table = self._new_table(None)
        return self.table

    def _new_table(self, statistics: ToHost | None) -> Any:
        assert self.live is not None
        return table_of(self.live, self.columns["name"], lambda note: _leaf(note, statistics), statistics is None)

    @cached_property
    def columns(self) -> Columns | dict[str, list[Any]]:
        """What comparing needs to know of each row: op, role, name, kind, shape and dtype."""
        if self.live is None:
            return {name: self.table[name].to_list() for name in ("op", "role", "name", "kind", "shape", "dtype")}
        return Columns(self.live)

    def _note(self, row: int) -> Note | None:
        assert self.live is not None
        value = self.live.value[row]
        return value if type(value) is Note else None

    def tensor(self, row: int) -> HostTensor | None:
        """The tensor of a row; None where it was not kept."""
        if self.to_host is not None:
            note = self._note(row)
            if note is None or note.row is None:
                return None
            if note.row.payload is None:
                return _empty(note)
            return _hosted(note.row, self.to_host)
        file = self.table["file"][row]
        return open_tensor(inside(self.tensor_folder, file)) if file else None

    def spot(self, row: int) -> Spot | None:
        """Where the tensor of a row lies in memory; what was read from a file stays there until ``let_go_files``."""
        host = self.tensor(row)
        if host is None:
            return None
        if self.to_host is None:
            self._read.append(host)
        return spot_of(host)

    def let_go_files(self) -> None:
        """Nobody uses the spots of tensors from files any more."""
        self._read.clear()

    def release(self) -> None:
        """Nobody asks for the tensors of a live run any more."""
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
        """Rows of weights and of their gradients that are stored the other way round."""
        if self.live is None:
            found = [row for row, layout in enumerate(self.table["layout"].to_list()) if layout == IN_OUT]
        else:
            notes = self.live.value
            if self.live.plain:
                notes = [one if type(one) is Note else _NO_TENSOR for one in notes]
            extras = enumerate(map(_extra_of, notes))
            found = [row for row, extra in extras if extra and extra.get("layout") == IN_OUT]
        roles = self.columns["role"]
        return {row for row in found if roles[row] in (PARAMETER, GRADIENT)}

    def measure(self) -> None:
        """Fill in the statistics, which the automatic alignment goes by."""
        if self.measured:
            return
        self.measured = True
        self.table = self._new_table(self.to_host)


def live_run(engine: MemoryEngine, *, title: str, framework: str, to_host: ToHost) -> Values:
    """What a recorder has left in its engine, as a run."""
    # Recorders are held by circles: their content must not wait for the garbage collector.
    rows, engine.rows = engine.rows, LiveRows()
    run = Values(Path(title), "tensor", "mix", framework, rows.names, None, [], rows, to_host, False)  # type: ignore[arg-type]
    del run.table  # until somebody asks
    assert engine.step is not None
    run.__dict__["parents"] = dict(engine.parents)
    run.stack_table = engine.step.stacks
    return run


def read_run(run: Run) -> Values:
    """A run from a folder in the same form."""
    return Values(run.path, run.task, run.level, run.framework, run.ops, run.table, run.notes)


def _leaf(note: Note, statistics: ToHost | None) -> Leaf:
    leaf = Leaf(note.type, note.dtype, list(note.shape), requires_grad=note.requires_grad, kind=TENSOR)
    if statistics is not None and note.row is not None and note.row.payload is not None:
        leaf.Max, leaf.Min, leaf.Mean, leaf.Norm = _statistics(note.row, statistics)
    return leaf


def address_in(note: Note) -> int:
    """Where a float32 tensor lies; 0 for any other one, and where that cannot be told."""
    if note.row is None or note.dtype not in _FLOAT32_NAMES:
        return 0
    payload = note.row.payload
    kind = type(payload)
    if payload is None or kind is HostTensor or tuple(payload.shape) != note.shape:  # of a sparse tensor, its values
        return 0
    if kind is not np.ndarray:
        return int(payload.data_ptr())  # recorders keep tensors on the host only
    return address_of(payload) if payload.dtype == _FLOAT32 and payload.flags.c_contiguous else 0


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
