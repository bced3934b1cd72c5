"""What many values of a run have in common (type, shape and the like), spelled once for all of them."""

from __future__ import annotations

from json.encoder import encode_basestring
from typing import TYPE_CHECKING

import numpy as np

from twinprobe.runs.leaf import TENSOR

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

_COLUMNS = ["kind", "type", "dtype", "shape", "requires_grad"]


class Looks:
    """The text before and after the numbers of each row; one that is no tensor has its value in between."""

    def __init__(self, table: pl.DataFrame, *, requires_grad: bool) -> None:
        import polars as pl

        first, self._of_row = _distinct(table.select(_COLUMNS))
        rows = list(table.select(_COLUMNS)[first].iter_rows())
        self._before = pl.Series([_before(*row) for row in rows], dtype=pl.String)
        self._after = pl.Series([_after(requires_grad, *row) for row in rows], dtype=pl.String)

    def rows(self, start: int, end: int) -> tuple[pl.Series, pl.Series]:
        """The two texts of these rows."""
        places = self._of_row[start:end]
        return self._before.gather(places), self._after.gather(places)


def _distinct(table: pl.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """The first row of each look, and the look of each row."""
    import polars as pl

    key = np.zeros(table.height, dtype=np.int64)
    for column in table.get_columns():
        codes = column.cast(pl.Categorical).to_physical() if column.dtype == pl.String else column.cast(pl.UInt32)
        numbers = codes.cast(pl.Int64).fill_null(-1).to_numpy() + 1
        if int(key.max(initial=0)) >= 1 << 31:  # so that no product overflows
            _, key = np.unique(key, return_inverse=True)
        key = key * (int(numbers.max(initial=0)) + 1) + numbers
    _, first, of_row = np.unique(key, return_index=True, return_inverse=True)
    return first, of_row.astype(np.uint32)


def _before(kind: int, type_: str | None, dtype: str | None, shape: str | None, _grad: bool | None) -> str:
    told = _clean(type_ or "")
    if kind == TENSOR:
        return f'":{{"type":"{told}","dtype":"{_clean(dtype or "")}","shape":"{_clean(shape or "[]")}'
    return f'":{{"type":"{told}","value":"'


def _after(
    requires_grad: bool, kind: int, _type: str | None, dtype: str | None, shape: str | None, grad: bool | None
) -> str:
    if kind == TENSOR:
        return f'","requires_grad":"{"null" if grad is None else grad}' if requires_grad else ""
    return f'","dtype":"{_clean(dtype or "")}","shape":"{_clean(shape or "[]")}'


def _clean(text: str) -> str:
    return encode_basestring(text.replace("'", ""))[1:-1]
