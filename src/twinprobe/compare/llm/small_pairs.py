"""Pairs of files that are no larger than a few megabytes: read one after the other, measured many at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinprobe.compare.llm.results import MeasuredRows
from twinprobe.measure.llm_batch import numbers_of_rows, rows_of_pairs
from twinprobe.runs.llm.described import DTYPES, Described
from twinprobe.runs.llm.large_file import LargeFile, NotLarge
from twinprobe.runs.llm.small_files import CHUNK, SmallFiles


class SmallPairs:
    """Collects pairs of files in memory and measures many of them with one call."""

    def __init__(self, my: SmallFiles, golden: SmallFiles, results: MeasuredRows) -> None:
        self._my, self._golden, self._results = my, golden, results
        self._waiting: dict[str, list[tuple[int, int, int, int]]] = {}
        self._measured: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []

    def take(self, at: int, my_name: str, golden_name: str) -> bool:
        """Whether the files of a row are two of those: then its numbers will be there in the end."""
        my, golden = self._my, self._golden
        if my.is_full or golden.is_full:
            self._measure()
        before = my.used, golden.used
        mine = my.read(my_name)
        theirs = golden.read(golden_name) if mine is not None else None
        if mine is None or theirs is None:
            my.used, golden.used = before
            return self._take_large(at, my_name, golden_name)
        (my_first, m), (golden_first, g) = mine, theirs
        if m.dtype != g.dtype or m.elements != g.elements:
            my.used, golden.used = before
            return False
        waiting = self._waiting.get(m.dtype)
        if waiting is None:
            waiting = self._waiting[m.dtype] = []
        waiting.append((at, my_first, golden_first, m.elements))
        self._describe(at, m, g)
        return True

    def _describe(self, at: int, my: Described, golden: Described) -> None:
        dtypes, shapes = self._results.dtypes, self._results.shapes
        dtypes[0][at], dtypes[1][at] = my.shown_dtype, golden.shown_dtype
        shapes[0][at], shapes[1][at] = my.shown_shape, golden.shown_shape

    def _take_large(self, at: int, my_name: str, golden_name: str) -> bool:
        """Whether the files of a row can be read and measured piece by piece: then they are."""
        try:
            with self._my.open_large(my_name) as my, self._golden.open_large(golden_name) as golden:
                m, g = my.what, golden.what
                if m.dtype != g.dtype or m.elements != g.elements:
                    return False
                found = self._streamed(my, golden)
        except NotLarge:
            return False
        self._measured.append((np.array([(at, 0, 0, m.elements)], np.int64), found))
        self._describe(at, m, g)
        return True

    def _streamed(self, my: LargeFile, golden: LargeFile) -> NDArray[np.float64]:
        dtype, elements = my.what.dtype, my.what.elements
        (my_at, my_room), (golden_at, golden_room) = self._my.room(), self._golden.room()
        width = DTYPES[dtype]
        rows = None
        for first in range(0, elements, CHUNK):
            count = min(CHUNK, elements - first)
            my.read(first, count, my_room)
            golden.read(first, count, golden_room)
            places = np.array([(my_at // width, golden_at // width, count)], np.int64)
            rows = rows_of_pairs(dtype, self._my.octets, self._golden.octets, places, rows)
        my.check()
        golden.check()
        assert rows is not None
        return rows

    def _measure(self) -> None:
        for dtype, pairs in self._waiting.items():
            table = np.array(pairs, np.int64)
            places = np.ascontiguousarray(table[:, 1:])
            self._measured.append((table, rows_of_pairs(dtype, self._my.octets, self._golden.octets, places)))
        self._waiting.clear()
        self._my.used = self._golden.used = 0

    def finish(self) -> list[int]:
        """Put the numbers of all pairs among the results; the rows with NaN or inf, which are not there yet."""
        self._measure()
        if not self._measured:
            return []
        table, found = (np.concatenate(parts) for parts in zip(*self._measured, strict=True))
        rows = table[:, 0]
        numbers, sound = numbers_of_rows(found, table[:, 3])
        self._results.put_numbers(rows[sound], numbers[sound])
        unsound: list[int] = rows[~sound].tolist()
        return unsound
