"""What a recorder left in memory, as rows: which call, what to it, under which name, and the value itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from twinprobe.record.rows import Entry, Note
from twinprobe.record.rows import Leaf as PlainLeaf
from twinprobe.runs.leaf import TENSOR, Leaf, settle
from twinprobe.runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER, TableBuilder

# In the order of roles, in which the rows of a call stand.
_ROLES = (
    ("input_args", INPUT), ("input_kwargs", INPUT), ("input", INPUT), ("parameters", PARAMETER), ("output", OUTPUT),
)  # fmt: skip


@dataclass(slots=True)
class LiveRows:
    """One list per column. ``suffix`` is what follows the call's name, such as ``output.0``; ``starts`` has the first
    row of each call, and one past the last row of all."""

    op: list[int] = field(default_factory=list)
    role: list[int] = field(default_factory=list)
    suffix: list[str] = field(default_factory=list)
    value: list[Any] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)

    def add(self, op: int, role: int, suffix: str, value: Any) -> None:
        """Append a value, or all that are in it."""
        kind = type(value)
        if kind is list or kind is dict:
            for key, item in value.items() if kind is dict else enumerate(value):
                if type(item) is Note:
                    self.op.append(op)
                    self.role.append(role)
                    self.suffix.append(f"{suffix}.{key}")
                    self.value.append(item)
                else:
                    self.add(op, role, f"{suffix}.{key}", item)
        elif kind is not PlainLeaf or "value" in value.json:
            self.op.append(op)
            self.role.append(role)
            self.suffix.append(suffix)
            self.value.append(value)


class Columns:
    """The columns of a run by name, each made when it is asked for. Holds no tensor."""

    def __init__(self, rows: LiveRows, ops: list[str]) -> None:
        self._ops = ops
        self._suffix = rows.suffix
        self._plain = {row: _plain(one, "") for row, one in enumerate(rows.value) if type(one) is not Note}
        self._shape = [one.shape if type(one) is Note else None for one in rows.value]
        self._dtype = [one.dtype if type(one) is Note else None for one in rows.value]
        self._made: dict[str, list[Any]] = {"op": rows.op, "role": rows.role}

    def __getitem__(self, name: str) -> list[Any]:
        found = self._made.get(name)
        if found is None:
            found = self._made[name] = getattr(self, f"_{name}s")()
        return found

    def _names(self) -> list[str]:
        return [f"{self._ops[op]}.{suffix}" for op, suffix in zip(self["op"], self._suffix, strict=True)]

    def _kinds(self) -> list[int]:
        return self._with_plain([TENSOR] * len(self._shape), "kind")

    def _shapes(self) -> list[str | None]:
        return self._with_plain([None if one is None else _shown(one) for one in self._shape], "shown_shape")

    def _dtypes(self) -> list[str | None]:
        return self._with_plain(list(self._dtype), "dtype")

    def _with_plain(self, column: list[Any], name: str) -> list[Any]:
        for row, leaf in self._plain.items():
            column[row] = getattr(leaf, name)
        return column


def rows_of(entries: list[Entry]) -> LiveRows:
    """The rows of all calls, in the order in which they ended."""
    rows = LiveRows()
    add, starts, values = rows.add, rows.starts, rows.value
    for op, entry in enumerate(entries):
        starts.append(len(values))
        parts = entry.parts
        if entry.boxed:
            for key, (_, value) in parts.items():
                add(op, GRADIENT, key, value)
            continue
        for key, role in _ROLES:
            part = parts.get(key)
            if part is not None and part[1]:
                add(op, role, "input" if part[0] == "kwargs" else part[0], part[1])
    starts.append(len(values))
    return rows


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
