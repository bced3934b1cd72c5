"""Two layouts meet: what the shapes of one side say about the shards of the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from twinprobe.align.pairs import Pairs
from twinprobe.graph.parallel_merge import Merged
from twinprobe.graph.shards import ONE, REPLICAS, SHARDS, UNKNOWN, WORDS, blanked, whole_shapes
from twinprobe.runs.leaf import TENSOR
from twinprobe.runs.run import Run
from twinprobe.runs.table import STATS

Match = Callable[[Run, Run], Pairs]


@dataclass
class _Changes:
    """What is learnt of one side's rows: their whole shape, and whether their statistics must change."""

    shape: dict[int, str | None] = field(default_factory=dict)
    combine: set[int] = field(default_factory=set)
    forget: set[int] = field(default_factory=set)


class ShapeFitter:
    """A matcher that, once the rows are paired, gives shards their whole shape and the statistics that go with it.

    Shards of equal statistics look like replicas, and partial sums look like shards; the other side's shape tells.
    Shapes that fit nothing are left open, since a layout may well fold or pad them.
    """

    def __init__(self, match: Match, target: Merged, golden: Merged) -> None:
        self._match = match
        self._sides = (target, golden)

    def __call__(self, target: Run, golden: Run) -> Pairs:
        """Pair the rows and settle their shapes."""
        pairs = self._match(target, golden)
        both = np.flatnonzero((pairs.target >= 0) & (pairs.golden >= 0))
        changes = (_Changes(), _Changes())
        rows = [[merged.shards["relation"].to_list(), merged.shards["shapes"].to_list(), run.table["kind"].to_list()]
                for merged, run in zip(self._sides, (target, golden), strict=True)]  # fmt: skip
        for at in both.tolist():
            places = int(pairs.target[at]), int(pairs.golden[at])
            (t_relation, t_shapes, t_kind), (g_relation, g_shapes, g_kind) = (
                [column[place] for column in side] for side, place in zip(rows, places, strict=True)
            )
            if t_kind != TENSOR or g_kind != TENSOR:
                continue
            if t_relation in (ONE, REPLICAS) and g_relation in (ONE, REPLICAS) and t_shapes[0] == g_shapes[0]:
                continue
            _fit(places, (t_relation, g_relation), (t_shapes, g_shapes), changes)
        for merged, run, change in zip(self._sides, (target, golden), changes, strict=True):
            _apply(merged, run, change)
        return pairs


def _fit(
    places: tuple[int, int],
    relations: tuple[str, str],
    shapes: tuple[list[str], list[str]],
    changes: tuple[_Changes, _Changes],
) -> None:
    as_is = [side[0] for side in shapes]
    whole = [[str(shape) for shape in whole_shapes(side)] if len(side) > 1 else [] for side in shapes]
    for one, other in ((0, 1), (1, 0)):
        if as_is[other] in whole[one] and relations[other] != SHARDS:
            changes[one].shape[places[one]] = as_is[other]
            if relations[one] == REPLICAS:
                changes[one].combine.add(places[one])
            return
    common = [shape for shape in whole[0] if shape in whole[1]]
    if common and SHARDS in relations:
        for at in (0, 1):
            changes[at].shape[places[at]] = common[0]
        return
    for at in (0, 1):
        if as_is[0] == as_is[1] and relations[at] == SHARDS:
            changes[at].forget.add(places[at])  # as large as the whole on the other side: a partial sum
        elif as_is[0] != as_is[1]:
            changes[at].shape[places[at]] = None


def _apply(merged: Merged, run: Run, change: _Changes) -> None:
    import polars as pl

    if not (change.shape or change.combine or change.forget):
        return
    rows = pl.Series(range(run.table.height))
    table = run.table
    if change.shape:
        shapes = table["shape"].to_list()
        for at, shape in change.shape.items():
            shapes[at] = shape
        table = table.with_columns(pl.Series("shape", shapes, dtype=pl.String))
    if change.combine:
        chosen = rows.is_in(list(change.combine))
        table = table.with_columns(
            pl.when(chosen).then(merged.shards[f"{stat}_all"]).otherwise(pl.col(stat)).alias(stat) for stat in STATS
        )
    if change.forget:
        table = table.with_columns(blanked(pl.lit(rows.is_in(list(change.forget)))))
        for at in change.forget:
            op, suffix = merged.shards["op"][at], merged.shards["suffix"][at]
            told = [text for text in merged.info.get(op, []) if not text.startswith(f"{suffix.strip('.')} (")]
            merged.info[op] = [*told, f"{suffix.strip('.')}: {WORDS[UNKNOWN]}"]
    run.table = table
