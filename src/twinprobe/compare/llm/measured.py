"""The rows of a token, measured: files of usual sizes many at a time, all others one by one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
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

# Rows that a thread measures at a time at most.
_GROUP = 64
_REQUESTS = 8


class Measuring(NamedTuple):
    """How rows are measured: with which engine (None: as it turns out), own metrics, and threads."""

    engine: Engine | None = None
    algorithms: Algorithms | None = None
    threads: int = 1


def measure_rows(rows: Rows, my: Store, golden: Store, how: Measuring) -> MeasuredRows:
    """Measure all rows, in their order."""
    results = MeasuredRows(len(rows))
    threads = how.threads
    if remote(my.root) is not None or remote(golden.root) is not None:
        threads = max(threads, _REQUESTS)  # most of the time they wait for an answer
    if threads == 1 or how.algorithms is not None:
        _measure(rows, range(len(rows)), (my, golden), how, results)
        return results
    # Enough groups for all threads to end at about the same time.
    size = max(1, min(_GROUP, len(rows) // (4 * threads)))
    with ThreadPoolExecutor(threads, thread_name_prefix="twinprobe-llm") as pool:
        groups = [range(at, min(at + size, len(rows))) for at in range(0, len(rows), size)]
        for done in [pool.submit(_measure, rows, group, (my, golden), how, results) for group in groups]:
            done.result()
    return results


def _measure(rows: Rows, group: range, stores: tuple[Store, Store], how: Measuring, results: MeasuredRows) -> None:
    """Measure a group of rows; each has a place of its own among the results."""
    with ExitStack() as stack:
        small = _small_pairs(stack, rows, stores, how, results)
        names = rows.names
        alone = []
        for at in group:
            pair = names[at]
            if pair is None or small is None or not small.take(at, *pair):
                alone.append(at)
        if small is not None:
            alone += small.finish()
    for at in alone:
        results.put(at, measure_row(rows[at], *stores, how))


def _small_pairs(
    stack: ExitStack, rows: Rows, stores: tuple[Store, Store], how: Measuring, results: MeasuredRows
) -> SmallPairs | None:
    """Nothing goes together without kernels, from other machines, or where own metrics want to see every tensor."""
    elsewhere = any(remote(store.root) is not None for store in stores)
    if elsewhere or how.engine in (None, PLAIN) or how.algorithms is not None or not can_read_small_files():
        return None
    try:
        my, golden = (
            stack.enter_context(SmallFiles(store.base, known))
            for store, known in zip(stores, rows.described, strict=True)
        )
    except OSError:
        return None  # a token's folder that is gone: every row will say so
    return SmallPairs(my, golden, results)


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
