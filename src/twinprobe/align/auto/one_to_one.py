"""Two sequences in order, one to one, with one price for all gaps: by a table of scores, or cell by cell."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe.align.auto.sequence import Problem, Score, Step, no_groups, pair_in_order

_REMEMBERED = 10_000  # cells of a table whose answer is kept


def pair_by_table(scores: NDArray[Any], edge: float) -> list[Step]:
    """Pair two short sequences by a table of scores; equal tables, of which layer stacks make many, are solved once."""
    sizes = scores.shape[0], scores.shape[1]
    if scores.size > _REMEMBERED:
        return pair_by_cells(sizes, lambda at, to: scores[at, to], edge)
    return list(_paired_table(sizes, scores.astype(np.float64).tobytes(), edge))


@lru_cache(maxsize=4096)
def _paired_table(sizes: tuple[int, int], table: bytes, edge: float) -> tuple[Step, ...]:
    scores = np.frombuffer(table).reshape(sizes)
    return tuple(pair_by_cells(sizes, lambda at, to: scores[at, to], edge))


def pair_by_cells(
    sizes: tuple[int, int], score: Score, edge: float, guess: Sequence[tuple[int, int]] = (), widest: int | None = None
) -> list[Step]:
    """Pair two sequences one to one, with one price for all gaps."""
    edges = np.full(sizes[0] + 1, edge), np.full(sizes[1] + 1, edge)
    return pair_in_order(Problem(sizes, score, no_groups, edges), guess, widest)
