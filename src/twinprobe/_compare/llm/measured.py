"""The rows of a token, measured: files of usual sizes many at a time, all others one by one."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from math import nan
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from twinprobe._compare.llm.custom import Algorithms
from twinprobe._compare.llm.load import load_row
from twinprobe._compare.llm.rows import Rows
from twinprobe._lazy import polars as pl
from twinprobe._measure.engine import PLAIN
from twinprobe._measure.llm_metrics import (
    EMPTY,
    NUMBERS,
    SHAPE,
    LlmMetrics,
    SideStatistics,
    measure_llm_pair,
    metrics_of,
    numbers_of_rows,
)
from twinprobe._measure.loops.sums import Engine
from twinprobe._measure.statistics import statistics
from twinprobe._runs.llm.files import TokenFolder
from twinprobe._runs.tensors.small_files import (
    CHUNK,
    DTYPES,
    ElementLayout,
    LargeFile,
    NotLarge,
    SmallFiles,
    can_read_small_files,
)
from twinprobe._runs.whole_files import remote
from twinprobe.errors import DamagedTensor

_COLUMN = {name: column for column, name in enumerate(NUMBERS)}


class Measured:
    """What was measured of all rows of a token. Few rows have a fault, a reason or a remark: those stand apart."""

    def __init__(self, count: int) -> None:
        self._numbers = np.full((count, len(NUMBERS)), nan)
        self._known = np.zeros((count, len(NUMBERS)), dtype=bool)
        self.dtypes, self.shapes = ([""] * count, [""] * count), ([""] * count, [""] * count)
        self.faults: dict[int, str] = {}
        self.reasons: dict[int, str] = {}
        self.remarks: dict[int, str] = {}
        self.custom: dict[int, tuple[tuple[str, str], ...]] = {}

    def put(self, index: int, metrics: LlmMetrics, dtypes: Iterable[str], shapes: Iterable[str]) -> None:
        """Keep what was measured of one row."""
        values = [*metrics.target, *metrics.golden, *metrics[3:]]
        self._numbers[index] = [nan if value is None else value for value in values]
        self._known[index] = [value is not None for value in values]
        for side, (dtype, shape) in enumerate(zip(dtypes, shapes, strict=True)):
            self.dtypes[side][index], self.shapes[side][index] = dtype, shape
        if metrics.reason:
            self.reasons[index] = metrics.reason

    def put_numbers(self, rows: NDArray[np.int64], numbers: NDArray[np.float64]) -> None:
        """Keep the numbers of many rows, all of which are known."""
        self._numbers[rows] = numbers
        self._known[rows] = True

    def values(self, name: str) -> NDArray[np.float64]:
        """A column of NUMBERS, NaN where nothing is known."""
        return self._numbers[:, _COLUMN[name]]

    def column(self, name: str) -> pl.Series:
        """The same with null where nothing is known."""
        known = self._known[:, _COLUMN[name]]
        found = pl.Series(self._numbers[:, _COLUMN[name]].copy())
        return found if known.all() else pl.select(pl.when(pl.Series(known)).then(found)).to_series()

    def metrics(self) -> pl.DataFrame:
        """The metrics of every comparison, as the judge takes them."""
        identical = self.values("identical") == 1
        status = np.where(self._known.any(axis=1), "ok", "unsupported").astype(object)
        for index, reason in self.reasons.items():
            if reason == SHAPE or (reason == EMPTY and not identical[index]):
                status[index] = "shape unmatched" if reason == SHAPE else "unsupported"
        faults = [self.faults.get(index) for index in range(len(identical))]
        columns = {name: self.values(name) for name in ("one_thousandth", "relative_norm")}
        return pl.DataFrame({
            "status": pl.Series(status.tolist(), dtype=pl.String), "fault": pl.Series(faults, dtype=pl.String),
            "cosine": self.values("true_cosine"), **columns, "identical": identical,
            "nonfinite": self.values("nonfinite") == 1,
        })  # fmt: skip

    def of_row(self, index: int) -> LlmMetrics:
        """The metrics of one row, None each where it was not measured."""
        both = zip(self._numbers[index].tolist(), self._known[index].tolist(), strict=True)
        return metrics_of(self.reasons.get(index, ""), [value if is_known else None for value, is_known in both])


class SmallPairs:
    """Collects pairs of files in memory and measures many of them with one call."""

    def __init__(self, target: SmallFiles, golden: SmallFiles, results: Measured) -> None:
        self._target, self._golden, self._results = target, golden, results
        self._waiting: dict[str, list[tuple[int, int, int, int]]] = {}
        self._measured: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []

    def take(self, index: int, target_name: str, golden_name: str) -> bool:
        """Whether the files of a row are two of those: then its numbers will be there in the end."""
        target, golden = self._target, self._golden
        if target.is_full or golden.is_full:
            self._measure()
        before = target.used, golden.used
        target_read = target.read(target_name)
        golden_read = golden.read(golden_name) if target_read is not None else None
        if target_read is None or golden_read is None:
            target.used, golden.used = before  # the memory of the one that could be read is free again
            return self._take_large(index, target_name, golden_name)
        (target_first, m), (golden_first, g) = target_read, golden_read
        if m.dtype != g.dtype or m.elements != g.elements:
            target.used, golden.used = before
            return False
        self._waiting.setdefault(m.dtype, []).append((index, target_first, golden_first, m.elements))
        self._describe(index, m, g)
        return True

    def _describe(self, index: int, target: ElementLayout, golden: ElementLayout) -> None:
        dtypes, shapes = self._results.dtypes, self._results.shapes
        dtypes[0][index], dtypes[1][index] = target.shown_dtype, golden.shown_dtype
        shapes[0][index], shapes[1][index] = target.shown_shape, golden.shown_shape

    def _take_large(self, index: int, target_name: str, golden_name: str) -> bool:
        """Whether the files of a row can be read and measured piece by piece: then they are."""
        try:
            with self._target.open_large(target_name) as target, self._golden.open_large(golden_name) as golden:
                m, g = target.what, golden.what
                if m.dtype != g.dtype or m.elements != g.elements:
                    return False
                found = self._streamed(target, golden)
        except NotLarge:
            return False
        self._measured.append((np.array([(index, 0, 0, m.elements)], np.int64), found))
        self._describe(index, m, g)
        return True

    def _streamed(self, target: LargeFile, golden: LargeFile) -> NDArray[np.float64]:
        from twinprobe._measure.kernels import kernel_rows

        dtype, elements = target.what.dtype, target.what.elements
        (target_start, target_room), (golden_start, golden_room) = self._target.room(), self._golden.room()
        width = DTYPES[dtype]
        rows = None
        for first in range(0, elements, CHUNK):
            count = min(CHUNK, elements - first)
            target.read(first, count, target_room)
            golden.read(first, count, golden_room)
            places = np.array([(target_start // width, golden_start // width, count)], np.int64)
            rows = kernel_rows(dtype, self._target.octets, self._golden.octets, places, rows)
        target.check()
        golden.check()
        assert rows is not None
        return rows

    def _measure(self) -> None:
        from twinprobe._measure.kernels import kernel_rows

        for dtype, pairs in self._waiting.items():
            table = np.array(pairs, np.int64)
            places = np.ascontiguousarray(table[:, 1:])
            self._measured.append((table, kernel_rows(dtype, self._target.octets, self._golden.octets, places)))
        self._waiting.clear()
        self._target.used = self._golden.used = 0

    def finish(self) -> list[int]:
        """Put the numbers of all pairs among the results; the rows with NaN or inf, which are not there yet."""
        self._measure()
        if not self._measured:
            return []
        table, found = (np.concatenate(parts) for parts in zip(*self._measured, strict=True))
        rows = table[:, 0]
        numbers, sound = numbers_of_rows(found, table[:, 3])
        self._results.put_numbers(rows[sound], numbers[sound])
        return cast("list[int]", rows[~sound].tolist())


# Rows that a thread measures at a time at most.
_GROUP = 64
_REQUESTS = 8


class Measuring(NamedTuple):
    """How rows are measured: with which engine (None: as it turns out), own metrics, and threads."""

    engine: Engine | None = None
    algorithms: Algorithms | None = None
    threads: int = 1


def measure_rows(rows: Rows, target: TokenFolder, golden: TokenFolder, how: Measuring) -> Measured:
    """Measure all rows, in their order."""
    results = Measured(len(rows))
    threads = how.threads
    if remote(target.root) is not None or remote(golden.root) is not None:
        threads = max(threads, _REQUESTS)  # most of the time they wait for an answer
    if threads == 1 or how.algorithms is not None:
        _measure(rows, range(len(rows)), (target, golden), how, results)
        return results
    # Enough groups for all threads to end at about the same time.
    size = max(1, min(_GROUP, len(rows) // (4 * threads)))
    with ThreadPoolExecutor(threads, thread_name_prefix="twinprobe-llm") as pool:
        groups = [range(index, min(index + size, len(rows))) for index in range(0, len(rows), size)]
        for done in [pool.submit(_measure, rows, group, (target, golden), how, results) for group in groups]:
            done.result()
    return results


def _measure(
    rows: Rows, group: range, tokens: tuple[TokenFolder, TokenFolder], how: Measuring, results: Measured
) -> None:
    """Measure a group of rows; each has a place of its own among the results."""
    with ExitStack() as stack:
        small = _small_pairs(stack, rows, tokens, how, results)
        names = rows.names
        alone = []
        for index in group:
            pair = names[index]
            if pair is None or small is None or not small.take(index, *pair):
                alone.append(index)
        if small is not None:
            alone += small.finish()
    for index in alone:
        _measure_alone(index, rows, tokens, how, results)


def _small_pairs(
    stack: ExitStack, rows: Rows, tokens: tuple[TokenFolder, TokenFolder], how: Measuring, results: Measured
) -> SmallPairs | None:
    """Nothing goes together without kernels, from other machines, or where own metrics want to see every tensor."""
    elsewhere = any(remote(token.root) is not None for token in tokens)
    if elsewhere or how.engine in (None, PLAIN) or how.algorithms is not None or not can_read_small_files():
        return None
    try:
        target, golden = (
            stack.enter_context(SmallFiles(token.base, known))
            for token, known in zip(tokens, rows.described, strict=True)
        )
    except OSError:
        return None  # a token's folder that is gone: every row will say so
    return SmallPairs(target, golden, results)


def _measure_alone(
    index: int, rows: Rows, tokens: tuple[TokenFolder, TokenFolder], how: Measuring, results: Measured
) -> None:
    """Load and measure one row; what is wrong with its files is its fault, and nobody else's."""
    files = rows.files(index)
    try:
        if files[0] and files[1]:
            loaded = load_row(files, tokens, partial=rows.rows[index].partial)
            metrics = measure_llm_pair(loaded.target, loaded.golden, engine=how.engine)
            results.put(index, metrics, loaded.dtypes, loaded.shapes)
            if loaded.remark:
                results.remarks[index] = loaded.remark
            if how.algorithms is not None and not metrics.reason:
                results.custom[index] = how.algorithms(loaded.golden, loaded.target)
            return
        # A tensor without counterpart is shown with its own statistics.
        side = 0 if files[0] else 1
        tensor = tokens[side].open(files[side][0])
        found = statistics(tensor)
        sides = [SideStatistics(), SideStatistics()]
        if found.mean is not None:
            sides[side] = SideStatistics(*(float(value or 0) for value in (found.max, found.min, found.mean)))
        texts = [["", ""], ["", ""]]
        texts[0][side], texts[1][side] = f"torch.{tensor.dtype}", str(list(tensor.shape))
        results.put(index, LlmMetrics("", sides[0], sides[1]), *texts)
    except DamagedTensor as damage:
        results.faults[index] = str(damage)
    except MemoryError:
        results.faults[index] = "the tensors need more memory than this machine has free"
    except OSError as error:
        results.faults[index] = f"a tensor file cannot be read: {error.strerror}"
