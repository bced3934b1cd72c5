"""Gradients of ranks that are all the same multiple of golden's: by a missing division, or by clipping."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from twinprobe._align.calls import epsilon
from twinprobe._align.links import NONE
from twinprobe._judge.deviation import DIFFERS, PRODUCT_PRECISION
from twinprobe._layout.ranks import micro_batches, passes_of
from twinprobe._layout.shared import one_factor
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
    return one_factor(ratios, named, max(precision, comparison.target.settings.get(PRODUCT_PRECISION, 0.0)))


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
