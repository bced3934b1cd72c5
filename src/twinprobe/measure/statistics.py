"""Statistics of one tensor: extremes, mean, norm, and how many elements are NaN or inf."""

from __future__ import annotations

from math import inf, isfinite, nan, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from twinprobe.measure.blocks import (
    BLOCK,
    FLOATS,
    MAX,
    MIN,
    SQUARES,
    SUM,
    TENSOR_COLUMNS,
    Engine,
    block_count,
)
from twinprobe.measure.decode import COMPLEX, FLOAT64, INTEGERS, calculation_dtype, numbers
from twinprobe.measure.digest import crc32, xor64
from twinprobe.measure.engine import engine_for
from twinprobe.measure.plain import inner
from twinprobe.measure.scaled import ScaledNorm, is_sound
from twinprobe.measure.threads import over_strips
from twinprobe.runs.host_tensor import HostTensor

__all__ = ["FLOATS", "Statistics", "crc32", "statistics", "statistics_at", "xor64"]


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
        return _of_bools(tensor.data)
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


def _of_bools(data: NDArray[Any]) -> Statistics:
    true = int(np.count_nonzero(data))
    return Statistics(true > 0, true == data.size, true / data.size, sqrt(true))


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
    rows, nans, infs = parts[0] if len(parts) == 1 else _joined(parts)
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
    mean = total / size if isfinite(total) else _mean_by_parts(tensor)
    if tensor.dtype in ("float64", "complex128") and not is_sound(squares):
        return Statistics(top, bottom, mean, _norm_by_scaling(tensor))
    return Statistics(top, bottom, mean, sqrt(squares))


Rows = tuple[NDArray[Any], int, int]


def _joined(parts: list[Rows]) -> Rows:
    rows, nans, infs = zip(*parts, strict=True)
    return np.concatenate(rows), sum(nans), sum(infs)


def _float_rows(engine: Engine, tensor: HostTensor, start: int, stop: int) -> Rows:
    """An engine's rows, those of blocks with NaN or inf replaced, and the numbers of NaN and inf."""
    data = tensor.data[start:stop]
    rows = _engine_rows(engine, tensor.dtype, data)
    nans = infs = 0
    if isfinite(np.add.reduce(rows[:, SQUARES])):
        return rows, nans, infs
    for k in np.flatnonzero(~np.isfinite(rows[:, SQUARES])).tolist():
        stored = data[k * BLOCK : (k + 1) * BLOCK]
        block = _magnitudes_or_numbers(tensor.dtype, stored)
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
        wide = _magnitudes_or_numbers(dtype, block) if dtype in COMPLEX else numbers(dtype, block, wanted)
        rows[k] = engine.tensor_rows(wanted.name, wide)[0]
    return rows


def _magnitudes_or_numbers(dtype: str, data: NDArray[Any]) -> NDArray[Any]:
    if dtype in COMPLEX:
        with np.errstate(all="ignore"):
            return np.abs(data.astype(np.complex128))
    return numbers(dtype, data, FLOAT64)


def _mean_by_parts(tensor: HostTensor) -> float:
    size = tensor.data.size
    blocks = (tensor.data[start : start + BLOCK] for start in range(0, size, BLOCK))
    return float(sum((_magnitudes_or_numbers(tensor.dtype, block) / size).sum() for block in blocks))


def _norm_by_scaling(tensor: HostTensor) -> float:
    norm = ScaledNorm()
    for start in range(0, tensor.data.size, BLOCK):
        norm.add(_magnitudes_or_numbers(tensor.dtype, tensor.data[start : start + BLOCK]))
    return norm.norm
