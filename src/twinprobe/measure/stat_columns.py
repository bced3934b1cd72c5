"""Differences of recorded statistics: one number per pair of recorded numbers, by the rules of the old columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from twinprobe.runs.table import ABSENT, FLOAT, INT, TEXT

if TYPE_CHECKING:
    import polars as pl

# What a difference is. SAME: equal to the last digit. OTHER: not two numbers.
SAME, NUMBER, NAN, PLUS_INF, MINUS_INF, MISSING, OTHER = range(7)


@dataclass(frozen=True, slots=True)
class StatDifference:
    """One statistic over all rows: the case, and for two finite numbers the difference and the relative error."""

    case: NDArray[np.uint8]
    diff: NDArray[np.float64]
    relative: NDArray[np.float64]


def stat_difference(pairs: pl.DataFrame, stat: str) -> StatDifference:
    """Compare one statistic (max, min, mean, norm) of the target (t_) and golden (g_) columns."""
    t, g = (pairs[f"{side}_{stat}"].to_numpy() for side in "tg")
    t_kind, g_kind = (pairs[f"{side}_{stat}_kind"].fill_null(ABSENT).to_numpy() for side in "tg")
    t_text, g_text = (pairs[f"{side}_{stat}_text"] for side in "tg")
    number = _is_number(t_kind) & _is_number(g_kind)
    equal_text = (t_text == g_text).fill_null(value=False).to_numpy()
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        both_floats = (t_kind == FLOAT) & (g_kind == FLOAT)
        same = np.where(both_floats, (t == g) | (np.isnan(t) & np.isnan(g)), (t_kind == g_kind) & equal_text)
        diff = t - g
        relative = np.abs(diff / g)
        relative[(g == 0) & number] = np.inf
    devices = (t_kind == TEXT) & (g_kind == TEXT) & _is_device(t_text) & _is_device(g_text)
    case = np.select(
        [
            (t_kind == ABSENT) | (g_kind == ABSENT),
            same,
            number & (np.isnan(t) | np.isnan(g)),
            number & (np.isposinf(t) | (np.isneginf(g) & np.isfinite(t))),
            number & (np.isneginf(t) | (np.isposinf(g) & np.isfinite(t))),
            number,
            devices,
        ],
        [MISSING, SAME, NAN, PLUS_INF, MINUS_INF, NUMBER, MISSING],
        default=OTHER,
    ).astype(np.uint8)
    return StatDifference(case, diff, relative)


def _is_number(kind: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return np.isin(kind, (FLOAT, INT))


def _is_device(text: pl.Series) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = text.str.contains("npu|cpu|cuda").fill_null(value=False).to_numpy()
    return found
