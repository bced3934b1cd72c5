"""A column of the tensor table that grows chunk by chunk, and takes little memory while it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

# So many chunks become one. More are not joined: room for a whole column is found only beside all of the chunks.
_TOGETHER = 16
_GATHERED = 1 << 17
# What polars keeps for each text beside its bytes.
_VIEW = 16


class Column:
    """Chunks of one kind. One of texts in which there is none is only the number of its rows."""

    __slots__ = ("_bytes", "_large", "_rows", "_small")

    def __init__(self) -> None:
        self._large: list[pl.Series | int] = []
        self._small: list[pl.Series | int] = []
        self._rows = self._bytes = 0

    def add(self, chunk: pl.Series | int, text_bytes: int = 0) -> None:
        """Append a chunk, with so many bytes of text that no other column has."""
        self._rows += chunk if isinstance(chunk, int) else len(chunk)
        self._bytes += text_bytes
        self._small.append(chunk)
        if len(self._small) == _TOGETHER:
            self._large.append(_joined(self._small))
            self._small = []

    def copy(self) -> Column:
        """Another column with the same chunks."""
        other = Column()
        other._large, other._small, other._rows = self._large.copy(), self._small.copy(), self._rows
        return other

    @property
    def text_cost(self) -> int:
        """The bytes of memory that it takes as a column of texts."""
        empty = all(isinstance(chunk, int) for chunks in (self._large, self._small) for chunk in chunks)
        return 0 if empty else self._bytes + _VIEW * self._rows

    def whole(self) -> pl.Series:
        """All rows, once. Large columns consist of several chunks."""
        import polars as pl

        parts = self._large
        if self._small:
            parts.append(_joined(self._small))
        self._large, self._small = [], []
        if all(isinstance(part, int) for part in parts):
            return _nothing(self._rows)
        series = [_nothing(part) if isinstance(part, int) else part for part in parts]
        return series[0] if len(series) == 1 else pl.concat(series, rechunk=False)


def _joined(chunks: list[pl.Series | int]) -> pl.Series | int:
    import polars as pl

    rows = [chunk for chunk in chunks if isinstance(chunk, int)]
    if len(rows) == len(chunks):
        return sum(rows)
    return pl.concat([_nothing(chunk) if isinstance(chunk, int) else chunk for chunk in chunks], rechunk=True)


def _nothing(rows: int) -> pl.Series:
    import polars as pl

    return pl.Series(dtype=pl.String).clear(rows)


def gathered(column: pl.Series, places: NDArray[np.uint32]) -> pl.Series:
    """These rows of a column, in pieces that find room where those of the last column were."""
    import polars as pl

    parts = [column.gather(places[at : at + _GATHERED]) for at in range(0, len(places), _GATHERED)]
    return pl.concat(parts, rechunk=False) if parts else column.clear()


def text_chunk(texts: list[str] | list[str | None]) -> tuple[pl.Series | int, int]:
    """A chunk of texts, and how many bytes they have."""
    import polars as pl

    if texts.count(None) == len(texts):  # type: ignore[arg-type]  # what is not there can be counted as well
        return len(texts), 0
    chunk = pl.Series(texts, dtype=pl.String)
    return chunk, int(chunk.estimated_size())
