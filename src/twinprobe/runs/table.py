"""The tensor table of a run: one row per recorded value, columnar from the first chunk on."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from twinprobe.runs.leaf import TENSOR, VALUE, Leaf, meaning, special_number, value_digest
from twinprobe.runs.table_column import Column, gathered, text_chunk

if TYPE_CHECKING:
    import polars as pl

# What a row is to its call. Rows of one call stand in this order.
INPUT, PARAMETER, OUTPUT, GRADIENT, POINT = range(5)

# What a statistic is: nothing recorded, or a value of one of these kinds.
ABSENT, FLOAT, INT, TEXT, BOOL = range(5)

STATS = ("max", "min", "mean", "norm")
_FIELDS = ("Max", "Min", "Mean", "Norm")
_CODES = {float: FLOAT, int: INT, str: TEXT, bool: BOOL, type(None): TEXT}
_CHUNK = 8192
# Texts may be long: so many bytes of a file make a chunk, however few rows they are.
_CHUNK_BYTES = 2 << 20
# Bytes of a row beside its texts: call, role, kind, and four statistics with their kinds.
_ROW = 4 + 1 + 1 + 4 * 9
_SHOWN = tuple(f"{stat}_text" for stat in STATS)
_TEXTS = frozenset(
    ("name", "dtype", "shape", "digest", "value_digest", "meaning", "file", "layout", "type", "peer", *_SHOWN)
)
_NAMES = ("op", "role", "name", "kind", "dtype", "shape", "requires_grad",
          *(f"{stat}{end}" for stat in STATS for end in ("", "_kind", "_text")),
          "digest", "value_digest", "meaning", "file", "layout", "type", "peer")  # fmt: skip


class TableBuilder:
    """Collects settled leaves and turns them into columns chunk by chunk, so that few objects live at a time."""

    def __init__(self) -> None:
        self._columns: defaultdict[str, Column] = defaultdict(Column)
        self._rows = 0
        self._restarts: dict[int, int] = {}
        self._op: list[int] = []
        self._role: list[int] = []
        self._name: list[str] = []
        self._leaf: list[Leaf] = []
        self._chunk_began = 0
        self._last_place = -1
        self._in_order = True

    @property
    def cost(self) -> int:
        """The bytes of memory of all rows that have become columns, and of putting them in order."""
        texts = sum(column.text_cost for name, column in self._columns.items() if name in _TEXTS)
        return (_ROW * self._rows + texts) * (2 if self._restarts or not self._in_order else 1)

    def add(self, op: int, role: int, name: str, leaf: Leaf) -> None:
        """Append one row."""
        self._op.append(op)
        self._role.append(role)
        self._name.append(name)
        self._leaf.append(leaf)

    def end_op(self, place: int = 0) -> bool:
        """Say that a call is complete and ``place`` bytes of the file are read; tell whether its chunk is, too."""
        if len(self._op) < _CHUNK and place - self._chunk_began < _CHUNK_BYTES:
            return False
        self._flush()
        self._chunk_began = place
        return True

    def restart(self, op: int) -> None:
        """Forget the rows that this call has so far."""
        self._restarts[op] = self._rows + len(self._op)

    def build(self) -> pl.DataFrame:
        """All rows in order, those of one call sorted by role. The builder is empty after that."""
        import polars as pl

        self._flush()
        columns = {name: self._columns.pop(name).whole() for name in _NAMES if name in self._columns}
        columns |= {name: columns[_SHOWN[0]].alias(name) for name in _SHOWN if name not in columns}
        columns = {name: columns[name] for name in _NAMES}
        if self._restarts or not self._in_order:
            order = self._order(columns["op"].to_numpy(), columns["role"].to_numpy())
            for name in columns:  # one after the other, so that there is never a second copy of all
                columns[name] = gathered(columns[name], order)
        return pl.DataFrame(columns)

    def _order(self, op: NDArray[Any], role: NDArray[Any]) -> NDArray[np.uint32]:
        """Which rows, in which order."""
        order = _places(op, role).argsort(kind="stable").astype(np.uint32)
        if self._restarts:
            begins = np.zeros(int(op.max(initial=0)) + 1, np.uint32)
            begins[list(self._restarts)] = list(self._restarts.values())
            order = order[order >= begins[op[order]]]
        return order

    def _note_order(self, places: NDArray[np.int64]) -> None:
        if len(places):
            first_fits, self._last_place = bool(places[0] >= self._last_place), int(places[-1])
            self._in_order &= first_fits and bool((places[1:] >= places[:-1]).all())

    def _flush(self) -> None:
        import polars as pl

        leaves = self._leaf
        op, role = pl.Series(self._op, dtype=pl.Int32), pl.Series(self._role, dtype=pl.UInt8)
        self._note_order(_places(op.to_numpy(), role.to_numpy()))
        self._columns["op"].add(op)
        self._columns["role"].add(role)
        self._add_texts("name", self._name)
        self._columns["kind"].add(pl.Series([leaf.kind for leaf in leaves], dtype=pl.UInt8))
        self._add_texts("dtype", [leaf.dtype for leaf in leaves])
        self._add_texts("shape", [leaf.shown_shape for leaf in leaves])
        self._columns["requires_grad"].add(pl.Series([leaf.requires_grad for leaf in leaves], dtype=pl.Boolean))
        self._put_statistics(leaves)
        self._add_texts("digest", [None if leaf.md5 is None else str(leaf.md5) for leaf in leaves])
        self._add_texts("value_digest", [None if leaf.kind == TENSOR else value_digest(leaf) for leaf in leaves])
        self._add_texts("meaning", [meaning(leaf) if leaf.kind == VALUE else None for leaf in leaves])
        self._add_texts("file", [leaf.data_name for leaf in leaves])
        self._add_texts("layout", [leaf.layout for leaf in leaves])
        self._add_texts("type", [leaf.type for leaf in leaves])
        self._add_texts("peer", [leaf.peer for leaf in leaves])
        self._rows += len(self._op)
        self._op, self._role, self._name, self._leaf = [], [], [], []

    def _put_statistics(self, leaves: list[Leaf]) -> None:
        """Three columns for each: its number, its kind, and its text where it is no plain float."""
        import polars as pl

        shown: list[list[str | None]] = []
        for stat, field in zip(STATS, _FIELDS, strict=True):
            numbers, codes, texts = _stat_columns([getattr(leaf, field) for leaf in leaves], leaves)
            self._columns[stat].add(pl.Series(numbers))
            self._columns[f"{stat}_kind"].add(pl.Series(codes))
            shown.append(texts)
        first, first_bytes = text_chunk(shown[0])
        # A value that is no tensor is shown in all four. What is the same in all of them is there once.
        for column, texts in zip(_SHOWN[1:], shown[1:], strict=True):
            same = texts == shown[0]
            if column not in self._columns and not same:
                self._columns[column] = self._columns[_SHOWN[0]].copy()
            if column in self._columns:
                self._columns[column].add(*((first, 0) if same else text_chunk(texts)))
        self._columns[_SHOWN[0]].add(first, first_bytes)

    def _add_texts(self, name: str, texts: list[str] | list[str | None]) -> None:
        self._columns[name].add(*text_chunk(texts))


def _places(op: NDArray[Any], role: NDArray[Any]) -> NDArray[np.int64]:
    """What rows are ordered by."""
    places: NDArray[np.int64] = op.astype(np.int64) * 8 + role
    return places


def _stat_columns(
    values: list[Any], leaves: list[Leaf]
) -> tuple[NDArray[np.float64], NDArray[np.uint8], list[str | None]]:
    """One statistic of all rows: its number, its kind, and its text where it is no plain float."""
    codes = np.fromiter(map(_CODES.__getitem__, map(type, values)), dtype=np.uint8, count=len(values))
    texts: list[str | None] = [None] * len(values)
    odd = np.flatnonzero(codes != FLOAT)
    if len(odd):
        values = list(values)
        for at in odd.tolist():
            value = values[at]
            if type(value) is str:
                number = special_number(value) if leaves[at].kind == TENSOR else None
                values[at] = number
                if number is not None:
                    codes[at] = FLOAT
                    continue
                texts[at] = value
            else:
                texts[at] = str(value)
                if type(value) is int and abs(value) > 1 << 1000:
                    values[at] = None
    return np.array(values, dtype=np.float64), codes, texts
