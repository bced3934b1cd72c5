"""What a recorder left in memory, as rows: which call, what to it, under which name, and the value itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

from twinprobe.record.rows import Entry, Note
from twinprobe.record.rows import Leaf as PlainLeaf
from twinprobe.runs.leaf import TENSOR, Leaf, settle
from twinprobe.runs.names import BACKWARD, FORWARD
from twinprobe.runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER, TableBuilder

# What a call took and gave, in the order of roles, in which its rows stand.
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
    """The layout of a call that takes and gives tensors only, so many or under these names. Thousands share a few."""
    rows = []
    for (_, role, front), held in zip(_PARTS[direction], places, strict=True):
        rows += [(role, f"{front}.{one}") for one in (range(held) if isinstance(held, int) else held)]
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
            self._append_mixed(entry.name, parts, direction)
        else:
            self._add(entry.name, layout, values)

    def _add(self, name: str, layout: Layout, values: list[Any]) -> None:
        self.names.append(name)
        self.layouts.append(layout)
        self.value += values
        self.starts.append(len(self.value))

    def _add_mixed(self, name: str, rows: list[tuple[int, str, Any]]) -> None:
        numbered = enumerate(rows, len(self.value))
        self.plain |= {row: _plain(one, "") for row, (_, _, one) in numbered if type(one) is not Note}
        layout = tuple(role for role, _, _ in rows), tuple(suffix for _, suffix, _ in rows)
        self._add(name, layout, [one for _, _, one in rows])

    def _append_mixed(self, name: str, parts: dict[str, Any], direction: str) -> None:
        """A call with other values than tensors, or with tensors inside of others."""
        rows: list[tuple[int, str, Any]] = []
        for key, role, front in _PARTS[direction]:
            held = parts.get(key)
            if held:
                _flatten(role, front, held, rows)
        self._add_mixed(name, rows)

    def take(self, name: str, source: LiveRows, *parts: tuple[int, frozenset[int]]) -> None:
        """Append a call made of another's rows: of each of these calls those in these roles."""
        rows: list[tuple[int, str, Any]] = []
        for call, roles in parts:
            values = source.value[source.starts[call] : source.starts[call + 1]]
            rows += [row for row in zip(*source.layouts[call], values, strict=True) if row[0] in roles]
        self._add_mixed(name, rows)

    @cached_property
    def role(self) -> list[int]:
        """What each row is to its call."""
        return [role for roles, _ in self.layouts for role in roles]

    @cached_property
    def suffix(self) -> list[str]:
        """What follows the name of the call in that of each row."""
        return [suffix for _, suffixes in self.layouts for suffix in suffixes]

    @cached_property
    def op(self) -> list[int]:
        """The number of each row's call."""
        return [op for op, (first, end) in enumerate(pairwise(self.starts)) for _ in range(first, end)]

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


class Columns:
    """The columns of a run by name, each made when it is asked for."""

    def __init__(self, rows: LiveRows) -> None:
        self._rows = rows
        self._made: dict[str, list[Any]] = {}

    def __getitem__(self, name: str) -> list[Any]:
        found = self._made.get(name)
        if found is None:
            found = self._made[name] = getattr(self, f"_{name}")()
        return found

    def _op(self) -> list[int]:
        return self._rows.op

    def _role(self) -> list[int]:
        return self._rows.role

    def _name(self) -> list[str]:
        rows = self._rows
        return [f"{rows.names[op]}.{suffix}" for op, suffix in zip(rows.op, rows.suffix, strict=True)]

    def _kind(self) -> list[int]:
        return self._with_plain([TENSOR] * self._rows.starts[-1], "kind")

    def _shape(self) -> list[str | None]:
        return self._with_plain([type(one) is Note and _shown(one.shape) for one in self._rows.value], "shown_shape")

    def _dtype(self) -> list[str | None]:
        return self._with_plain([type(one) is Note and one.dtype for one in self._rows.value], "dtype")

    def _with_plain(self, column: list[Any], name: str) -> list[Any]:
        for row, leaf in self._rows.plain.items():
            column[row] = getattr(leaf, name)
        return column


def table_of(rows: LiveRows, names: list[str], leaf_of: Callable[[Note], Leaf], alike: bool) -> Any:
    """The rows as a table. ``alike``: tensors that look the same have the same leaf, as they are not measured."""
    builder = TableBuilder()
    known: dict[tuple[Any, ...], Leaf] = {}
    for op, role, name, value in zip(rows.op, rows.role, names, rows.value, strict=True):
        if type(value) is not Note:
            leaf = _plain(value, name.rpartition(".")[2])
        elif not alike:
            leaf = settle(leaf_of(value), "")
        else:
            key = value.type, value.dtype, value.shape, value.requires_grad
            if key not in known:
                known[key] = settle(leaf_of(value), "")
            leaf = known[key]
        builder.add(op, role, name, leaf)
    return builder.build()


def _plain(value: Any, argument: str) -> Leaf:
    """A value that is no tensor."""
    if value is None:
        return settle(None, argument)
    if isinstance(value, PlainLeaf):
        return settle(Leaf(str(value.json.get("type")), value=value.json["value"]), argument)
    return settle(Leaf(type(value).__name__, value=value), argument)


_texts: dict[tuple[int, ...], str] = {}


def _shown(shape: tuple[int, ...]) -> str:
    text = _texts.get(shape)
    if text is None:
        if len(_texts) > 10_000:
            _texts.clear()
        text = _texts[shape] = str(list(shape))
    return text
