"""The metrics of inference reports, defined as people know them, and beside them the errors that those leave out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import isfinite, nan
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from twinprobe._measure.elements import FLOAT32, numbers
from twinprobe._measure.engine import PLAIN, engine_for, over_strips
from twinprobe._measure.loops import inference_sums as rows
from twinprobe._measure.loops.sums import (
    BLOCK,
    DOT,
    GAP_SQUARES,
    GOLDEN_SQUARES,
    PAIR_COLUMNS,
    TARGET_SQUARES,
    WITHIN_ONE,
    Engine,
)
from twinprobe._measure.loops.sums import MAX_ABS as MAX_ABS_ALL
from twinprobe._measure.pair import PairTotals, measure_pair, real_totals
from twinprobe._measure.statistics import is_sound, statistics
from twinprobe._runs.dtypes import COMPLEX, NARROW_FLOATS
from twinprobe._runs.tensors.elements import HostTensor

SHAPE = "data shape doesn't match."
GOLDEN_NONFINITE = "golden_data includes NAN or inf."
MY_NONFINITE = "my_data includes NAN or inf."
EMPTY = "the tensor is empty."

# Elements that are put in order, or widened, and measured while they are in the cache.
_WINDOW = 4 * BLOCK


class SideStatistics(NamedTuple):
    """Extremes and mean of one side."""

    max: float | None = None
    min: float | None = None
    mean: float | None = None


class LlmMetrics(NamedTuple):
    """One pair. The seven metrics are None where ``reason`` says why; the fields after them always tell the truth."""

    reason: str
    target: SideStatistics
    golden: SideStatistics
    cosine: float | None = None
    max_rel: float | None = None
    mean_rel: float | None = None
    max_abs: float | None = None
    mean_abs: float | None = None
    kl: float | None = None
    euclid: float | None = None
    max_abs_all: float | None = None
    relative_norm: float | None = None
    one_thousandth: float | None = None
    true_cosine: float | None = None
    identical: bool = False
    nonfinite: bool = False
    elements: int = 0


def measure_llm_pair(target: HostTensor, golden: HostTensor, *, engine: Engine | None = None) -> LlmMetrics:
    """Compare two tensors as flat vectors of float32; only their numbers of elements must agree."""
    size = target.data.size
    if size != golden.data.size or not size:
        reason = EMPTY if size == golden.data.size else SHAPE
        return LlmMetrics(reason, _basics(target), _basics(golden), identical=size == golden.data.size, elements=size)
    engine = engine or engine_for(target.data.nbytes + golden.data.nbytes)
    if COMPLEX & {target.dtype, golden.dtype}:
        return _of_complex(target, golden, engine)
    if engine is PLAIN and size <= BLOCK:
        target, golden = _widened(target), _widened(golden)
    totals = _Totals()
    for part in over_strips(lambda start, stop: _strip(engine, target, golden, start, stop), size):
        totals.add(part)
    return _metrics(totals, target, golden)


def _widened(tensor: HostTensor) -> HostTensor:
    """Floats that float32 holds exactly, widened once: several passes would each do it again."""
    if tensor.dtype == "float32" or tensor.dtype not in NARROW_FLOATS:
        return tensor
    return HostTensor("float32", tensor.shape, numbers(tensor.dtype, tensor.data, FLOAT32))


@dataclass(slots=True)
class _Totals:
    pair: PairTotals = field(default_factory=PairTotals)
    rows: list[list[float]] = field(default_factory=list)

    def add(self, other: _Totals) -> None:
        self.pair.add(other.pair)
        self.rows += other.rows


def _strip(engine: Engine, target: HostTensor, golden: HostTensor, start: int, stop: int) -> _Totals:
    step = stop - start if _are_ready(engine, target, golden) else _WINDOW
    totals = _Totals()
    for first in range(start, stop, step):
        totals.add(_window(engine, target, golden, first, min(first + step, stop)))
    return totals


def _are_ready(engine: Engine, target: HostTensor, golden: HostTensor) -> bool:
    """Whether kernels take the elements as they lie in memory."""
    if engine is PLAIN or target.dtype != golden.dtype:
        return False
    from twinprobe._measure.kernels import reads

    arrays = target.data, golden.data
    return reads(target.dtype) and all(isinstance(data, np.ndarray) and data.flags.aligned for data in arrays)


def _window(engine: Engine, target: HostTensor, golden: HostTensor, first: int, last: int) -> _Totals:
    m, g = _piece(target, first, last), _piece(golden, first, last)
    if m.dtype != g.dtype:
        m, g = _widened(m), _widened(g)
    return _plain(m, g) if engine is PLAIN else _compiled(engine, m, g)


def _plain(target: HostTensor, golden: HostTensor) -> _Totals:
    totals = _Totals(real_totals(PLAIN, target, golden, 0, target.data.size))
    for at in range(0, target.data.size, BLOCK):
        m, g = (_single(side.dtype, side.data[at : at + BLOCK]) for side in (target, golden))
        with np.errstate(all="ignore"):
            totals.rows.append([float(value) for value in rows.plain_row(m, g)])
    return totals


def _compiled(engine: Engine, target: HostTensor, golden: HostTensor) -> _Totals:
    from twinprobe._measure.kernels import kernel_row, reads

    if target.dtype == golden.dtype and reads(target.dtype):
        row = kernel_row(target.dtype, target.data, golden.data).tolist()
        # NaN and inf have to be taken out first.
        sound = isfinite(row[TARGET_SQUARES] + row[GOLDEN_SQUARES])
        pair = (
            PairTotals.of_row(row[:PAIR_COLUMNS]) if sound else real_totals(engine, target, golden, 0, target.data.size)
        )
    else:
        # Integers and float64 are compared as they are; their inference metrics are those of float32.
        row = kernel_row("float32", _single(target.dtype, target.data), _single(golden.dtype, golden.data)).tolist()
        pair = real_totals(engine, target, golden, 0, target.data.size)
    return _Totals(pair, [row[PAIR_COLUMNS:]])


def _piece(tensor: HostTensor, first: int, last: int) -> HostTensor:
    """A piece of a tensor. Elements off their boundaries are moved, which compiled kernels need and is cheap here."""
    if last - first == tensor.data.size and tensor.data.flags.aligned:
        return tensor
    data = tensor.data[first:last]
    return HostTensor(tensor.dtype, (last - first,), data if data.flags.aligned else data.copy())


def _single(dtype: str, data: NDArray[Any]) -> NDArray[Any]:
    if dtype == "float32":
        return data
    return numbers(dtype, data, FLOAT32)


def _metrics(totals: _Totals, target: HostTensor, golden: HostTensor) -> LlmMetrics:
    pair, size = totals.pair, target.data.size
    own = rows.joined(totals.rows)
    sums = [pair.dot, pair.target_squares, pair.golden_squares, pair.gap_squares, pair.max_abs, pair.max_rel]
    found = np.array([[*sums, pair.within_one, pair.within_five, *own]])
    metrics = metrics_of("", numbers_of_rows(found, np.array([size]))[0][0].tolist())
    identical = pair.max_abs == 0 and not pair.odd.any
    dtypes = {target.dtype, golden.dtype}
    unsound = "float64" in dtypes and not (is_sound(pair.gap_squares) and is_sound(pair.golden_squares))
    if unsound or (identical and dtypes & {"int64", "uint64"}):
        exact = measure_pair(*_flat(target, golden))
        identical, norm = exact.identical, exact.relative_norm if unsound else metrics.relative_norm
        metrics = metrics._replace(relative_norm=norm)
    metrics = metrics._replace(identical=identical, nonfinite=pair.odd.any)
    # A compiled minimum or maximum may pass over a NaN; the sum never does.
    bad = [not isfinite(own[total]) for total in (rows.MY_SUM, rows.GOLDEN_SUM)]
    if not any(bad):
        return metrics
    unknown: dict[str, Any] = dict.fromkeys(("cosine", "max_rel", "mean_rel", "max_abs", "mean_abs", "kl", "euclid"))
    return metrics._replace(
        reason=" ".join(text for text, wrong in ((GOLDEN_NONFINITE, bad[1]), (MY_NONFINITE, bad[0])) if wrong),
        target=_basics(target) if bad[0] else metrics.target,
        golden=_basics(golden) if bad[1] else metrics.golden,
        **unknown,
    )


def _flat(target: HostTensor, golden: HostTensor) -> tuple[HostTensor, HostTensor]:
    """Shapes are no matter here, but they are to the comparison of training runs."""
    size = (target.data.size,)
    return replace(target, shape=size), replace(golden, shape=size)


def _basics(tensor: HostTensor) -> SideStatistics:
    found = statistics(tensor)
    if found.mean is None:
        return SideStatistics()
    if found.nan:
        return SideStatistics(nan, nan, nan)
    assert found.max is not None
    assert found.min is not None
    return SideStatistics(float(found.max), float(found.min), float(np.float32(found.mean)))


def _of_complex(target: HostTensor, golden: HostTensor, engine: Engine) -> LlmMetrics:
    """The seven metrics look at the real parts only, the truth at both."""
    real = measure_llm_pair(_real(target), _real(golden), engine=engine)
    both = measure_pair(*_flat(target, golden), engine=engine)
    return real._replace(
        relative_norm=both.relative_norm,
        identical=both.identical,
        nonfinite=bool(both.nan_only_target or both.nan_only_golden or both.inf_differs),
    )


def _real(tensor: HostTensor) -> HostTensor:
    if tensor.dtype not in COMPLEX:
        return tensor
    wide = "float32" if tensor.dtype == "complex64" else "float64"
    return HostTensor(wide, tensor.shape, np.ascontiguousarray(tensor.data.real))


# Many pairs at once: one call of the kernel, and the metrics of all of them column by column.

Floats = NDArray[np.float64]

_SIDES = ("target", "golden")
# Every number of LlmMetrics, in the order of its fields; those of a side by names like target_max.
NUMBERS = (
    *(f"{side}_{basic}" for side in _SIDES for basic in SideStatistics._fields),
    *(field for field in LlmMetrics._fields if field not in ("reason", *_SIDES)),
)


def metrics_of(reason: str, numbers: list[float | None]) -> LlmMetrics:
    """The pair that has these numbers."""
    *others, identical, nonfinite, elements = numbers[6:]
    flags = bool(identical), bool(nonfinite), int(elements or 0)
    return LlmMetrics._make((reason, SideStatistics(*numbers[:3]), SideStatistics(*numbers[3:6]), *others, *flags))


def numbers_of_rows(found: Floats, sizes: NDArray[np.int64]) -> tuple[Floats, NDArray[np.bool_]]:
    """NUMBERS of each pair by its row of sums and its size.

    The flags say of which pairs they are of use: not of those with NaN or inf.
    """
    with np.errstate(all="ignore"):
        numbers = _numbers(found[:, :PAIR_COLUMNS].T, found[:, PAIR_COLUMNS : PAIR_COLUMNS + rows.COLUMNS].T, sizes)
        return numbers.T, np.isfinite(found[:, TARGET_SQUARES] + found[:, GOLDEN_SQUARES])


def _numbers(pair: Floats, own: Floats, sizes: NDArray[np.int64]) -> Floats:
    cosine = _cosines(pair)
    return np.array([
        own[rows.MY_MAX],
        own[rows.MY_MIN],
        _singles(own[rows.MY_SUM] / sizes),
        own[rows.GOLDEN_MAX],
        own[rows.GOLDEN_MIN],
        _singles(own[rows.GOLDEN_SUM] / sizes),
        cosine,
        own[rows.MAX_REL],
        _singles(own[rows.SUM_REL] / sizes),
        own[rows.MAX_ABS],
        _singles(own[rows.SUM_ABS] / sizes),
        rows.divergence(own),
        _singles(_euclids(pair)),
        pair[MAX_ABS_ALL],
        _relative_norm(pair),
        pair[WITHIN_ONE] / sizes,
        cosine,
        pair[MAX_ABS_ALL] == 0,
        np.zeros(len(sizes)),
        sizes,
    ])  # fmt: skip


def _singles(values: Floats) -> Floats:
    """These columns have always been computed in float32, and shown with its digits."""
    return values.astype(np.float32).astype(np.float64)


def _cosines(pair: Floats) -> Floats:
    scale = np.sqrt(pair[TARGET_SQUARES]) * np.sqrt(pair[GOLDEN_SQUARES])
    empty = (pair[TARGET_SQUARES] == 0) & (pair[GOLDEN_SQUARES] == 0)
    values = np.where(scale > 0, pair[DOT] / scale, np.where(empty, 1.0, 0.0))
    # numpy rounds another way than Python does, and a digit of the last place is a digit.
    return np.array([round(value, 10) for value in values.tolist()])


def _euclids(pair: Floats) -> Floats:
    known = np.sqrt(pair[GOLDEN_SQUARES]) > rows.SMALLEST
    return np.where(known, np.sqrt(pair[GAP_SQUARES] / pair[GOLDEN_SQUARES]), 0.0)


def _relative_norm(pair: Floats) -> Floats:
    ratio = np.where(pair[GOLDEN_SQUARES] > 0, np.sqrt(pair[GAP_SQUARES]) / np.sqrt(pair[GOLDEN_SQUARES]), np.inf)
    return np.where(pair[MAX_ABS_ALL] == 0, 0.0, ratio)
