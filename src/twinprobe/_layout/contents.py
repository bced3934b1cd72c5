"""What the values of ranks tell where shapes do not: the order in which pieces follow one another, and whose differ.

Context parallel ranks that gather keys and values have them in the order of the ranks, each with a stretch from the
front and one from the back of the sequence. Tensor parallel ranks that hold a fused projection have their own queries,
keys and values one behind the other. Both are the same numbers in another place: statistics agree, elements do not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise, product
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from twinprobe._align.calls import dims, epsilon
from twinprobe._layout.pieces import AXES, Shape, load_whole, rearranged_recipe
from twinprobe._layout.ranks import token_shape
from twinprobe._layout.whole import Whole
from twinprobe._measure.elements import numbers
from twinprobe._runs.run import Run
from twinprobe._runs.table import STATS
from twinprobe.errors import TwinProbeError

if TYPE_CHECKING:
    import polars as pl

_FAR, _APART = 0.999, 0.9  # a cosine below this is no rounding, nor the noise of 16 bits or of earlier steps
_CLOSE = 1e-3  # relative: statistics of the same numbers in float32 or float16, however they were rounded
_ALIKE = 0.3  # the same, of values with such noise
_NEARER = 0.3  # another order counts where it leaves less than this of the distance
_MOST_QUERIES = 64  # heads of queries to one of keys
_MOST_ORDERS = 256
_GATHERED, _FUSED = "gathered by context parallel ranks", "of fused projections, cut in their parts on each rank"


class Order(NamedTuple):
    """Stretches along a dimension in the order in which they follow one another; in each of so many groups."""

    dim: int
    groups: int
    stretches: tuple[tuple[int, int], ...]
    kind: str

    def places(self) -> NDArray[np.int64]:
        """Where each element along the dimension lies now."""
        inner = np.concatenate([np.arange(*stretch) for stretch in self.stretches])
        places: NDArray[np.int64] = (np.arange(self.groups)[:, None] * inner.size + inner).reshape(-1)
        return places


def put_in_order(target: Run, golden: Run, pairs: pl.DataFrame, metrics: pl.DataFrame) -> dict[int, tuple[str, str]]:
    """The rows of a measured pair table whose elements agree in another order, with the files to read them from."""
    found: dict[int, tuple[str, str]] = {}
    counts: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    runs = target, golden
    if not any(isinstance(run, Whole) and (run.layout.cp > 1 or run.layout.tp > 1) for run in runs):
        return found
    plain = (pairs["turn"].is_null() & ~pairs["joined"]).to_numpy()
    with np.errstate(invalid="ignore"):
        cosine = metrics["cosine"].fill_null(1.0).to_numpy()
        moved = (cosine < _FAR) & _same_statistics(pairs, _CLOSE)
        moved |= (cosine < _APART) & _same_statistics(pairs, _ALIKE)
    for row in np.flatnonzero(moved & plain).tolist():
        shape = dims(pairs["g_shape"][row])
        files = pairs["t_file"][row], pairs["g_file"][row]
        if not shape or None in files or dims(pairs["t_shape"][row]) != shape:
            continue
        orders = [_orders(run, pairs[f"{side}_row"][row], shape) for run, side in zip(runs, "tg", strict=True)]
        chosen = _nearest(runs, files, shape, orders) if sum(map(len, orders)) > 2 else None
        if chosen is None:
            continue
        found[row] = (rearranged_recipe(files[0], chosen[0]), rearranged_recipe(files[1], chosen[1]))
        for counter, side in zip(counts, chosen, strict=True):
            counter.update({order.kind for order in side})
    for run, counter in zip(runs, counts, strict=True):
        if isinstance(run, Whole):
            run.assumed += [
                f"{count:,} value{'s' * (count > 1)} {kind}: put in order" for kind, count in sorted(counter.items())
            ]
    return found


def _same_statistics(pairs: pl.DataFrame, least: float) -> NDArray[np.bool_]:
    """Rows whose maximum, minimum, mean and norm agree, as far as they are known."""
    sides = [[pairs[f"{side}_{stat}"].cast(float).to_numpy() for stat in STATS] for side in "tg"]
    same = np.ones(pairs.height, dtype=bool)
    # The largest of many elements may be rounded the other way: one digit of bfloat16 is more than a thousandth.
    close = np.array([max(least, epsilon(dtype)) for dtype in pairs["g_dtype"].to_list()])
    with np.errstate(all="ignore"):
        scale = np.fmax.reduce([np.abs(values) for side in sides for values in side[:2]])
        for stat, mine, other in zip(STATS, *sides, strict=True):
            limit = close * (np.fmax(np.abs(mine), np.abs(other)) if stat == "norm" else scale)
            same &= ~(np.abs(mine - other) > limit)
    return same


def _orders(run: Run, row: int, shape: Shape) -> list[tuple[Order, ...]]:
    """All orders in which a value of one side may lie; as it is first."""
    if not isinstance(run, Whole):
        return [()]
    way = run.ways.get(row)
    along: list[list[tuple[Order, ...]]] = []
    for dim in range(len(shape)):
        choices: list[tuple[Order, ...]] = [()]
        if run.layout.cp > 1 and (way is None or way[AXES.index("cp")] != dim):
            choices += [(order,) for order in _gathered(run, dim, shape[dim])]
        if run.layout.tp > 1 and way is not None and way[AXES.index("tp")] == dim:
            choices += [(order,) for order in _fused(run.layout.tp, dim, shape[dim])]
        along.append(choices)
    return [sum(chosen, ()) for chosen in product(*along)] if prod(map(len, along)) <= _MOST_ORDERS else [()]


def _gathered(run: Whole, dim: int, size: int) -> Iterator[Order]:
    tokens, ranks = token_shape(next(iter(run.ranks.values())).run), run.layout.cp
    length = tokens[1] * ranks if tokens else 0
    if not length or size % length or length % (2 * ranks):
        return
    # Batch and sequence may be one dimension, either of them first.
    for groups in dict.fromkeys((size // length, 1)):
        step = size // groups // (2 * ranks)
        # Of the stretches that lie there, the first of each rank, then the second ones backwards.
        places = [*range(0, 2 * ranks, 2), *range(2 * ranks - 1, 0, -2)]
        yield Order(dim, groups, tuple((at * step, (at + 1) * step) for at in places), _GATHERED)


def _fused(ranks: int, dim: int, size: int) -> Iterator[Order]:
    own = size // ranks
    kinds = [(1, 1), *((queries, 1, 1) for queries in range(1, _MOST_QUERIES + 1))]
    for parts in kinds:
        if size % ranks or own % sum(parts):
            continue
        unit = own // sum(parts)
        edges = [sum(parts[:at]) * unit for at in range(len(parts) + 1)]
        stretches = tuple(
            (rank * own + start, rank * own + stop) for start, stop in pairwise(edges) for rank in range(ranks)
        )
        yield Order(dim, 1, stretches, _FUSED)


def _nearest(
    runs: tuple[Run, Run], files: tuple[str, str], shape: Shape, orders: list[list[tuple[Order, ...]]]
) -> tuple[tuple[Order, ...], tuple[Order, ...]] | None:
    """The orders of both sides in which their elements agree best; None where no other order is much better."""
    try:
        tensors = [load_whole(run.tensor_folder, file) for run, file in zip(runs, files, strict=True)]
    except (TwinProbeError, OSError):
        return None  # what cannot be read is said where it is measured
    if any(tensor.shape != shape for tensor in tensors):
        return None
    arrays = [np.asarray(tensor.data[:]).reshape(shape) for tensor in tensors]
    moved = {order.dim for side in orders for way in side for order in way}
    # Places all over the dimensions that may be in another order, and a few of the others.
    taken = [np.unique(np.linspace(0, size - 1, min(size, 97 if dim in moved else 4)).astype(np.int64))
             for dim, size in enumerate(shape)]  # fmt: skip

    def sample(side: int, way: tuple[Order, ...]) -> NDArray[Any]:
        places = list(taken)
        for order in way:
            places[order.dim] = order.places()[taken[order.dim]]
        chosen = np.ascontiguousarray(arrays[side][np.ix_(*places)])
        return numbers(tensors[side].dtype, chosen.reshape(-1), np.dtype(np.float64))

    samples = [[sample(side, way) for way in orders[side]] for side in (0, 1)]
    gaps = {}
    with np.errstate(all="ignore"):
        for at, other in product(range(len(orders[0])), range(len(orders[1]))):
            gap = np.abs(samples[0][at] - samples[1][other])
            gaps[at, other] = float(np.where(np.isfinite(gap), gap, 0.0).mean())
    best = min(gaps, key=lambda at: gaps[at])
    if gaps[best] > _NEARER * gaps[0, 0]:
        return None
    return orders[0][best[0]], orders[1][best[1]]
