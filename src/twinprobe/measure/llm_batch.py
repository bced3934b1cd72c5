"""Many small pairs at once: one call of the kernel, and the metrics of all of them column by column."""

from __future__ import annotations

from typing import Any

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


def measure_llm_pairs(
    dtype: str, my: NDArray[np.uint8], golden: NDArray[np.uint8], places: NDArray[np.int64]
) -> list[LlmMetrics | None]:
    """The metrics of pairs of one dtype that lie in two pieces of memory; None where NaN or inf is among the numbers.

    A place is where my elements begin, where the golden ones begin, and how many there are: at least one, and no more
    than fill a block.
    """
    from twinprobe.measure.llm_kernel import kernel_rows_of_many

    found = kernel_rows_of_many(dtype, my, golden, places)
    with np.errstate(all="ignore"):
        metrics = _metrics(found[:, :PAIR_COLUMNS].T, found[:, PAIR_COLUMNS:].T, places[:, 2])
    sound = np.isfinite(found[:, TARGET_SQUARES] + found[:, GOLDEN_SQUARES])
    if sound.all():
        return list(metrics)
    return [one if is_sound else None for one, is_sound in zip(metrics, sound.tolist(), strict=True)]


def _metrics(pair: Floats, own: Floats, sizes: NDArray[np.int64]) -> list[LlmMetrics]:
    cosine = _cosine(pair)
    none = [""] * len(sizes)
    columns: list[Any] = [
        none,
        _basics(own[rows.MY_MAX], own[rows.MY_MIN], own[rows.MY_SUM] / sizes),
        _basics(own[rows.GOLDEN_MAX], own[rows.GOLDEN_MIN], own[rows.GOLDEN_SUM] / sizes),
        cosine,
        own[rows.MAX_REL].tolist(),
        _single(own[rows.SUM_REL] / sizes),
        own[rows.MAX_ABS].tolist(),
        _single(own[rows.SUM_ABS] / sizes),
        _divergence(own).tolist(),
        _single(_euclid(pair)),
        pair[MAX_ABS_ALL].tolist(),
        _relative_norm(pair).tolist(),
        (pair[WITHIN_ONE] / sizes).tolist(),
        cosine,
        (pair[MAX_ABS_ALL] == 0).tolist(),
        [False] * len(sizes),
        sizes.tolist(),
    ]
    return [LlmMetrics._make(values) for values in zip(*columns, strict=True)]


def _basics(top: Floats, low: Floats, mean: Floats) -> list[Basics]:
    return [Basics._make(values) for values in zip(top.tolist(), low.tolist(), _single(mean), strict=True)]


def _single(values: Floats) -> list[float]:
    """These columns have always been computed in float32, and shown with its digits."""
    shown: list[float] = values.astype(np.float32).astype(np.float64).tolist()
    return shown


def _cosine(pair: Floats) -> list[float]:
    scale = np.sqrt(pair[TARGET_SQUARES]) * np.sqrt(pair[GOLDEN_SQUARES])
    empty = (pair[TARGET_SQUARES] == 0) & (pair[GOLDEN_SQUARES] == 0)
    values = np.where(scale > 0, pair[DOT] / scale, np.where(empty, 1.0, 0.0))
    return [round(value, 10) for value in values.tolist()]


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
