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

# In the order of roles, in which the rows of a call stand.
_FORWARD = (("input_args", INPUT), ("input_kwargs", INPUT), ("parameters", PARAMETER), ("output", OUTPUT))
_BACKWARD = (("input", INPUT), ("output", OUTPUT))


@dataclass
class LiveRows:
    """One list per column. ``suffix`` is what follows the call's name, such as ``output.0``; ``starts`` has the first
    row of each call, and one past the last row of all."""

    role: list[int] = field(default_factory=list)
    suffix: list[str] = field(default_factory=list)
    value: list[Any] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)

    def add(self, role: int, suffix: str, value: Any) -> None:
        """Append a value, or all that are in it."""
        kind = type(value)
        if kind is list or kind is dict:
            roles, suffixes, values = self.role, self.suffix, self.value
            for key, item in value.items() if kind is dict else enumerate(value):
                if type(item) is Note:
                    roles.append(role)
                    suffixes.append(f"{suffix}.{key}")
                    values.append(item)
                else:
                    self.add(role, f"{suffix}.{key}", item)
        elif kind is not PlainLeaf or "value" in value.json:
            self.role.append(role)
            self.suffix.append(suffix)
            self.value.append(value)

    @cached_property
    def op(self) -> list[int]:
        """The number of each row's call."""
        return [op for op, (first, end) in enumerate(pairwise(self.starts)) for _ in range(first, end)]

    @cached_property
    def plain(self) -> dict[int, Leaf]:
        """The rows that are no tensors."""
        return {row: _plain(one, "") for row, one in enumerate(self.value) if type(one) is not Note}

    def release(self) -> None:
        """Let go of all tensors; what they look like stays."""
        for one in self.value:
            if type(one) is Note:
                one.row = None


class Columns:
    """The columns of a run by name, each made when it is asked for."""

    def __init__(self, rows: LiveRows, ops: list[str]) -> None:
        self._rows = rows
        self._ops = ops
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
        return [f"{self._ops[op]}.{suffix}" for op, suffix in zip(self._rows.op, self._rows.suffix, strict=True)]

    def _kind(self) -> list[int]:
        return self._of_all(lambda _: TENSOR, "kind")

    def _shape(self) -> list[str | None]:
        return self._of_all(lambda note: _shown(note.shape), "shown_shape")

    def _dtype(self) -> list[str | None]:
        return self._of_all(lambda note: note.dtype, "dtype")

    def _of_all(self, of_tensor: Callable[[Note], Any], of_plain: str) -> list[Any]:
        plain = self._rows.plain
        return [
            getattr(plain[row], of_plain) if row in plain else of_tensor(note)
            for row, note in enumerate(self._rows.value)
        ]


def rows_of(entries: list[Entry]) -> LiveRows:
    """The rows of all calls, in the order in which they ended."""
    rows = LiveRows()
    add, starts, values = rows.add, rows.starts, rows.value
    for entry in entries:
        starts.append(len(values))
        parts = entry.parts
        if entry.boxed:
            for key, (_, value) in parts.items():
                add(GRADIENT, key, value)
            continue
        for key, role in _BACKWARD if "input" in parts else _FORWARD:
            segment, value = parts.get(key, _NOTHING)
            if value:
                add(role, "input" if segment == "kwargs" else segment, value)
    starts.append(len(values))
    return rows


_NOTHING = ("", None)


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
