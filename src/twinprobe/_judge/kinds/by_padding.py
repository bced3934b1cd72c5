"""Tokens that an attention mask hides: what is computed for them is read by nobody, and implementations disagree there.

A token on the left of a padded sequence sees nothing. Softmax by hand makes a mean of all tokens of that, other kernels
zeros or NaN. Where the mask was recorded and both runs were given the same one, such runs are judged once more by the
tokens that it shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from twinprobe._align.calls import dims
from twinprobe._judge.deviation import IDENTICAL, ROUNDING, Bools, Deviation, bools, turned
from twinprobe._judge.flow import NONE
from twinprobe._judge.rules import Thresholds
from twinprobe._judge.search import ARGUMENT, PARAMETER_DIFFERS
from twinprobe._judge.verdicts import Evidence, Judged, judge
from twinprobe._measure.sketch import Estimate, block_length, estimate, integer_weights, replaced
from twinprobe._measure.statistics import SAME, StatDifference
from twinprobe._runs.sketches import BLOCKS, SIGNS, Rows
from twinprobe._runs.table import ATTENTION_MASK, GRADIENT, INPUT, OUTPUT, PARAMETER, TENSOR
from twinprobe.errors import TwinProbeError

if TYPE_CHECKING:
    import polars as pl

    from twinprobe._runs.run import Run
    from twinprobe._runs.tensors.elements import HostTensor
    from twinprobe._runs.tensors.tensor_files import Loader

Masks = dict[tuple[int, ...], Bools]  # by the shape [batch, length] of a mask: the tokens that it hides
_AT_ONCE = 2  # sequences in a block of a mask's sketch: of more, too many masks would fit its sums by chance


@dataclass(frozen=True)
class Kept:
    """How the tensors are read that both runs kept."""

    read: Callable[[list[int]], Iterator[tuple[Loader, Loader]]]
    """The tensors of these rows, on both sides."""
    measure: Callable[..., pl.DataFrame]
    """The metrics of these rows of the pair table; ``load`` loads their tensors."""


def without_padding(
    target: Run, golden: Run, evidence: Evidence, judged: Judged, limits: Thresholds, kept: Kept | None
) -> tuple[Evidence, Judged, str] | None:
    """What the tokens show that masks do not hide, and what came of it in words; None where that is nothing else."""
    pairs, sketches = evidence.pairs, None
    if judged.flow is None:
        return None
    try:
        masks = _hidden_tokens(target, pairs, evidence.deviation, kept)
    except TwinProbeError:  # the tensor of a mask cannot be read
        return None
    if masks and target.sketches is not None and golden.sketches is not None:
        sketches = target.sketches.of(pairs["t_row"].to_numpy()), golden.sketches.of(pairs["g_row"].to_numpy())
    shown = _shown_tokens(evidence, sketches, masks, kept) if masks else None
    again = judge(target, shown, limits) if shown is not None else judged
    if shown is None or again.first_row == judged.first_row:
        return None
    hidden = f"{sum(map(np.count_nonzero, masks.values())):,} tokens that the attention mask hides"
    if _reads_padding(evidence, shown, again):
        assert again.first_row is not None
        reader = pairs["t_name"][again.first_row]
        return evidence, judged, f"the runs differ for {hidden}, and {reader} is the first that reads these"
    return shown, again, f"not judged: {hidden}, for which the runs differ"


def _hidden_tokens(target: Run, pairs: pl.DataFrame, deviation: Deviation, kept: Kept | None) -> Masks:
    """The tokens that masks hide, of tensors where any were kept, else from the masks' sketches. Nothing where two
    masks of a shape differ: whose tokens are whose?"""
    named = bools(
        pairs["t_name"].str.contains(ATTENTION_MASK) & (pairs["t_kind"] == TENSOR) & pairs["g_row"].is_not_null()
    )
    found: dict[tuple[int, ...], dict[bytes, Bools | None]] = {}
    for row in np.flatnonzero(named & (deviation.state == IDENTICAL)).tolist():
        shape = dims(pairs["t_shape"][row])
        if shape is None or len(shape) != 2 or (pairs["t_min"][row], pairs["t_max"][row]) != (0, 1):
            continue
        if kept is not None:
            hidden = next(kept.read([row]))[0]().data[:].reshape(shape) == 0
        elif target.sketches is not None:
            hidden = _from_sketch(target.sketches.of(np.array([pairs["t_row"][row]]))[0], shape)
        else:
            continue
        found.setdefault(shape, {})[b"" if hidden is None else hidden.tobytes()] = hidden
    masks = {shape: next(iter(ways.values())) for shape, ways in found.items() if len(ways) == 1}
    return {shape: hidden for shape, hidden in masks.items() if hidden is not None and hidden.any()}


def _from_sketch(row: Rows, shape: tuple[int, ...]) -> Bools | None:
    """The mask of zeros and ones with this sketch, if each sequence is padded on one side, the same for all."""
    batch, length = shape
    size = batch * length
    block = block_length(size)
    if int(row["whole"]) != size or -(-block // length) + (block % length > 0) > _AT_ONCE:
        return None
    weights = [integer_weights(0, np.full(size, value, np.uint64)).T.astype(np.int64) for value in (0, 1)]
    sums = row["sums"].reshape(BLOCKS, SIGNS)
    for left in (True, False):
        hidden = np.zeros(size, dtype=bool)
        for number, start in enumerate(range(0, size, block)):
            stop = min(start + block, size)
            edges = [start, *range((start // length + 1) * length, stop, length), stop]
            ways = [np.zeros((1, stop - start), dtype=bool)]
            for begin, end in pairwise(edges):  # the part of one sequence: hidden up to, or from
                places, cuts = np.arange(end - begin), np.arange(end - begin + 1)[:, None]
                own = np.zeros((len(cuts), stop - start), dtype=bool)
                own[:, begin - start : end - start] = places < cuts if left else places >= cuts
                ways = [(ways[0][:, None] | own[None]).reshape(-1, stop - start)]
            zeros, ones = (part[start:stop] for part in weights)
            fits = np.flatnonzero((ones.sum(0) + ways[0] @ (zeros - ones) == sums[number]).all(1))
            if len(fits) != 1:
                break
            hidden[start:stop] = ways[0][fits[0]]
        else:
            if int(hidden.sum()) == int(row["zeros"]):
                return hidden.reshape(shape)
    return None


def _laid_out(shape: tuple[int, ...], masks: Masks) -> tuple[Bools, int] | None:
    """Which stretches of a tensor belong to hidden tokens, and how many elements each has: tokens come first, with or
    without an axis for the batch, or behind the heads."""
    for (batch, length), hidden in masks.items():
        if shape[:2] == (batch, length):
            return hidden.reshape(-1), prod(shape[2:])
        if len(shape) > 1 and shape[0] == batch * length:
            return hidden.reshape(-1), prod(shape[1:])
        if len(shape) == 4 and (shape[0], shape[2]) == (batch, length):
            return np.repeat(hidden[:, None], shape[1], axis=1).reshape(-1), shape[3]
    return None


def _shown_tokens(
    evidence: Evidence, sketches: tuple[Rows, Rows] | None, masks: Masks, kept: Kept | None
) -> Evidence | None:
    """The evidence without what belongs to hidden tokens; None where it does not tell these from others.

    Tensors are measured without such stretches. Of sketches those blocks are left out that hold any; some padded
    sequence must keep a block, or nothing would be known of how padding is treated.
    """
    pairs, deviation = evidence.pairs, evidence.deviation
    tensors = bools((pairs["t_kind"] == TENSOR) & pairs["g_row"].is_not_null())
    tensors &= (deviation.state != IDENTICAL) & ~bools(pairs["t_role"].is_in([PARAMETER, GRADIENT]))
    alike = bools(pairs["t_shape"] == pairs["g_shape"]) & ~turned(pairs)
    found = {row: _laid_out(dims(pairs["t_shape"][row]) or (), masks) for row in np.flatnonzero(tensors).tolist()}
    stretches = {row: laid for row, laid in found.items() if laid is not None and laid[1] and alike[row]}
    if not stretches:
        return None
    rows = np.array(list(stretches))
    partly = np.zeros(pairs.height, dtype=bool)
    partly[[row for row, laid in found.items() if laid is not None]] = True
    # Of transposed values the statistics alone are known, of all tokens; where a NaN is, only tensors tell.
    error, nonfinite = np.where(partly, np.nan, deviation.error), deviation.nonfinite.copy()
    seen, metrics = evidence.estimate, evidence.metrics
    if kept is not None and metrics is not None:

        def shown(chosen: list[int]) -> Iterator[tuple[Loader, Loader]]:
            own = rows[chosen].tolist()
            for row, (one, two) in zip(own, kept.read(own), strict=True):
                yield partial(_without, one, *stretches[row]), partial(_without, two, *stretches[row])

        again = kept.measure(pairs[rows], load=shown)
        metrics = metrics.with_columns(metrics[name].scatter(rows, again[name]) for name in metrics.columns)
        left = np.where(again["identical"].to_numpy(), 0.0, again["relative_norm"].to_numpy())
        nonfinite[rows] = again["nonfinite"].to_numpy()
    else:
        part = None if sketches is None else _shown_blocks(pairs, sketches, masks, stretches)
        if part is None or seen is None:
            return None
        seen, left = replaced(seen, rows, part), part.relative
    error[rows] = np.where(np.isnan(left), deviation.error[rows], left)
    state = np.where(partly, np.where((error == 0) & ~nonfinite, IDENTICAL, ROUNDING), deviation.state).astype(np.uint8)
    differences = evidence.differences
    if differences is not None:
        differences = {
            stat: StatDifference(
                np.where(partly, np.uint8(SAME), one.case), np.where(partly, 0.0, one.diff),
                np.where(partly, 0.0, one.relative),
            )
            for stat, one in differences.items()
        }  # fmt: skip
    return replace(
        evidence, deviation=Deviation(state, error, nonfinite), differences=differences, metrics=metrics, estimate=seen,
        partly=partly,
    )  # fmt: skip


def _without(load: Loader, hidden: Bools, size: int) -> HostTensor:
    """A tensor with zeros in place of these stretches of so many elements."""
    whole = load()
    data = whole.data[:].copy()
    data.reshape(len(hidden), size)[hidden] = 0
    return replace(whole, data=data)


def _shown_blocks(
    pairs: pl.DataFrame, sketches: tuple[Rows, Rows], masks: Masks, stretches: dict[int, tuple[Bools, int]]
) -> Estimate | None:
    """How far these rows are apart in the blocks of their sketches that hold no hidden token."""
    blank = np.zeros((len(stretches), BLOCKS), dtype=bool)
    for at, (row, (hidden, size)) in enumerate(stretches.items()):
        bounds = np.minimum(np.arange(BLOCKS + 1) * block_length(len(hidden) * size), len(hidden) * size)
        first, last = bounds[:-1] // size, -(-bounds[1:] // size)
        before = np.append(0, np.cumsum(hidden))
        blank[at] = before[last] > before[np.minimum(first, last)]
        shape = dims(pairs["t_shape"][row]) or ()
        if shape[:2] in masks:
            shown = first[~blank[at] & (bounds[1:] > bounds[:-1])] // shape[1]
            if not masks[shape[:2]][shown].any():
                return None
    kept = [side[list(stretches)] for side in sketches]
    for side in kept:
        side["sums"][np.repeat(blank, SIGNS, axis=1)] = 0
        for name in ("block_norm", "block_max"):
            side[name][blank] = 0
        side["norm"] = np.sqrt((side["block_norm"].astype(np.float64) ** 2).sum(axis=1))
    return estimate(kept[0], kept[1])


def _reads_padding(before: Evidence, after: Evidence, judged: Judged) -> bool:
    """Whether the first claim that is left takes hidden tokens in: what it gives has no tokens (a loss, a mean), and
    what it is given differs at hidden ones, or is a slice of values that do, cut by code that nobody recorded."""
    claim, flow = next((one for one in judged.beginnings if one.reaches), None), judged.flow
    if claim is None or claim.cause in (PARAMETER_DIFFERS, ARGUMENT) or after.partly is None or flow is None:
        return False
    if after.partly[claim.row]:
        return False
    hidden = after.partly & (np.nan_to_num(before.deviation.error) > 0)
    call = np.isin(flow.of_row, [claim.call, *({int(flow.twin[claim.call])} - {NONE})])
    shapes = before.pairs["t_shape"]
    width = (dims(shapes[claim.row]) or (0,))[-1:]
    slices = hidden & (flow.role == OUTPUT) & (flow.elements[0] > flow.elements[0][claim.row])
    sliced = flow.role[claim.row] == INPUT and any(
        (dims(one) or ())[-1:] == width for one in set(shapes.filter(slices))
    )
    return sliced or bool((hidden & call & (flow.role == INPUT)).any())
