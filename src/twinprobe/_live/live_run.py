"""A run that was recorded in memory, in the form in which the rest of TwinProbe knows runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import numpy as np

from twinprobe._measure.elements import address_of
from twinprobe._record.config import NameFilter, RecordConfig
from twinprobe._record.engine import Engine, Framework, Step
from twinprobe._record.rows import Entry, Note
from twinprobe._record.rows import Leaf as PlainLeaf
from twinprobe._record.stacks import StackTable
from twinprobe._record.writer import Problems
from twinprobe._runs.dump_json import Stacks
from twinprobe._runs.names import BACKWARD, FORWARD
from twinprobe._runs.run import Run
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER, TENSOR, Leaf, settle, table_of
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe.errors import DamagedTensor

# Inputs and outputs of a call, in the order of roles, in which its rows stand.
_PARTS = {
    FORWARD: (
        ("input_args", INPUT, "input"), ("input_kwargs", INPUT, "input"), ("parameters", PARAMETER, "parameters"),
        ("output", OUTPUT, "output"),
    ),
    BACKWARD: (("input", INPUT, "input"), ("output", OUTPUT, "output")),
}  # fmt: skip
_NO_LIST: list[Any] = []
_NO_DICT: dict[str, Any] = {}
_NOTES = {Note}

# The role of each row of a call, and what follows the call's name in the row's, such as ``output.0``.
Layout = tuple[tuple[int, ...], tuple[str, ...]]


@lru_cache(maxsize=4096)
def _layout(direction: str, *places: int | tuple[str, ...]) -> Layout:
    """The layout of a call whose inputs and outputs are all tensors. Thousands of calls share a few layouts."""
    rows = []
    for (_, role, front), held in zip(_PARTS[direction], places, strict=True):
        rows += [(role, f"{front}.{key}") for key in (range(held) if isinstance(held, int) else held)]
    return tuple(role for role, _ in rows), tuple(suffix for _, suffix in rows)


@lru_cache(maxsize=4096)
def _gradients(*names: str) -> Layout:
    """The layout of a module's gradients of parameters."""
    return (GRADIENT,) * len(names), names


@dataclass
class LiveRows:
    """The calls of a run in the order in which they ended, each with its layout, and the values of all of them.

    ``starts`` has the first row of each call, and one past the last row of all. ``plain`` has what is no tensor by its
    row.
    """

    names: list[str] = field(default_factory=list)
    layouts: list[Layout] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    value: list[Any] = field(default_factory=list)
    plain: dict[int, Leaf] = field(default_factory=dict)

    def append(self, entry: Entry) -> None:
        """Take over a call as soon as it has ended: what it is made of is at hand now, and need not be kept."""
        parts = entry.parts
        if entry.boxed:
            self._add(entry.name, _gradients(*parts), list(parts.values()))
            return
        if "input" in parts:
            direction = BACKWARD
            arrived, left = parts["input"], parts["output"]
            values = arrived + left
            layout = _layout(BACKWARD, len(arrived), len(left))
        else:
            direction = FORWARD
            args, given = parts.get("input_args", _NO_LIST), parts.get("output", _NO_LIST)
            kwargs, own = parts.get("input_kwargs", _NO_DICT), parts.get("parameters", _NO_DICT)
            values = [*args, *kwargs.values(), *own.values(), *given]
            layout = _layout(FORWARD, len(args), tuple(kwargs), tuple(own), len(given))
        if values and set(map(type, values)) != _NOTES:
            # Other values than tensors, or tensors inside of others.
            rows: list[tuple[int, str, Any]] = []
            for key, role, front in _PARTS[direction]:
                if parts.get(key):
                    _flatten(role, front, parts[key], rows)
            self._add_mixed(entry.name, rows)
        else:
            self._add(entry.name, layout, values)

    def _add(self, name: str, layout: Layout, values: list[Any]) -> None:
        self.names.append(name)
        self.layouts.append(layout)
        self.value += values
        self.starts.append(len(self.value))

    def _add_mixed(self, name: str, rows: list[tuple[int, str, Any]]) -> None:
        numbered = enumerate(rows, len(self.value))
        self.plain |= {row: settle(_plain(value), "") for row, (_, _, value) in numbered if type(value) is not Note}
        layout = tuple(role for role, _, _ in rows), tuple(suffix for _, suffix, _ in rows)
        self._add(name, layout, [value for _, _, value in rows])

    def take(self, name: str, source: LiveRows, *parts: tuple[int, frozenset[int]]) -> None:
        """Append a call made of another's rows: of each of these calls those in these roles."""
        rows: list[tuple[int, str, Any]] = []
        for call, roles in parts:
            values = source.value[source.starts[call] : source.starts[call + 1]]
            rows += [row for row in zip(*source.layouts[call], values, strict=True) if row[0] in roles]
        self._add_mixed(name, rows)

    def release(self) -> None:
        """Let go of all tensors; what they look like stays."""
        for row in self.plain:
            self.value[row] = None
        for note in self.value:
            if note is not None:
                note.row = None


def _flatten(role: int, suffix: str, value: Any, rows: list[tuple[int, str, Any]]) -> None:
    """Append a value, or all that are in it."""
    kind = type(value)
    if kind is list or kind is dict:
        for key, item in value.items() if kind is dict else enumerate(value):
            _flatten(role, f"{suffix}.{key}", item, rows)
    elif kind is not PlainLeaf or "value" in value.json:
        rows.append((role, suffix, value))


class Columns(dict[str, list[Any]]):
    """What comparing needs to know of each row, each column made when it is asked for."""

    def __init__(self, rows: LiveRows) -> None:
        super().__init__()
        self._rows = rows

    def __missing__(self, name: str) -> list[Any]:
        rows = self._rows
        if name == "op":
            found: list[Any] = [op for op, (first, end) in enumerate(pairwise(rows.starts)) for _ in range(first, end)]
        elif name == "role":
            found = [role for roles, _ in rows.layouts for role in roles]
        elif name == "name":
            suffixes = zip(rows.names, rows.layouts, strict=True)
            found = [f"{call}.{suffix}" for call, (_, own) in suffixes for suffix in own]
        elif name == "kind":
            found = [TENSOR] * rows.starts[-1]
        else:
            found = [type(value) is Note and getattr(value, name) for value in rows.value]
            found = list(map(_shown, found)) if name == "shape" else found
        field = "shown_shape" if name == "shape" else name
        for row, leaf in rows.plain.items() if name in ("kind", "shape", "dtype") else ():
            found[row] = getattr(leaf, field)
        self[name] = found
        return found


def _plain(value: Any) -> Leaf | None:
    """A value that is no tensor."""
    if value is None:
        return None
    if isinstance(value, PlainLeaf):
        return Leaf(str(value.json.get("type")), value=value.json["value"])
    return Leaf(type(value).__name__, value=value)


@lru_cache(maxsize=10_000)
def _shown(shape: tuple[int, ...] | bool) -> str:
    return str(list(shape)) if isinstance(shape, tuple) else ""


_MODULES = ("Module.", "Cell.")
_PACKAGE = str(Path(__file__).resolve().parents[1]) + "/"


class MemoryEngine(Engine):
    """Takes entries as they come. ``rows``, ``parents`` and ``stacks`` are what a dump folder would hold.

    What runs outside the model (the loss, say) is not the model's, and no call is inside of it: it is left out.
    """

    def __init__(self, config: RecordConfig, framework: Framework, *, hidden: tuple[str, ...] = ()) -> None:
        # Engine's own __init__ opens the writer; nothing of that is wanted here.
        self.config = config
        self.framework = framework
        self.filter = NameFilter(config)
        self.problems = Problems()
        self.bench = None
        self.active = self.failed = self.begun = False
        self.step_number = 0
        step = self.step = Step(0, cast(Any, None), (_PACKAGE, *hidden))
        self.parents = step.construct  # the enclosing call of each call
        self._trees = True
        self.rows = LiveRows()

    def begin(self) -> bool:
        """Start taking entries."""
        self.begun = self.active = True
        return True

    def end(self) -> None:
        """Stop; what still lies on a device is brought to the host."""
        self.begun = self.active = False
        job = self.framework.collect()
        if job is not None:
            job()

    def next_step(self) -> None:
        """Runs are kept apart by their engines, so there is nothing to do."""

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is open."""

    def link(self, child: str, parent: str | None) -> None:
        """Note the enclosing call."""
        if parent or child.startswith(_MODULES):
            self.parents[child] = parent

    def emit(self, entry: Entry) -> None:
        """Keep a finished entry."""
        name = entry.name
        if name.startswith(_MODULES) or name in self.parents:
            self.rows.append(entry)


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
                return _plain(value)
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
                notes = [value if type(value) is Note else _NO_TENSOR for value in notes]
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
    run.ask_settings = engine.framework.settings
    return run


def read_run(run: Run) -> Values:
    """A run from a folder in the same form."""
    return Values(
        run.path, run.task, run.level, run.framework, run.ops, run.table, run.notes,
        sketch_file=run.sketch_file, settings=run.settings,
    )  # fmt: skip


def _leaf(note: Note, to_host: ToHost | None, number: int) -> Leaf:
    """What a table tells of a tensor; with its statistics where ``to_host`` brings it to the host."""
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


def _hosted(row: Any, to_host: ToHost) -> HostTensor:
    if not isinstance(row.payload, HostTensor):
        row.payload = to_host(row.payload)
    found: HostTensor = row.payload
    return found


@lru_cache(maxsize=256)
def short_dtype(text: str) -> str:
    """``float32`` for torch.float32, paddle.float32 and Float32."""
    return text.rpartition(".")[2].lower()
