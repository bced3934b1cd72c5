"""The metrics of a pair of tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from math import inf, isfinite, nan, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._measure.elements import FLOAT64, block_count, calculation_dtype, complex_numbers, numbers, widen
from twinprobe._measure.engine import engine_for, engine_of, inner, over_strips, relative_errors, worth_kernels
from twinprobe._measure.loops.sums import (
    BLOCK,
    GOLDEN_SQUARES,
    MAX_ABS,
    PAIR_COLUMNS,
    TARGET_SQUARES,
    WITHIN_ONE,
    Engine,
)
from twinprobe._measure.statistics import is_sound, relative_norm_by_scaling
from twinprobe._runs.dtypes import COMPLEX, INTEGERS
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe._scale.engine import cores
from twinprobe.errors import DamagedTensor, TwinProbeError

# NaN and inf in a pair: counted, then set to zero on both sides so that the rest can be compared.


@dataclass(slots=True)
class NonfiniteCounts:
    """How many places of a pair hold NaN or inf on one side only, or infinities of opposite sign."""

    nan_only_target: int = 0
    nan_only_golden: int = 0
    inf_against_finite: int = 0
    inf_against_inf: int = 0

    def add(self, other: NonfiniteCounts) -> None:
        self.nan_only_target += other.nan_only_target
        self.nan_only_golden += other.nan_only_golden
        self.inf_against_finite += other.inf_against_finite
        self.inf_against_inf += other.inf_against_inf

    @property
    def places_differ(self) -> bool:
        """Whether NaN or inf (of either sign) stand at different places of the two sides."""
        return bool(self.nan_only_target or self.nan_only_golden or self.inf_against_finite)

    @property
    def any(self) -> bool:
        return self.places_differ or self.inf_against_inf > 0


def clear_nonfinite(target: NDArray[Any], golden: NDArray[Any]) -> NonfiniteCounts:
    """Zero, in place and on both sides, every element that is NaN or inf on either; say how the two sides differ.

    A complex number is NaN or inf if either of its parts is, and may be both.
    """
    outside = ~(np.isfinite(target) & np.isfinite(golden))
    if not outside.any():
        return NonfiniteCounts()
    t, g = target[outside], golden[outside]
    nan_t, nan_g = np.isnan(t), np.isnan(g)
    one_sided = np.isinf(t) != np.isinf(g)
    odd = NonfiniteCounts(
        nan_only_target=int(np.count_nonzero(nan_t & ~nan_g)),
        nan_only_golden=int(np.count_nonzero(nan_g & ~nan_t)),
        inf_against_finite=int(np.count_nonzero(one_sided & (nan_t == nan_g))),
        inf_against_inf=int(np.count_nonzero(~one_sided & ~nan_t & ~nan_g & (t != g))),
    )
    target[outside] = golden[outside] = 0
    return odd


# What a pass over a pair adds up to, block by block, before it is turned into metrics.


@dataclass(slots=True)
class PairTotals:
    """Sums, maxima and counts over all elements, places with NaN or inf counted as zero against zero."""

    dot: float = 0.0
    target_squares: float = 0.0
    golden_squares: float = 0.0
    gap_squares: float = 0.0
    max_abs: float = 0.0
    max_rel: float = 0.0
    within_one: int = 0
    within_five: int = 0
    odd: NonfiniteCounts = field(default_factory=NonfiniteCounts)
    # The share of the imaginary parts, which the six old metrics leave out.
    imaginary_golden_squares: float = 0.0
    imaginary_gap_squares: float = 0.0
    imaginary_max_abs: float = 0.0

    @classmethod
    def of_rows(cls, rows: NDArray[Any]) -> PairTotals:
        """The totals of an engine's rows."""
        with np.errstate(all="ignore"):
            sums, tops = np.add.reduce(rows).tolist(), np.maximum.reduce(rows).tolist()
        return cls.of_row([*sums[:MAX_ABS], *tops[MAX_ABS:WITHIN_ONE], *sums[WITHIN_ONE:]])

    @classmethod
    def of_row(cls, row: list[float]) -> PairTotals:
        """The totals in one row: its columns are the first fields, in this order."""
        dot, target, golden, gap, max_abs, max_rel, within_one, within_five = row
        return cls(dot, target, golden, gap, max_abs, max_rel, int(within_one), int(within_five))

    def add(self, other: PairTotals) -> None:
        self.dot += other.dot
        self.target_squares += other.target_squares
        self.golden_squares += other.golden_squares
        self.gap_squares += other.gap_squares
        self.max_abs = max(self.max_abs, other.max_abs)
        self.max_rel = max(self.max_rel, other.max_rel)
        self.within_one += other.within_one
        self.within_five += other.within_five
        self.odd.add(other.odd)
        self.imaginary_golden_squares += other.imaginary_golden_squares
        self.imaginary_gap_squares += other.imaginary_gap_squares
        self.imaginary_max_abs = max(self.imaginary_max_abs, other.imaginary_max_abs)


# One pass over a pair of tensors of real numbers.


def real_totals(engine: Engine, target: HostTensor, golden: HostTensor, start: int, stop: int) -> PairTotals:
    """The totals of the elements from ``start`` to ``stop``."""
    rows = _rows(engine, target, golden, start, stop)
    totals = PairTotals.of_rows(rows)
    if isfinite(totals.target_squares + totals.golden_squares):
        return totals
    odd, wanted = NonfiniteCounts(), calculation_dtype(target.dtype, golden.dtype)
    finite = np.isfinite(rows[:, TARGET_SQUARES]) & np.isfinite(rows[:, GOLDEN_SQUARES])
    for k in np.flatnonzero(~finite).tolist():
        block = slice(start + k * BLOCK, min(start + (k + 1) * BLOCK, stop))
        t, g = (numbers(side.dtype, side.data[block], wanted) for side in (target, golden))
        odd.add(clear_nonfinite(t, g))
        rows[k] = engine.pair_rows(wanted.name, t, g)[0]
    totals = PairTotals.of_rows(rows)
    totals.odd = odd
    return totals


Stored = tuple[str, NDArray[Any]]

_PIECE = 8 * BLOCK  # elements of a file that are read at once: some MiB, which the processor's cache still holds


def _rows(engine: Engine, target: HostTensor, golden: HostTensor, start: int, stop: int) -> NDArray[np.float64]:
    """A row for each block. Elements that lie in a file are read and measured piece by piece."""
    found = []
    for at in range(start, stop, _PIECE):
        piece = slice(at, min(at + _PIECE, stop))
        # What was read has no name here: its memory takes the next piece.
        found.append(_rows_of_piece(engine, (target.dtype, target.data[piece]), (golden.dtype, golden.data[piece])))
    return np.concatenate(found)


def _rows_of_piece(engine: Engine, target: Stored, golden: Stored) -> NDArray[np.float64]:
    (dtype, t), (golden_dtype, g) = target, golden
    if dtype == golden_dtype and engine.reads(dtype) and t.flags.aligned and g.flags.aligned:
        return engine.pair_rows(dtype, t, g)
    wanted = calculation_dtype(dtype, golden_dtype)
    length = min(BLOCK, t.size)
    wide_t, wide_g = np.empty(length, wanted), np.empty(length, wanted)
    rows = np.empty((block_count(t.size), PAIR_COLUMNS))
    for k, start in enumerate(range(0, t.size, BLOCK)):
        stop = min(start + BLOCK, t.size)
        rows[k] = engine.pair_rows(
            wanted.name,
            widen(dtype, t[start:stop], wide_t[: stop - start]),
            widen(golden_dtype, g[start:stop], wide_g[: stop - start]),
        )[0]
    return rows


# One pass over a pair of tensors of which at least one is complex.


def complex_totals(engine: Engine, target: HostTensor, golden: HostTensor, start: int, stop: int) -> PairTotals:
    """The totals of the elements from ``start`` to ``stop``; the sums are of the real parts, as in the old tool."""
    totals = PairTotals()
    for lo in range(start, stop, BLOCK):
        block = slice(lo, min(lo + BLOCK, stop))
        t = complex_numbers(target.dtype, target.data[block])
        g = complex_numbers(golden.dtype, golden.data[block])
        odd = clear_nonfinite(t, g)
        rows = engine.pair_rows("float64", np.ascontiguousarray(t.real), np.ascontiguousarray(g.real))
        part = PairTotals.of_rows(rows)
        part.odd = odd
        with np.errstate(all="ignore"):
            gap = t.imag - g.imag
            part.imaginary_gap_squares = float(inner(gap, gap))
            part.imaginary_golden_squares = float(inner(g.imag, g.imag))
            part.imaginary_max_abs = float(np.abs(gap).max())
        totals.add(part)
    return totals


OK = "ok"
SHAPE_UNMATCHED = "shape unmatched"
UNSUPPORTED = "unsupported"
SCALAR = "scalar"
NOT_APPLICABLE = "N/A"

_SMALLEST_NORM = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True)
class PairMetrics:
    """How a target tensor differs from its golden one.

    The six metrics from ``cosine`` to ``five_thousandths`` are None where ``status`` rules them out and NaN where they
    have no value. Unlike them, the fields after them always tell the truth about NaN, inf and imaginary parts.
    """

    status: str
    cosine: float | None = None
    euclid: float | None = None
    max_abs: float | None = None
    max_rel: float | None = None
    one_thousandth: float | None = None
    five_thousandths: float | None = None
    relative_norm: float | None = None
    identical: bool = False
    nan_only_target: int = 0
    nan_only_golden: int = 0
    inf_differs: int = 0
    elements: int = 0


def measure_pair(target: HostTensor, golden: HostTensor, *, engine: Engine | None = None) -> PairMetrics:
    """Compare two tensors element by element, in one pass over each, whatever their dtypes are."""
    elements = target.data.size
    if elements == 0 or golden.data.size == 0:
        return PairMetrics(UNSUPPORTED, identical=target.shape == golden.shape, elements=elements)
    if squeezed(target.shape) != squeezed(golden.shape):
        return PairMetrics(SHAPE_UNMATCHED, elements=elements)
    totals = _totals(engine or engine_for(target.data.nbytes + golden.data.nbytes), target, golden)
    old: OldMetrics
    if elements == 1:
        status, old = SCALAR, _scalar_metrics(target, golden)
    elif totals.odd.places_differ:
        status, old = NOT_APPLICABLE, (None,) * 6
    else:
        status, old = OK, (
            cosine_of(totals.dot, totals.target_squares, totals.golden_squares),
            sqrt(totals.gap_squares),
            round(totals.max_abs, 12),
            round(totals.max_rel, 12),
            round(totals.within_one / elements, 12),
            round(totals.within_five / elements, 12),
        )  # fmt: skip
    return PairMetrics(
        status,
        *old,
        relative_norm=_relative_norm(totals, target, golden),
        identical=_identical(totals, target, golden),
        nan_only_target=totals.odd.nan_only_target,
        nan_only_golden=totals.odd.nan_only_golden,
        inf_differs=totals.odd.inf_against_finite + totals.odd.inf_against_inf,
        elements=elements,
    )


def squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without its ones."""
    return tuple(length for length in shape if length != 1)


def _totals(engine: Engine, target: HostTensor, golden: HostTensor) -> PairTotals:
    one_pass = complex_totals if COMPLEX & {target.dtype, golden.dtype} else real_totals
    totals = PairTotals()
    for part in over_strips(lambda start, stop: one_pass(engine, target, golden, start, stop), target.data.size):
        totals.add(part)
    return totals


OldMetrics = tuple[float | None, float | None, float | None, float | None, float | None, float | None]


def cosine_of(dot: float, target_squares: float, golden_squares: float) -> float:
    """The cosine as the old tool rounds it: two zero vectors are alike, one alone has no direction."""
    norms = sqrt(target_squares), sqrt(golden_squares)
    if max(norms) <= _SMALLEST_NORM:
        return 1.0
    if min(norms) <= _SMALLEST_NORM:
        return nan
    cosine = round(dot / (norms[0] * norms[1]), 12)
    return round(cosine, 6) if cosine > 0.9999 else cosine


def _scalar_metrics(target: HostTensor, golden: HostTensor) -> OldMetrics:
    """Of a single element only the two largest errors are known, and NaN or inf take part in them."""
    wanted = calculation_dtype(target.dtype, golden.dtype)
    t, g = numbers(target.dtype, target.data, wanted), numbers(golden.dtype, golden.data, wanted)
    with np.errstate(all="ignore"):
        gap = abs(float(t[0]) - float(g[0]))
        relative = float(relative_errors(t, g)[0])
    return (None, None, round(gap, 12), round(relative, 12), None, None)


def _relative_norm(totals: PairTotals, target: HostTensor, golden: HostTensor) -> float:
    gap = totals.gap_squares + totals.imaginary_gap_squares
    reference = totals.golden_squares + totals.imaginary_golden_squares
    if _worst_gap(totals) == 0:
        return 0.0
    wide = {target.dtype, golden.dtype} & {"float64", "complex128"}
    if wide and not (is_sound(gap) and is_sound(reference)):
        return relative_norm_by_scaling(target, golden)
    return sqrt(gap) / sqrt(reference) if reference else inf


def _identical(totals: PairTotals, target: HostTensor, golden: HostTensor) -> bool:
    if totals.odd.any or _worst_gap(totals) != 0:
        return False
    if {"int64", "uint64"} & {target.dtype, golden.dtype}:
        return _equal_beyond_float64(target, golden)
    return True


def _worst_gap(totals: PairTotals) -> float:
    return max(totals.max_abs, totals.imaginary_max_abs)


def _equal_beyond_float64(target: HostTensor, golden: HostTensor) -> bool:
    """Whether numbers that round to the same float64 really are the same; at least one side is of 64-bit integers."""
    # As uint64 only where negative numbers cannot occur: they would not have rounded to the same.
    whole = np.uint64 if "uint64" in (target.dtype, golden.dtype) else np.int64
    starts = range(0, target.data.size, BLOCK)
    return all(
        np.array_equal(_exact_block(target, start, whole), _exact_block(golden, start, whole)) for start in starts
    )


def _exact_block(tensor: HostTensor, start: int, whole: type[Any]) -> NDArray[Any]:
    block = tensor.data[start : start + BLOCK]
    if tensor.dtype == "bool" or tensor.dtype in INTEGERS:
        return block.astype(whole)
    # Floats here are whole numbers, perhaps just beyond the integers' range: Python's own have no limit.
    return np.array([int(value) for value in numbers(tensor.dtype, block, FLOAT64).tolist()], dtype=object)


# Many pairs at once: loading and computing on all cores, results in order, memory flat.

Loader = Callable[[], HostTensor]

# Handing a job to a thread costs more than measuring a small tensor, so a few go together.
GROUP = 8
# Groups under way per worker. Tensors are loaded inside a job: waiting jobs cost nothing, finished ones hold numbers.
LOOK_AHEAD = 4


def measure_pairs(
    jobs: Iterable[tuple[Loader, Loader]], workers: int | None = None, *, total_bytes: int | None = None
) -> Iterator[PairMetrics | TwinProbeError]:
    """Measure pairs on a pool of threads and yield a result for each job, in order.

    A job is two functions that load the target and the golden tensor; if one raises DamagedTensor, that error is the
    job's result. At most ``workers`` pairs (by default one per core) are in memory at a time. ``total_bytes``, what
    both sides of all the work come to, decides alone how it is measured: little work loads no kernels and starts no
    thread.
    """
    if workers is None:
        small = total_bytes is not None and not worth_kernels(total_bytes)
        workers = 1 if small else cores()
    measure = partial(_measure, None if total_bytes is None else engine_of(total_bytes))
    if workers == 1:
        return (measure(*job) for job in jobs)
    return _measure_in_threads(measure, iter(jobs), workers)


def _measure_in_threads(
    measure: Callable[[Loader, Loader], PairMetrics | TwinProbeError],
    jobs: Iterator[tuple[Loader, Loader]],
    workers: int,
) -> Iterator[PairMetrics | TwinProbeError]:
    waiting: deque[Future[list[PairMetrics | TwinProbeError]]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="twinprobe-pair")
    try:
        while group := list(islice(jobs, GROUP)):
            waiting.append(pool.submit(lambda group: [measure(*job) for job in group], group))
            if len(waiting) >= workers * LOOK_AHEAD:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _measure(engine: Engine | None, load_target: Loader, load_golden: Loader) -> PairMetrics | TwinProbeError:
    try:
        return measure_pair(load_target(), load_golden(), engine=engine)
    except DamagedTensor as damage:
        return damage
