"""How bad a node is: the bands that a graph file itself defines, and one number per metric where more is worse."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

WORST = 1e30  # stands for nan and inf, which JSON cannot carry
_KINDS = {
    "NormRelativeErr": "relative", "MaxRelativeErr": "relative", "MinRelativeErr": "relative",
    "MeanRelativeErr": "relative", "Max diff": "absolute", "Min diff": "absolute", "Mean diff": "absolute",
    "L2norm diff": "absolute", "Cosine": "complement", "EucDist": "absolute", "MaxAbsErr": "absolute",
    "One Thousandth Err Ratio": "complement", "Five Thousandths Err Ratio": "complement",
}  # fmt: skip
OWN_ERROR = "error"
METRICS = (OWN_ERROR, *_KINDS)
_MISSING = frozenset({"", "n/a", "none", "null", "unsupported", "-"})


@dataclass(frozen=True)
class Band:
    """A range of the precision index with the colour and name that the file gives it."""

    low: float
    high: float
    color: str
    label: str


def bands(colors: dict[str, dict[str, Any]]) -> list[Band]:
    """The bands of a file, the harmless one first.

    Which end is worse depends on the writer's version and mode; that darker is worse holds for all of them.
    """
    found = []
    for color, entry in colors.items():
        span = entry.get("value")
        if not re.fullmatch(r"#[0-9a-fA-F]{6}", color) or not isinstance(span, list) or len(span) != 2:
            continue
        low, high = span
        if isinstance(low, (int, float)) and isinstance(high, (int, float)):
            found.append(Band(float(low), float(high), color, str(entry.get("accuracy_level") or "")))
    return sorted(found, key=lambda band: -_lightness(band.color))


def level_of(precision: Any, known: list[Band]) -> int | None:
    """The number of the band that a precision index falls in; None where nothing was compared."""
    if not isinstance(precision, (int, float)) or not known or math.isnan(precision):
        return None
    for number, band in enumerate(known):
        if band.low <= precision < band.high or band.low == precision == band.high:
            return number
    return min(range(len(known)), key=lambda n: min(abs(precision - known[n].low), abs(precision - known[n].high)))


def badness(text: str, metric: str) -> float | None:
    """A metric as written in a file, turned so that 0 is perfect and more is worse."""
    text = text.split(",", 1)[0].strip()  # "0.0%, the value is small": an old writer added remarks
    if text.lower() in _MISSING:
        return None
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None
    if not math.isfinite(value):
        return WORST
    return max(0.0, 1 - value) if _KINDS.get(metric) == "complement" else abs(value)


def worst_in(text: str, metric: str) -> float | None:
    """The worst value of a metric in the JSON text of some tensors, found without decoding it."""
    found = [badness(value, metric) for value in _pattern(metric).findall(text)]
    return max((value for value in found if value is not None), default=None)


@lru_cache(maxsize=64)
def _pattern(metric: str) -> re.Pattern[str]:
    return re.compile(r'"' + re.escape(metric) + r'": ?"([^"\\]*)"')


def _lightness(color: str) -> float:
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue
