"""One token on one device, compared: rows, measurements, verdicts, and its part of the report."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

from twinprobe.compare.llm.custom import Algorithms
from twinprobe.compare.llm.judge import Measured, judge_rows
from twinprobe.compare.llm.load import Store, load_row
from twinprobe.compare.llm.plan import Plan
from twinprobe.compare.llm.rows import Row, rows_of
from twinprobe.compare.llm.table import token_table
from twinprobe.errors import DamagedTensor, TwinProbeError
from twinprobe.judge.summary import Divergence
from twinprobe.judge.thresholds import Thresholds
from twinprobe.judge.verdicts import Judged
from twinprobe.measure.engine import announce
from twinprobe.measure.llm_metrics import SHAPE, Basics, LlmMetrics, measure_llm_pair
from twinprobe.measure.statistics import statistics
from twinprobe.runs.llm.files import TensorFile, atb_files, torch_files
from twinprobe.runs.llm.layout import TORCH
from twinprobe.runs.places import remote

if TYPE_CHECKING:
    import polars as pl

_LOOK_AHEAD = 4
_REQUESTS = 8


@dataclass(frozen=True, slots=True)
class Where:
    """One side of a token: the dump's kind and root, the token's folder, and the same token's folder on all cards."""

    kind: str
    root: Path
    folder: str
    cards: tuple[str, ...] = ()

    def store(self) -> Store:
        files = (torch_files if self.kind == TORCH else atb_files)(self.root, self.folder)
        return Store(self.root, self.folder, self.cards, files)


@dataclass(frozen=True, slots=True)
class TokenJob:
    """What a worker is asked to do."""

    token: str
    device: str
    my: Where
    golden: Where
    plan: Plan
    level: str | None = None
    limits: Thresholds = field(default_factory=Thresholds)
    algorithms: tuple[str, ...] = ()
    timeout: float = 60.0
    threads: int = 1
    bytes_ahead: int = 0
    """About how much this process will have to read, on both sides."""


@dataclass(slots=True)
class TokenResult:
    """A token's rows in the report, and the counts for the summary."""

    table: pl.DataFrame
    matched: int
    misshapen: int
    """Matched rows whose sizes differ."""
    unread: int
    """Rows with a file that cannot be read."""
    my_only: int
    golden_only: int
    first: Divergence | None


def compare_token(job: TokenJob) -> TokenResult:
    """Compare one token. Never raises anything that another process could not read."""
    try:
        return _compare(job)
    except TwinProbeError:
        raise
    except Exception as error:  # a defect: it must not cost more than this token
        raise TwinProbeError(f"token {job.token} could not be compared: {type(error).__name__}: {error}") from error


def _compare(job: TokenJob) -> TokenResult:
    announce(job.bytes_ahead)
    my, golden = job.my.store(), job.golden.store()
    return result_of(job, rows_of(job.plan, my.files, golden.files, job.level), my, golden)


def result_of(job: TokenJob, rows: list[Row], my: Store, golden: Store) -> TokenResult:
    """Measure and judge the rows of a token."""
    algorithms = Algorithms(job.algorithms, timeout=job.timeout) if job.algorithms else None
    try:
        measured = list(_measured(rows, my, golden, algorithms, job.threads))
    finally:
        if algorithms is not None:
            algorithms.close()
    judged = judge_rows(job.my.root / job.my.folder, job.plan, rows, measured, job.limits)
    names = algorithms.names if algorithms else ()
    table = token_table(job.token, job.device, (my.root, golden.root), rows, measured, judged, names)
    return TokenResult(
        table,
        matched=sum(bool(row.my and row.golden) for row in rows),
        misshapen=sum(one.metrics is not None and one.metrics.reason == SHAPE for one in measured),
        unread=sum(bool(one.fault) for one in measured),
        my_only=sum(not row.golden for row in rows),
        golden_only=sum(not row.my for row in rows),
        first=_first(job, rows, measured, judged),
    )


def _measured(
    rows: Sequence[Row], my: Store, golden: Store, algorithms: Algorithms | None, threads: int
) -> Iterator[Measured]:
    jobs = (partial(measure_row, row, my, golden, algorithms) for row in rows)
    if remote(my.root) is not None or remote(golden.root) is not None:
        threads = max(threads, _REQUESTS)  # most of the time they wait for an answer
    if threads == 1 or algorithms is not None:
        return (job() for job in jobs)
    return _in_threads(jobs, threads)


def _in_threads(jobs: Iterator[Callable[[], Measured]], threads: int) -> Iterator[Measured]:
    waiting: deque[Future[Measured]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="twinprobe-llm") as pool:
        for job in jobs:
            waiting.append(pool.submit(job))
            if len(waiting) >= threads * _LOOK_AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def measure_row(row: Row, my: Store, golden: Store, algorithms: Algorithms | None = None) -> Measured:
    """Load and measure one row; what is wrong with its files is its fault, and nobody else's."""
    try:
        if not row.my or not row.golden:
            return _alone(row, my if row.my else golden)
        loaded = load_row(row, my, golden)
        metrics = measure_llm_pair(loaded.my, loaded.golden)
        custom: tuple[tuple[str, str], ...] = ()
        if algorithms is not None and not metrics.reason:
            custom = algorithms(loaded.golden, loaded.my)
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


def _first(job: TokenJob, rows: Sequence[Row], measured: Sequence[Measured], judged: Judged) -> Divergence | None:
    """The row where the difference begins, told in a sentence."""
    at = judged.first_row
    if at is None:
        return None
    row, one = rows[at], measured[at]
    error = float(judged.error[at])
    size = "" if isnan(error) else f" (relative error {error:.2%})" if error < 10 else f" ({error:.1e} times)"
    call = job.plan.calls[row.call]
    return Divergence(
        op=f"token {job.token}: {call.name} ({call.op_type})",
        row=_shown(row.my),
        golden_row=_shown(row.golden),
        stack_line="",
        target_values=_values(one, 0),
        golden_values=_values(one, 1),
        relative_error=None if isnan(error) else error,
        sentence=f"{Path(row.my[0].file).stem}: {judged.reason[at]}{size}",
        origin=judged.origin[at],
        order=at,
    )


def _shown(files: tuple[TensorFile, ...]) -> str:
    return ";".join(file.file for file in files)


def _values(one: Measured, side: int) -> dict[str, str]:
    values = {"dtype": one.dtypes[side], "shape": one.shapes[side]}
    if one.metrics is not None:
        basics = one.metrics.golden if side else one.metrics.my
        values |= {name: str(getattr(basics, name)) for name in ("max", "min", "mean")}
    return values
