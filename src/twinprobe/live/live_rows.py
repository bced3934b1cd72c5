"""What a recorder left in memory, as rows: which call, what to it, under which name, and the value itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

from twinprobe.record.rows import Entry, Note
from twinprobe.record.rows import Leaf as PlainLeaf
from twinprobe.runs.leaf import TENSOR, Leaf, settle
from twinprobe.runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER, TableBuilder

_MOST_SUFFIXES = 10_000


class _Suffixes(dict[Any, str]):
    """``output.0`` by 0, each made once: thousands of rows share a few of them."""

    def __init__(self, front: str) -> None:
        super().__init__()
        self._front = front

    def __missing__(self, key: Any) -> str:
        if len(self) > _MOST_SUFFIXES:
            self.clear()
        made = self[key] = f"{self._front}.{key}"
        return made


# What a call took and gave, in the order of roles, in which its rows stand.
_TAKEN, _GIVEN = _Suffixes("input"), _Suffixes("output")
_FORWARD = (
    ("input_args", INPUT, _TAKEN), ("input_kwargs", INPUT, _TAKEN), ("parameters", PARAMETER, _Suffixes("parameters")),
    ("output", OUTPUT, _GIVEN),
)  # fmt: skip
_BACKWARD = (("input", INPUT, _TAKEN), ("output", OUTPUT, _GIVEN))


@dataclass
class LiveRows:
    """One list per column, and the names of the calls in the order in which they ended.

    ``suffix`` is what follows the call's name, such as ``output.0``; ``starts`` has the first row of each call, and one
    past the last row of all.
    """

    names: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    role: list[int] = field(default_factory=list)
    suffix: list[str] = field(default_factory=list)
    value: list[Any] = field(default_factory=list)

    def append(self, entry: Entry) -> None:
        """Take over a call as soon as it has ended: what it is made of is at hand now, and need not be kept."""
        parts = entry.parts
        if entry.boxed:
            for key, (_, value) in parts.items():
                self._add(GRADIENT, key, value)
        else:
            roles, suffixes, values = self.role, self.suffix, self.value
            for key, role, suffix in _BACKWARD if "input" in parts else _FORWARD:
                held = parts[key][1] if key in parts else None
                if not held:
                    continue
                for place, value in held.items() if type(held) is dict else enumerate(held):
                    if type(value) is Note:
                        roles.append(role)
                        suffixes.append(suffix[place])
                        values.append(value)
                    else:
                        self._add(role, suffix[place], value)
        self.names.append(entry.name)
        self.starts.append(len(self.value))

    def _add(self, role: int, suffix: str, value: Any) -> None:
        """Append a value, or all that are in it."""
        kind = type(value)
        if kind is list:
            for at, item in enumerate(value):
                self._add(role, f"{suffix}.{at}", item)
        elif kind is dict:
            for key, item in value.items():
                self._add(role, f"{suffix}.{key}", item)
        elif kind is not PlainLeaf or "value" in value.json:
            self.role.append(role)
            self.suffix.append(suffix)
            self.value.append(value)

    def take(self, name: str, source: LiveRows, *parts: tuple[int, frozenset[int]]) -> None:
        """Append a call made of another's rows: of each of these calls those in these roles."""
        for call, roles in parts:
            for row in range(source.starts[call], source.starts[call + 1]):
                if source.role[row] in roles:
                    self.role.append(source.role[row])
                    self.suffix.append(source.suffix[row])
                    self.value.append(source.value[row])
        self.names.append(name)
        self.starts.append(len(self.value))

    @cached_property
    def op(self) -> list[int]:
        """The number of each row's call."""
        return [op for op, (first, end) in enumerate(pairwise(self.starts)) for _ in range(first, end)]

    @cached_property
    def plain(self) -> dict[int, Leaf]:
        """The rows that are no tensors."""
        return {row: _plain(one, "") for row, one in enumerate(self.value) if type(one) is not Note}

    @cached_property
    def dtypes(self) -> list[str | None]:
        """As each framework spells them; None for what is no tensor."""
        return [one.dtype if type(one) is Note else None for one in self.value]

    @cached_property
    def shapes(self) -> list[tuple[int, ...] | None]:
        """None for what is no tensor."""
        return [one.shape if type(one) is Note else None for one in self.value]

    def release(self) -> None:
        """Let go of all values; what they look like stays."""
        _ = self.plain, self.dtypes, self.shapes
        self.value = []


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
        return self._with_plain([None if one is None else _shown(one) for one in self._rows.shapes], "shown_shape")

    def _dtype(self) -> list[str | None]:
        return self._with_plain(list(self._rows.dtypes), "dtype")

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
