"""Gradients of ranks that are all the same multiple of golden's: by a missing division, or by clipping."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from twinprobe._align.calls import epsilon
from twinprobe._align.links import NONE
from twinprobe._judge.deviation import DIFFERS, PRODUCT_PRECISION
from twinprobe._layout.ranks import micro_batches, passes_of
from twinprobe._layout.whole import Whole
from twinprobe._runs.names import TOTAL_NORM
from twinprobe._runs.run import DUMP, open_run
from twinprobe.errors import TwinProbeError

if TYPE_CHECKING:
    import polars as pl

    from twinprobe._compare.one import Comparison
    from twinprobe._judge.origin import Divergence

_SAME_CLIP = 1e-5  # relative: norms of gradients that were multiplied by one number
_FAR = 10  # times that: no rounding
_FEW_GRADIENTS, _MOST_GRADIENTS, _SAME_FACTOR = 4, 0.9, 1e-3  # all but those that are zero in theory
_EPSILONS = 4  # by which the norm of a gradient in 16 bits is off
_GRADIENT = r"^Optimizer\..*\.input\.0$"


def one_multiple(comparison: Comparison) -> list[str]:
    """Whether gradients that differ are the same multiple of golden's: a mean that is a sum, of experts' alone say."""
    rows = _gradients(comparison)
    ratios, precision = (rows["t_norm"] / rows["g_norm"]).to_numpy(), max(map(epsilon, rows["g_dtype"]), default=0.0)
    if not (np.abs(ratios - 1) > precision).any():
        return []
    sizes: dict[str, int] = defaultdict(lambda: 1)
    for run in (comparison.target, comparison.golden):
        folders = [run.path.parent]
        if isinstance(run, Whole):
            folders = [dump.folder for dump in run.ranks.values()]
            counts = {one: run.layout.size(one) for one in ("dp", "tp", "cp", "ep", "pp")}
            counts["micro batches"] = max(run.micro, *map(micro_batches, run.ranks.values()))
            sizes |= {one: max(count, sizes[one]) for one, count in counts.items()}
        with suppress(TwinProbeError):  # a program that counts micro batches itself calls its modules so often
            sizes["micro batches"] = max(sizes["micro batches"], passes_of(open_run(folders[0] / DUMP)))
    named = {f"{name}={size}": size for name, size in sizes.items() if size > 1}
    return _one_factor(ratios, named, max(precision, comparison.target.settings.get(PRODUCT_PRECISION, 0.0)))


def _one_factor(every: NDArray[np.float64], sizes: Mapping[str, int], precision: float = 0.0) -> list[str]:
    """Whether the norms of gradients that differ are one multiple of golden's, in words with the size that it is of.

    ``precision``: the epsilon of their type.
    """
    close = max(_SAME_FACTOR, _EPSILONS * precision)
    factors = every[np.abs(every - 1) >= close]
    usual = float(np.median(factors)) if len(factors) >= _FEW_GRADIENTS else 0.0
    if not usual or np.mean(np.abs(factors / usual - 1) < close) < _MOST_GRADIENTS:
        return []
    why = [name for name, size in sizes.items() if abs(max(usual, 1 / usual) / size - 1) < close]
    told = f", as many as {' or '.join(why)}" if why else ""
    if few := len(factors) < _MOST_GRADIENTS * len(every):
        told += ", the others agree"
    count = f"{len(factors):,} of {len(every):,}" if few else f"all {len(every):,}"
    digits = 4 if precision < _SAME_FACTOR else 2
    # Where not all differ, only a number of ranks is no chance.
    said = f"the gradients of {count} parameters are {usual:.{digits}g} times golden's{told}"
    return [said] if why or not few else []


def _gradients(comparison: Comparison) -> pl.DataFrame:
    """The pairs of what optimizers were given, but zeros."""
    pairs = comparison.evidence.pairs.with_row_index("order")
    named = pairs["t_name"].str.contains(_GRADIENT) & ~pairs["t_name"].str.starts_with(TOTAL_NORM)
    return pairs.filter(named & (pairs["g_norm"] > 0) & (pairs["t_norm"] > 0))


def beside_clipping(comparison: Comparison, first: Divergence) -> int:
    """The first row of a gradient that is wrong by itself, where clipping has moved all others by one factor; or -1.

    The norm of all gradients is that of the wrong one, too: what is divided by it is off everywhere.
    """
    rows = _gradients(comparison)
    own = rows.filter(rows["t_name"] == first.row)
    if not own.height or not any(op.startswith(TOTAL_NORM) for op in comparison.target.ops):
        return NONE
    ratios, close = (rows["t_norm"] / rows["g_norm"]).to_numpy(), max(_SAME_CLIP, *map(epsilon, rows["g_dtype"]))
    off = np.abs(ratios / (own["t_norm"][0] / own["g_norm"][0]) - 1)
    clipped, wrong = off <= close, rows["order"].to_numpy()[off > _FAR * close]
    wrong = wrong[comparison.judged.state[wrong] == DIFFERS]
    return int(wrong[0]) if len(wrong) and np.mean(clipped) > 0.5 else NONE
