"""The engine of a recording in memory: calls as rows, in the form in which the rest of TwinProbe knows runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from twinprobe._record.config import NameFilter, RecordConfig
from twinprobe._record.engine import Engine, Framework, Step
from twinprobe._record.rows import Entry, Note
from twinprobe._record.rows import Leaf as PlainLeaf
from twinprobe._record.writer import Problems
from twinprobe._runs.names import BACKWARD, FORWARD
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER, TENSOR, Leaf, settle

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
        self.plain |= {row: settle(plain_leaf(value), "") for row, (_, _, value) in numbered if type(value) is not Note}
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
        """Release all tensors; their dtypes and shapes stay."""
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
    """The columns that a comparison needs, each made when it is first used."""

    def __init__(self, rows: LiveRows) -> None:
        super().__init__()
        self._rows = rows

    def __missing__(self, name: str) -> list[Any]:
        rows = self._rows
        if name == "op":
            column: list[Any] = [op for op, (first, end) in enumerate(pairwise(rows.starts)) for _ in range(first, end)]
        elif name == "role":
            column = [role for roles, _ in rows.layouts for role in roles]
        elif name == "name":
            suffixes = zip(rows.names, rows.layouts, strict=True)
            column = [f"{call}.{suffix}" for call, (_, own) in suffixes for suffix in own]
        elif name == "kind":
            column = [TENSOR] * rows.starts[-1]
        else:
            column = [type(value) is Note and getattr(value, name) for value in rows.value]
            column = list(map(_shown, column)) if name == "shape" else column
        field = "shown_shape" if name == "shape" else name
        for row, leaf in rows.plain.items() if name in ("kind", "shape", "dtype") else ():
            column[row] = getattr(leaf, field)
        self[name] = column
        return column


def plain_leaf(value: Any) -> Leaf | None:
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
_PACKAGE = str(Path(__file__).resolve().parents[2]) + "/"


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
        """Nothing to do: entries are kept as they come."""

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
