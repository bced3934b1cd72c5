"""The four statistics as dumps have always carried them, and the fuller ones that stand beside them."""

from __future__ import annotations

from math import copysign, inf, isfinite, prod
from struct import Struct
from typing import Any

from twinprobe.measure.statistics import Statistics

Four = tuple[Any, Any, Any, Any, dict[str, Any]]
_NOTHING: Four = (None, None, None, None, {})
_NARROW = frozenset({"float32", "float16", "bfloat16"})
_FLOAT32_MAX = (2 - 2**-23) * 2.0**127
_SQUARES_OVERFLOW = _FLOAT32_MAX**0.5
_half, _single, _bits = Struct("e"), Struct("f"), Struct("I")  # numpy's scalars are slow to make


def legacy_statistics(  # noqa: PLR0911  one return per kind of number
    dtype: str, shape: tuple[int, ...], values: Statistics | None, *, high: bool = False
) -> Four:
    """Max, Min, Mean and Norm in their old meaning, and the extra fields.

    Old meaning: in the tensor's own dtype; no Mean and Norm for integers, bool and float64 (``Mean_full`` and
    ``Norm_full`` give them); a single number stands for all four; ``high`` keeps float32 instead of rounding further.
    """
    if values is None or values.max is None:
        return _NOTHING
    kind = dtype.rpartition(".")[2]
    extra = _counts(values)
    if kind[:1].isupper():  # Float32: MindSpore's spelling
        return _mindspore(kind, shape, values, extra)
    if not shape:
        one = values.max
        return (one, one, None, None, extra) if kind == "bool" else (one, one, one, one, extra)
    if kind in _NARROW:
        count = prod(shape)
        own = "float32" if high else kind
        mean, norm = _mean(values.mean, count, own), _norm(values.norm, own)
        return values.max, values.min, mean, norm, extra
    if kind.startswith("complex"):
        return values.max, values.min, values.mean, None, {**extra, "Norm_full": values.norm}
    extra |= {"Mean_full": values.mean, "Norm_full": values.norm}
    if kind.startswith("float8") or kind.startswith("float4"):
        return None, None, None, None, {"Max_full": values.max, "Min_full": values.min, **extra}
    return values.max, values.min, None, None, extra


def _mindspore(kind: str, shape: tuple[int, ...], values: Statistics, extra: dict[str, Any]) -> Four:
    """There everything is cast to float32 first, integers and float64 too; only bool has no Mean and Norm."""
    if kind == "Bool":
        return values.max, values.min, None, None, extra
    assert values.max is not None
    assert values.min is not None
    high, low = float(values.max), float(values.min)
    if not shape:
        return high, high, high, high, extra
    return high, low, _mean(values.mean, prod(shape), "float32"), _norm(values.norm, "float32"), extra


def _counts(values: Statistics) -> dict[str, Any]:
    counts = {}
    if values.nan:
        counts["NaN_count"] = values.nan
    if values.inf:
        counts["Inf_count"] = values.inf
    return counts


def _mean(mean: float | None, count: int, kind: str) -> float | None:
    if mean is None:
        return None
    if isfinite(mean) and abs(mean) * count > _FLOAT32_MAX:
        return copysign(inf, mean)  # the float32 sum that frameworks take overflows
    return round_to(kind, mean)


def _norm(norm: float | None, kind: str) -> float | None:
    if norm is None:
        return None
    return inf if norm > _SQUARES_OVERFLOW else round_to(kind, norm)


def round_to(kind: str, value: float) -> float:
    """The nearest number of that dtype, as Python's float."""
    try:
        if kind == "float16":
            return float(_half.unpack(_half.pack(value))[0])
        packed = _single.pack(value)
    except OverflowError:
        return copysign(inf, value)
    if kind != "bfloat16" or not isfinite(value):
        return float(_single.unpack(packed)[0])
    (bits,) = _bits.unpack(packed)
    return float(_single.unpack(_bits.pack((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000))[0])
