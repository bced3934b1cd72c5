"""Statistics of one tensor: extremes, mean, norm, and how many elements are NaN or inf."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import inf, isfinite, nan, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from twinprobe._measure.elements import FLOAT64, block_count, calculation_dtype, complex_numbers, numbers
from twinprobe._measure.engine import engine_for, inner, over_strips
from twinprobe._measure.loops.sums import BLOCK, MAX, MIN, SQUARES, SUM, TENSOR_COLUMNS, Engine
from twinprobe._runs.dtypes import COMPLEX, INTEGERS
from twinprobe._runs.table import ABSENT, FLOAT, INT, STATS, TEXT
from twinprobe._runs.tensors.elements import HostTensor

if TYPE_CHECKING:
    import polars as pl

# Checksums of a tensor's bytes.

_WORD = 8


def crc32(tensor: HostTensor) -> str:
    """CRC-32 of the bytes in the tensor's own dtype, as eight hexadecimal digits."""
    return f"{zlib.crc32(tensor.data.view(np.uint8).data):08x}"


def xor64(tensor: HostTensor) -> str | float:
    """All 64-bit words of the bytes combined by exclusive or; a single number (0-d) stands for itself."""
    if tensor.shape == () and tensor.dtype not in COMPLEX:
        if tensor.dtype == "bool" or tensor.dtype in INTEGERS:
            return _hexadecimal(int(tensor.data[0]))
        return float(numbers(tensor.dtype, tensor.data, FLOAT64)[0])
    octets = tensor.data.view(np.uint8)
    whole = octets.size - octets.size % _WORD
    combined = int(np.bitwise_xor.reduce(octets[:whole].view("<u8")))
    rest = octets[whole:].tobytes().ljust(_WORD, b"\0")
    return _hexadecimal(combined ^ int.from_bytes(rest, "little"))


def _hexadecimal(word: int) -> str:
    return f"0x{word & 0xFFFF_FFFF_FFFF_FFFF:016x}"


# Norms of float64 numbers whose squares overflow or vanish.

# Below this a sum of squares may have lost digits to numbers whose squares vanish.
SMALLEST_SOUND_SQUARES = 1e-280
LARGEST_SAFE = 1e300


def is_sound(squares: float) -> bool:
    """Whether a sum of squares neither overflowed nor lost digits at the small end."""
    return SMALLEST_SOUND_SQUARES < squares < inf


class ScaledNorm:
    """The norm of arrays added one after the other, each divided by the largest magnitude met so far."""

    def __init__(self) -> None:
        self.scale = 0.0
        self._squares = 0.0

    def add(self, values: NDArray[Any]) -> None:
        top = float(np.abs(values).max())
        if top == 0:
            return
        if top > self.scale:
            self._squares *= (self.scale / top) ** 2
            self.scale = top
        values = values / self.scale
        self._squares += float(inner(values, values))

    @property
    def root(self) -> float:
        return sqrt(self._squares)

    @property
    def norm(self) -> float:
        return self.scale * self.root

    def over(self, other: ScaledNorm) -> float:
        """The ratio of two norms: 0/0 is 0, anything else over 0 is inf."""
        if self.scale == 0:
            return 0.0
        return inf if other.scale == 0 else (self.scale / other.scale) * (self.root / other.root)


def relative_norm_by_scaling(target: HostTensor, golden: HostTensor) -> float:
    """||target - golden|| / ||golden|| over the places where both are finite."""
    top = max(max(np.abs(t).max(), np.abs(g).max()) for t, g in _finite_blocks(target, golden))
    # A power of two is exact, and the ratio does not see it; it keeps the difference of two huge numbers finite.
    power = 2.0**-10 if top > LARGEST_SAFE else 1.0
    gap, reference = ScaledNorm(), ScaledNorm()
    for t, g in _finite_blocks(target, golden):
        gap.add(t * power - g * power)
        reference.add(g * power)
    return gap.over(reference)


def _finite_blocks(target: HostTensor, golden: HostTensor) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """The numbers of both sides block by block (real and imaginary parts in a row), zero where either is not finite."""
    read = complex_numbers if COMPLEX & {target.dtype, golden.dtype} else partial(numbers, wanted=FLOAT64)
    for start in range(0, target.data.size, BLOCK):
        t = read(target.dtype, target.data[start : start + BLOCK])
        g = read(golden.dtype, golden.data[start : start + BLOCK])
        outside = ~(np.isfinite(t) & np.isfinite(g))
        t[outside] = g[outside] = 0
        yield t.view(np.float64), g.view(np.float64)


class Statistics(NamedTuple):
    """Full values for every dtype; None for an empty tensor, NaN if any element is NaN."""

    max: float | int | bool | None
    min: float | int | bool | None
    mean: float | None
    norm: float | None
    nan: int = 0
    inf: int = 0


def statistics(tensor: HostTensor, *, engine: Engine | None = None) -> Statistics:
    """The statistics of a tensor, in one pass, with sums in float64; of complex numbers those of their magnitude."""
    if tensor.data.size == 0:
        return Statistics(None, None, None, None)
    if tensor.dtype == "bool":
        true, size = int(np.count_nonzero(tensor.data)), tensor.data.size
        return Statistics(true > 0, true == size, true / size, sqrt(true))
    if tensor.dtype in INTEGERS:
        return _of_integers(tensor.data)
    return _of_floats(engine or engine_for(tensor.data.nbytes), tensor)


def statistics_at(dtype: str, address: int, size: int) -> Statistics | None:
    """The statistics of a few floats straight from memory; None where ``statistics`` has to take the longer way.

    For recorders, which measure thousands of small tensors: no array is made. The memory must stay alive, be aligned
    and hold ``size`` elements of a dtype in ``FLOATS``.
    """
    row = engine_for(0).row_at(dtype, address, size)
    if row is None:
        return None
    top, bottom, total, squares = row
    if not (isfinite(squares) and isfinite(total)) or (dtype == "float64" and not is_sound(squares)):
        return None
    return Statistics(top, bottom, total / size, sqrt(squares))


def _of_integers(data: NDArray[Any]) -> Statistics:
    top, bottom, total, squares = [], [], 0.0, 0.0
    for start in range(0, data.size, BLOCK):
        block = data[start : start + BLOCK]
        wide = block.astype(np.float64)
        top.append(int(np.maximum.reduce(block)))
        bottom.append(int(np.minimum.reduce(block)))
        total += float(np.add.reduce(wide))
        squares += float(inner(wide, wide))
    return Statistics(max(top), min(bottom), total / data.size, sqrt(squares))


def _of_floats(engine: Engine, tensor: HostTensor) -> Statistics:
    size = tensor.data.size
    parts = list(over_strips(lambda start, stop: _float_rows(engine, tensor, start, stop), size))
    rows, nans, infs = parts[0]
    if len(parts) > 1:
        rows = np.concatenate([part[0] for part in parts])
        nans, infs = sum(part[1] for part in parts), sum(part[2] for part in parts)
    if nans:
        return Statistics(nan, nan, nan, nan, nans, infs)
    if len(rows) == 1:
        top, bottom, total, squares = rows[0].tolist()
    else:
        top, bottom = float(rows[:, MAX].max()), float(rows[:, MIN].min())
        with np.errstate(all="ignore"):
            total, squares = float(rows[:, SUM].sum()), float(rows[:, SQUARES].sum())
    if infs:
        return Statistics(top, bottom, total / size, inf, 0, infs)
    if tensor.dtype in ("float64", "complex128") and not is_sound(squares):
        norm, mean = ScaledNorm(), 0.0
        for start in range(0, size, BLOCK):
            block = _magnitudes(tensor.dtype, tensor.data[start : start + BLOCK])
            norm.add(block)
            mean += float((block / size).sum())
        return Statistics(top, bottom, total / size if isfinite(total) else mean, norm.norm)
    return Statistics(top, bottom, total / size, sqrt(squares))


Rows = tuple[NDArray[Any], int, int]


def _float_rows(engine: Engine, tensor: HostTensor, start: int, stop: int) -> Rows:
    """An engine's rows, those of blocks with NaN or inf replaced, and the numbers of NaN and inf."""
    data = tensor.data[start:stop]
    rows = _engine_rows(engine, tensor.dtype, data)
    nans = infs = 0
    if isfinite(np.add.reduce(rows[:, SQUARES])):
        return rows, nans, infs
    for k in np.flatnonzero(~np.isfinite(rows[:, SQUARES])).tolist():
        stored = data[k * BLOCK : (k + 1) * BLOCK]
        block = _magnitudes(tensor.dtype, stored)
        counted = stored if tensor.dtype in COMPLEX else block
        nans += int(np.count_nonzero(np.isnan(counted)))
        infs += int(np.count_nonzero(np.isinf(counted)))
        with np.errstate(all="ignore"):
            rows[k] = block.max(), block.min(), block.sum(), inner(block, block)
    return rows, nans, infs


def _engine_rows(engine: Engine, dtype: str, data: NDArray[Any]) -> NDArray[Any]:
    if engine.reads(dtype) and data.flags.aligned:
        return engine.tensor_rows(dtype, data)
    wanted = FLOAT64 if dtype in COMPLEX else calculation_dtype(dtype)
    rows = np.empty((block_count(data.size), TENSOR_COLUMNS))
    for k, start in enumerate(range(0, data.size, BLOCK)):
        block = data[start : start + BLOCK]
        wide = _magnitudes(dtype, block) if dtype in COMPLEX else numbers(dtype, block, wanted)
        rows[k] = engine.tensor_rows(wanted.name, wide)[0]
    return rows


def _magnitudes(dtype: str, data: NDArray[Any]) -> NDArray[Any]:
    """Complex numbers by their magnitude, all others as they are, in float64."""
    if dtype in COMPLEX:
        with np.errstate(all="ignore"):
            return np.abs(data.astype(np.complex128))
    return numbers(dtype, data, FLOAT64)


# Differences of recorded statistics: one number per pair of recorded numbers, by the rules of the old columns.

# What a difference is. SAME: equal to the last digit. OTHER: not two numbers.
SAME, NUMBER, NAN, PLUS_INF, MINUS_INF, MISSING, OTHER = range(7)


@dataclass(frozen=True, slots=True)
class StatDifference:
    """One statistic over all rows: the case, and for two finite numbers the difference and the relative error."""

    case: NDArray[np.uint8]
    diff: NDArray[np.float64]
    relative: NDArray[np.float64]


def stat_differences(pairs: pl.DataFrame) -> dict[str, StatDifference]:
    """Compare each statistic (max, min, mean, norm) of the target (t_) and golden (g_) columns."""
    return {stat: _stat_difference(pairs, stat) for stat in STATS}


def _stat_difference(pairs: pl.DataFrame, stat: str) -> StatDifference:
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
