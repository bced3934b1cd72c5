"""The tensor table of a run: one row per recorded value, columnar from the first chunk on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

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
        self._frames: list[pl.DataFrame] = []
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

    def build(self) -> pl.DataFrame:
        """All rows in order, those of one call sorted by role."""
        import polars as pl

        self._flush()
        frame = pl.concat(self._frames, rechunk=True)
        in_order = (frame["op"].to_numpy().astype(np.int64) * 8 + frame["role"].to_numpy()).argsort(kind="stable")
        if not np.array_equal(in_order, np.arange(len(in_order))):
            frame = frame[in_order]
        return frame

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
        columns["peer"] = pl.Series([leaf.peer for leaf in leaves], dtype=pl.String)
        self._frames.append(pl.DataFrame(columns))
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
