"""Pairs of small files: read one after the other, measured many at a time."""

from __future__ import annotations

import numpy as np

from twinprobe.compare.llm.results import Measured
from twinprobe.measure.llm_batch import measure_llm_pairs
from twinprobe.runs.llm.small_files import Held, SmallFiles


class SmallPairs:
    """Collects pairs of small files in memory and measures many of them with one call."""

    def __init__(self, my: SmallFiles, golden: SmallFiles) -> None:
        self._my, self._golden = my, golden
        self._waiting: dict[str, list[tuple[int, Held, Held]]] = {}
        self._done: dict[int, Measured] = {}

    def take(self, at: int, my_name: str, golden_name: str) -> bool:
        """Whether these are two of those: then their result will be there in the end, unless they hold NaN or inf."""
        my, golden = self._my, self._golden
        if my.is_full or golden.is_full:
            self._measure()
        before = my.used, golden.used
        mine = my.read(my_name)
        theirs = golden.read(golden_name) if mine is not None else None
        if mine is None or theirs is None or mine.what[:2] != theirs.what[:2]:
            my.used, golden.used = before
            return False
        self._waiting.setdefault(mine.what.dtype, []).append((at, mine, theirs))
        return True

    def results(self) -> dict[int, Measured]:
        self._measure()
        return self._done

    def _measure(self) -> None:
        for dtype, pairs in self._waiting.items():
            places = np.array([(mine.first, theirs.first, mine.what.elements) for _, mine, theirs in pairs], np.int64)
            metrics = measure_llm_pairs(dtype, self._my.octets, self._golden.octets, places)
            for (at, (_, m), (_, g)), one in zip(pairs, metrics, strict=True):
                if one is not None:
                    dtypes, shapes = (m.shown_dtype, g.shown_dtype), (m.shown_shape, g.shown_shape)
                    self._done[at] = Measured(one, "", dtypes, shapes)
        self._waiting.clear()
        self._my.used = self._golden.used = 0
