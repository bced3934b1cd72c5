"""The rows of a token, measured: small files many at a time, all others one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple

from twinprobe.compare.llm.custom import Algorithms
from twinprobe.compare.llm.load import Store, load_row
from twinprobe.compare.llm.results import Measured, MeasuredRows
from twinprobe.compare.llm.rows import Row, Rows
from twinprobe.compare.llm.small_pairs import SmallPairs
from twinprobe.errors import DamagedTensor
from twinprobe.measure.blocks import Engine
from twinprobe.measure.engine import PLAIN
from twinprobe.measure.llm_metrics import Basics, LlmMetrics, measure_llm_pair
from twinprobe.measure.statistics import statistics
from twinprobe.runs.llm.small_files import SmallFiles, can_read_small_files
from twinprobe.runs.places import remote

# Rows that a thread measures at a time at most, and how many such groups wait for each thread.
_GROUP, _LOOK_AHEAD = 64, 4
_REQUESTS = 8

Names = Sequence[tuple[str, str] | None]


class Measuring(NamedTuple):
    """How rows are measured: with which engine (None: as it turns out), own metrics, and threads."""

    engine: Engine | None = None
    algorithms: Algorithms | None = None
    threads: int = 1


def measure_rows(rows: Rows, my: Store, golden: Store, how: Measuring) -> MeasuredRows:
    """Measure all rows, in their order."""
    threads = how.threads
    if remote(my.root) is not None or remote(golden.root) is not None:
        threads = max(threads, _REQUESTS)  # most of the time they wait for an answer
    if threads == 1 or how.algorithms is not None:
        return MeasuredRows(_measured(rows, rows.names, my, golden, how))
    # Enough groups for all threads to end at about the same time.
    size = max(1, min(_GROUP, len(rows) // (4 * threads)))
    groups = ((rows[at : at + size], rows.names[at : at + size]) for at in range(0, len(rows), size))
    return MeasuredRows(one for group in _in_threads(groups, my, golden, how, threads) for one in group)


def _in_threads(
    groups: Iterator[tuple[Sequence[Row], Names]], my: Store, golden: Store, how: Measuring, threads: int
) -> Iterator[list[Measured]]:
    waiting: deque[Future[list[Measured]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="twinprobe-llm") as pool:
        for group in groups:
            waiting.append(pool.submit(_measured, *group, my, golden, how))
            if len(waiting) >= threads * _LOOK_AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _measured(rows: Sequence[Row], names: Names, my: Store, golden: Store, how: Measuring) -> list[Measured]:
    with ExitStack() as stack:
        small = _small_pairs(stack, my, golden, how)
        found = [
            None if pair and small and small.take(at, *pair) else measure_row(row, my, golden, how)
            for at, (row, pair) in enumerate(zip(rows, names, strict=True))
        ]
        done = small.results() if small else {}
    return [
        one if one is not None else done.get(at) or measure_row(rows[at], my, golden, how)
        for at, one in enumerate(found)
    ]


def _small_pairs(stack: ExitStack, my: Store, golden: Store, how: Measuring) -> SmallPairs | None:
    """Nothing goes together without kernels, from other machines, or where own metrics want to see every tensor."""
    elsewhere = remote(my.root) is not None or remote(golden.root) is not None
    if elsewhere or how.engine in (None, PLAIN) or how.algorithms is not None or not can_read_small_files():
        return None
    try:
        return SmallPairs(*(stack.enter_context(SmallFiles(side.base)) for side in (my, golden)))
    except OSError:
        return None  # a token's folder that is gone: every row will say so


def measure_row(row: Row, my: Store, golden: Store, how: Measuring) -> Measured:
    """Load and measure one row; what is wrong with its files is its fault, and nobody else's."""
    try:
        if not row.my or not row.golden:
            return _alone(row, my if row.my else golden)
        loaded = load_row(row, my, golden)
        metrics = measure_llm_pair(loaded.my, loaded.golden, engine=how.engine)
        custom: tuple[tuple[str, str], ...] = ()
        if how.algorithms is not None and not metrics.reason:
            custom = how.algorithms(loaded.golden, loaded.my)
        return Measured(metrics, "", loaded.dtypes, loaded.shapes, loaded.remark, custom)
    except DamagedTensor as damage:
        return Measured(fault=str(damage))
    except MemoryError:
        return Measured(fault="the tensors need more memory than this machine has free")
    except OSError as error:
        return Measured(fault=f"a tensor file cannot be read: {error.strerror}")


def _alone(row: Row, store: Store) -> Measured:
    """A tensor without counterpart is shown with its own statistics."""
    tensor = store.open((row.my or row.golden)[0])
    found = statistics(tensor)
    basics = Basics() if found.mean is None else Basics(*(float(x or 0) for x in (found.max, found.min, found.mean)))
    nothing = Basics()
    metrics = LlmMetrics("", basics, nothing) if row.my else LlmMetrics("", nothing, basics)
    texts = f"torch.{tensor.dtype}", str(list(tensor.shape))
    sides = [(text, "") if row.my else ("", text) for text in texts]
    return Measured(metrics, "", sides[0], sides[1])
