"""The tensor table of a run: one row per recorded value, columnar from the first chunk on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from twinprobe.runs.leaf import TENSOR, VALUE, Leaf, meaning, special_number, value_digest

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


class TableBuilder:
    """Collects settled leaves and turns them into columns chunk by chunk, so that few objects live at a time."""

    def __init__(self) -> None:
        self._columns: dict[str, list[pl.Series]] = {}
        self._rows = 0
        self._restarts: dict[int, int] = {}
        self._op: list[int] = []
        self._role: list[int] = []
        self._name: list[str] = []
        self._leaf: list[Leaf] = []

    def add(self, op: int, role: int, name: str, leaf: Leaf) -> None:
        """Append one row."""
        self._op.append(op)
        self._role.append(role)
        self._name.append(name)
        self._leaf.append(leaf)

    def end_op(self) -> None:
        """Say that a call is complete: a chunk may end here."""
        if len(self._op) >= _CHUNK:
            self._flush()

    def restart(self, op: int) -> None:
        """Forget the rows that this call has so far."""
        self._restarts[op] = self._rows + len(self._op)

    def build(self) -> pl.DataFrame:
        """All rows in order, those of one call sorted by role. The builder is empty after that."""
        import polars as pl

        self._flush()
        # One column after the other, so that there is never a second copy of all.
        columns = {"op": self._joined("op"), "role": self._joined("role")}
        order = self._order(columns["op"].to_numpy(), columns["role"].to_numpy())
        places = None if order is None else pl.Series(order, dtype=pl.UInt32)
        for name in (*columns, *self._columns):
            column = columns[name] if name in columns else self._joined(name)
            columns[name] = column if places is None else column.gather(places)
        return pl.DataFrame(columns)

    def _joined(self, name: str) -> pl.Series:
        import polars as pl

        return pl.concat(self._columns.pop(name), rechunk=True)

    def _order(self, op: NDArray[Any], role: NDArray[Any]) -> NDArray[Any] | None:
        """Which rows, in which order; None if all of them are in order already."""
        order = (op.astype(np.int64) * 8 + role).argsort(kind="stable")
        if self._restarts:
            begins = np.zeros(int(op.max(initial=0)) + 1, np.int64)
            begins[list(self._restarts)] = list(self._restarts.values())
            order = order[order >= begins[op[order]]]
        return None if np.array_equal(order, np.arange(len(op))) else order

    def _flush(self) -> None:
        import polars as pl

        leaves = self._leaf
        columns: dict[str, Any] = {
            "op": pl.Series(self._op, dtype=pl.Int32),
            "role": pl.Series(self._role, dtype=pl.UInt8),
            "name": pl.Series(self._name, dtype=pl.String),
            "kind": pl.Series([leaf.kind for leaf in leaves], dtype=pl.UInt8),
            "dtype": pl.Series([leaf.dtype for leaf in leaves], dtype=pl.String),
            "shape": pl.Series([leaf.shown_shape for leaf in leaves], dtype=pl.String),
            "requires_grad": pl.Series([leaf.requires_grad for leaf in leaves], dtype=pl.Boolean),
        }
        for stat, field in zip(STATS, _FIELDS, strict=True):
            columns.update(_stat_columns(stat, [getattr(leaf, field) for leaf in leaves], leaves))
        columns["digest"] = pl.Series([None if leaf.md5 is None else str(leaf.md5) for leaf in leaves], dtype=pl.String)
        columns["value_digest"] = pl.Series(
            [None if leaf.kind == TENSOR else value_digest(leaf) for leaf in leaves], dtype=pl.String
        )
        columns["meaning"] = pl.Series(
            [meaning(leaf) if leaf.kind == VALUE else None for leaf in leaves], dtype=pl.String
        )
        columns["file"] = pl.Series([leaf.data_name for leaf in leaves], dtype=pl.String)
        columns["layout"] = pl.Series([leaf.layout for leaf in leaves], dtype=pl.String)
        columns["type"] = pl.Series([leaf.type for leaf in leaves], dtype=pl.String)
        columns["peer"] = pl.Series([leaf.peer for leaf in leaves], dtype=pl.String)
        for name, column in columns.items():
            self._columns.setdefault(name, []).append(column)
        self._rows += len(self._op)
        self._op, self._role, self._name, self._leaf = [], [], [], []


def _stat_columns(stat: str, values: list[Any], leaves: list[Leaf]) -> dict[str, Any]:
    """Three columns for one statistic: its number, its kind, and its text where it is no plain float."""
    import polars as pl

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
    numbers = np.array(values, dtype=np.float64)
    return {
        stat: pl.Series(numbers),
        f"{stat}_kind": pl.Series(codes),
        f"{stat}_text": pl.Series(texts, dtype=pl.String),
    }
