"""Many pairs at once: one call of the kernel, and the metrics of all of them column by column."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinprobe.measure import llm_rows as rows
from twinprobe.measure.blocks import (
    DOT,
    GAP_SQUARES,
    GOLDEN_SQUARES,
    PAIR_COLUMNS,
    TARGET_SQUARES,
    WITHIN_ONE,
)
from twinprobe.measure.blocks import MAX_ABS as MAX_ABS_ALL
from twinprobe.measure.llm_metrics import Basics, LlmMetrics

Floats = NDArray[np.float64]

_SIDES = ("my", "golden")
# Every number of LlmMetrics, in the order of its fields; those of a side by names like my_max.
NUMBERS = (
    *(f"{side}_{basic}" for side in _SIDES for basic in Basics._fields),
    *(field for field in LlmMetrics._fields if field not in ("reason", *_SIDES)),
)


def numbers_of(metrics: LlmMetrics) -> list[float | None]:
    """The numbers of one pair."""
    return [*metrics.my, *metrics.golden, *metrics[3:]]


def metrics_of(reason: str, numbers: list[float | None]) -> LlmMetrics:
    """The pair that has these numbers."""
    *others, identical, nonfinite, elements = numbers[6:]
    flags = bool(identical), bool(nonfinite), int(elements or 0)
    return LlmMetrics._make((reason, Basics(*numbers[:3]), Basics(*numbers[3:6]), *others, *flags))


def rows_of_pairs(
    dtype: str,
    my: NDArray[np.uint8],
    golden: NDArray[np.uint8],
    places: NDArray[np.int64],
    before: Floats | None = None,
) -> Floats:
    """The rows of sums of pairs of one dtype that lie in two pieces of memory, added to those of the elements before.

    A place is where my elements begin, where the golden ones begin, and how many there are, at least one.
    """
    from twinprobe.measure.llm_kernel import kernel_rows

    return kernel_rows(dtype, my, golden, places, before)


def numbers_of_rows(found: Floats, sizes: NDArray[np.int64]) -> tuple[Floats, NDArray[np.bool_]]:
    """NUMBERS of each pair by its row of sums and its size.

    The flags say of which pairs they are of use: not of those with NaN or inf.
    """
    with np.errstate(all="ignore"):
        numbers = _numbers(found[:, :PAIR_COLUMNS].T, found[:, PAIR_COLUMNS : PAIR_COLUMNS + rows.COLUMNS].T, sizes)
        return numbers.T, np.isfinite(found[:, TARGET_SQUARES] + found[:, GOLDEN_SQUARES])


def _numbers(pair: Floats, own: Floats, sizes: NDArray[np.int64]) -> Floats:
    cosine = _cosine(pair)
    return np.array([
        own[rows.MY_MAX],
        own[rows.MY_MIN],
        _single(own[rows.MY_SUM] / sizes),
        own[rows.GOLDEN_MAX],
        own[rows.GOLDEN_MIN],
        _single(own[rows.GOLDEN_SUM] / sizes),
        cosine,
        own[rows.MAX_REL],
        _single(own[rows.SUM_REL] / sizes),
        own[rows.MAX_ABS],
        _single(own[rows.SUM_ABS] / sizes),
        _divergence(own),
        _single(_euclid(pair)),
        pair[MAX_ABS_ALL],
        _relative_norm(pair),
        pair[WITHIN_ONE] / sizes,
        cosine,
        pair[MAX_ABS_ALL] == 0,
        np.zeros(len(sizes)),
        sizes,
    ])  # fmt: skip


def _single(values: Floats) -> Floats:
    """These columns have always been computed in float32, and shown with its digits."""
    return values.astype(np.float32).astype(np.float64)


def _cosine(pair: Floats) -> Floats:
    scale = np.sqrt(pair[TARGET_SQUARES]) * np.sqrt(pair[GOLDEN_SQUARES])
    empty = (pair[TARGET_SQUARES] == 0) & (pair[GOLDEN_SQUARES] == 0)
    values = np.where(scale > 0, pair[DOT] / scale, np.where(empty, 1.0, 0.0))
    # numpy rounds another way than Python does, and a digit of the last place is a digit.
    return np.array([round(value, 10) for value in values.tolist()])


def _euclid(pair: Floats) -> Floats:
    known = np.sqrt(pair[GOLDEN_SQUARES]) > rows.SMALLEST
    return np.where(known, np.sqrt(pair[GAP_SQUARES] / pair[GOLDEN_SQUARES]), 0.0)


def _relative_norm(pair: Floats) -> Floats:
    ratio = np.where(pair[GOLDEN_SQUARES] > 0, np.sqrt(pair[GAP_SQUARES]) / np.sqrt(pair[GOLDEN_SQUARES]), np.inf)
    return np.where(pair[MAX_ABS_ALL] == 0, 0.0, ratio)


def _divergence(own: Floats) -> Floats:
    """As ``llm_rows.divergence`` has it for one row."""
    weights, my_weights = own[rows.WEIGHTS], own[rows.MY_WEIGHTS]
    mean, curve = own[rows.DRIFT] / weights, own[rows.EXCESS] / weights
    near = np.log1p(mean + curve) - mean
    far = np.log(my_weights / weights) - mean
    found = np.maximum(np.where(np.abs(mean) + curve < rows.SMALL, near, far), 0.0)
    return np.where((weights > 0) & (my_weights > 0), found, np.nan)
