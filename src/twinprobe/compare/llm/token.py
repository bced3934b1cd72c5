"""One token on one device, compared: rows, measurements, verdicts, and its part of the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

from twinprobe.compare.llm.custom import Algorithms
from twinprobe.compare.llm.judge import judge_rows
from twinprobe.compare.llm.load import Store
from twinprobe.compare.llm.measured import Measuring, measure_rows
from twinprobe.compare.llm.plan import Plan
from twinprobe.compare.llm.results import Measured
from twinprobe.compare.llm.rows import Row, Rows, rows_of
from twinprobe.compare.llm.table import token_table
from twinprobe.errors import TwinProbeError
from twinprobe.judge.summary import Divergence
from twinprobe.judge.thresholds import Thresholds
from twinprobe.judge.verdicts import Judged
from twinprobe.measure.engine import engine_of
from twinprobe.measure.llm_metrics import SHAPE
from twinprobe.runs.llm.files import TensorFile, atb_files, torch_files, under
from twinprobe.runs.llm.layout import TORCH

if TYPE_CHECKING:
    import polars as pl


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
    """About how much all jobs together have to read, on both sides; 0 if nobody knows."""


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """What the summary wants to know of a token."""

    matched: int
    misshapen: int
    """Matched rows whose sizes differ."""
    unread: int
    """Rows with a file that cannot be read."""
    my_only: int
    golden_only: int
    first: Divergence | None


@dataclass(slots=True)
class TokenResult:
    """A token's rows in the report, and the counts for the summary."""

    table: pl.DataFrame
    counts: TokenCounts


def compare_token(job: TokenJob) -> TokenResult:
    """Compare one token. Never raises anything that another process could not read."""
    try:
        return _compare(job)
    except TwinProbeError:
        raise
    except Exception as error:  # a defect: it must not cost more than this token
        raise TwinProbeError(f"token {job.token} could not be compared: {type(error).__name__}: {error}") from error


def _compare(job: TokenJob) -> TokenResult:
    my, golden = job.my.store(), job.golden.store()
    return result_of(job, rows_of(job.plan, my.files, golden.files, job.level), my, golden)


def result_of(job: TokenJob, rows: Rows, my: Store, golden: Store) -> TokenResult:
    """Measure and judge the rows of a token."""
    algorithms = Algorithms(job.algorithms, timeout=job.timeout) if job.algorithms else None
    try:
        # Equal work gives equal digits, on however many workers: the engine goes by all of it.
        engine = engine_of(job.bytes_ahead) if job.bytes_ahead else None
        measured = measure_rows(rows, my, golden, Measuring(engine, algorithms, job.threads))
    finally:
        if algorithms is not None:
            algorithms.close()
    judged = judge_rows(job.my.root / job.my.folder, job.plan, rows, measured, job.limits)
    names = algorithms.names if algorithms else ()
    table = token_table(job.token, job.device, (my.base, golden.base), rows, measured, judged, names)
    counts = TokenCounts(
        matched=sum(bool(row.my and row.golden) for row in rows),
        misshapen=sum(reason == SHAPE for reason in measured.reasons.values()),
        unread=len(measured.faults),
        my_only=sum(not row.golden for row in rows),
        golden_only=sum(not row.my for row in rows),
        first=_first(job, rows, measured, judged),
    )
    return TokenResult(table, counts)


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
        row=_shown(job.my, row.my),
        golden_row=_shown(job.golden, row.golden),
        stack_line="",
        target_values=_values(one, 0),
        golden_values=_values(one, 1),
        relative_error=None if isnan(error) else error,
        sentence=f"{Path(row.my[0].file).stem}: {judged.reason[at]}{size}{judged.unread_before}",
        origin=judged.origin[at],
        order=at,
    )


def _shown(side: Where, files: tuple[TensorFile, ...]) -> str:
    return ";".join(under(side.folder, file) for file in files)


def _values(one: Measured, side: int) -> dict[str, str]:
    values = {"dtype": one.dtypes[side], "shape": one.shapes[side]}
    if one.metrics is not None:
        basics = one.metrics.golden if side else one.metrics.my
        values |= {name: str(getattr(basics, name)) for name in ("max", "min", "mean")}
    return values
