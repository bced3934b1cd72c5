"""One token on one device, compared as an ordinary run: paired, measured, judged, and its part of the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import isnan, prod
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from twinprobe._align.calls import epsilon
from twinprobe._align.ops.plan import Plan
from twinprobe._compare.llm.custom import Algorithms
from twinprobe._compare.llm.measured import Measured, Measuring, measure_rows
from twinprobe._compare.llm.rows import BETWEEN, Rows, rows_of
from twinprobe._judge.describe import size_of
from twinprobe._judge.deviation import IDENTICAL, ROUNDING, UNKNOWN, UNMATCHED, Deviation, of_statistics, of_tensors
from twinprobe._judge.rules import EPSILONS, RULES, Thresholds
from twinprobe._judge.summary import Divergence
from twinprobe._judge.verdicts import Evidence, Judged, judge
from twinprobe._lazy import polars as pl
from twinprobe._measure.engine import engine_of
from twinprobe._measure.llm_metrics import SHAPE
from twinprobe._measure.loops.inference_sums import SMALLEST
from twinprobe._measure.statistics import stat_differences, statistics
from twinprobe._runs.llm.files import STATS as TITLES
from twinprobe._runs.llm.files import RecordedTensor, TensorFile, TokenFolder, recorded_statistics
from twinprobe._runs.run import STATISTICS, TENSORS
from twinprobe._runs.table import FLOAT, STATS
from twinprobe._scale.engine import EngineOptions
from twinprobe._scale.ledger import Session
from twinprobe.errors import DamagedTensor, TwinProbeError


@dataclass(frozen=True)
class LlmRequest:
    """What the user asked for."""

    target: Path
    golden: Path
    level: str | None = None
    mapping: Path | None = None
    statistics: bool = False
    """Whether what was recorded of the tensors is compared, instead of the tensors."""
    algorithms: tuple[str, ...] = ()
    thresholds: Thresholds = field(default_factory=Thresholds)
    engine: EngineOptions = field(default_factory=EngineOptions)
    timeout: float = 60.0

    @property
    def limits(self) -> Thresholds:
        """The thresholds of these reports, which judge by a fixed tolerance."""
        return replace(self.thresholds, rounding=self.thresholds.rounding or EPSILONS)


@dataclass(frozen=True, slots=True)
class TokenJob:
    """What a worker is asked to do."""

    token: str
    device: str
    target: TokenFolder
    golden: TokenFolder
    plan: Plan
    request: LlmRequest
    threads: int = 1
    bytes_ahead: int = 0
    """About how much all jobs together have to read, on both sides; 0 if nobody knows."""
    session: Session | None = None
    """Where finished tokens are kept, if the command can be resumed."""
    plan_mark: str = ""
    """Stands for the plan, which many tokens share, in what is kept."""


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """What the summary wants to know of a token."""

    matched: int
    misshapen: int
    """Matched rows whose sizes differ."""
    unread: int
    """Rows with a file that cannot be read."""
    target_only: int
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
        if job.request.statistics:
            return _compare_statistics(job)
        return result_of(job, rows_of(job.plan, job.target.files, job.golden.files, job.request.level))
    except TwinProbeError:
        raise
    except Exception as error:  # a defect: it must not cost more than this token
        raise TwinProbeError(f"token {job.token} could not be compared: {type(error).__name__}: {error}") from error


def result_of(job: TokenJob, rows: Rows) -> TokenResult:
    """Measure and judge the rows of a token."""
    algorithms = Algorithms(job.request.algorithms, timeout=job.request.timeout) if job.request.algorithms else None
    try:
        # Equal work gives equal digits, on however many workers: the engine goes by all of it.
        engine = engine_of(job.bytes_ahead) if job.bytes_ahead else None
        measured = measure_rows(rows, job.target, job.golden, Measuring(engine, algorithms, job.threads))
    finally:
        if algorithms is not None:
            algorithms.close()
    misshapen = [index for index, reason in measured.reasons.items() if reason == SHAPE]
    pairs = _of_engines(rows.tensor_pairs, measured.dtypes, measured.shapes, misshapen)
    judged = _judge_tensors(job, rows, pairs, measured)
    table = _tensor_table(job, rows, measured, judged, algorithms.names if algorithms else ())

    def values(side: int, index: int) -> dict[str, str]:
        shown = {"dtype": measured.dtypes[side][index], "shape": measured.shapes[side][index]}
        metrics = measured.of_row(index)
        basics = metrics.golden if side else metrics.target
        return shown | {name: str(getattr(basics, name)) for name in basics._fields}

    return TokenResult(table, _counts(job, rows, pairs, judged, len(misshapen), len(measured.faults), values))


def _judge_tensors(job: TokenJob, rows: Rows, pairs: pl.DataFrame, measured: Measured) -> Judged:
    limits = job.request.limits
    metrics = measured.metrics()
    matched = (pairs["t_row"].is_not_null() & pairs["g_row"].is_not_null()).to_numpy()
    state = np.where(matched, UNKNOWN, UNMATCHED).astype(np.uint8)
    recorded = Deviation(state, np.full(len(rows), np.nan), np.zeros(len(rows), dtype=bool))
    deviation = of_tensors(pairs, metrics, recorded, limits.rounding)
    # The share of elements within one thousandth says nothing where rounding explains the whole difference.
    small = (deviation.state == ROUNDING) | (deviation.state == IDENTICAL)
    metrics = metrics.with_columns(one_thousandth=np.where(small, 1.0, metrics["one_thousandth"].to_numpy()))
    run = rows.run(job.target.root / job.target.folder, TENSORS)
    return judge(run, Evidence(TENSORS, pairs, deviation, None, metrics), limits)


def _of_engines(
    pairs: pl.DataFrame, dtypes: Sequence[Sequence[str]], shapes: Sequence[Sequence[str]], misshapen: Sequence[int]
) -> pl.DataFrame:
    """The pair table as two engines are judged: they differ in dtype and in axes of length one by design.

    So neither counts against a row: both sides have the coarser dtype, and a shape only where the sizes differ.
    """
    both = pairs["t_row"].is_not_null() & pairs["g_row"].is_not_null()
    coarser = pl.Series([_coarser(pair) for pair in zip(*dtypes, strict=True)], dtype=pl.String)
    coarser = pl.select(pl.when(both).then(coarser)).to_series()
    columns = [coarser.alias("t_dtype"), coarser.alias("g_dtype")]
    for side, shown in zip("tg", shapes, strict=True):
        unlike: list[str | None] = [None] * pairs.height
        for index in misshapen:
            unlike[index] = shown[index]
        columns.append(pl.Series(f"{side}_shape", unlike, dtype=pl.String))
    return pairs.with_columns(columns)


@lru_cache(maxsize=1 << 10)
def _coarser(dtypes: tuple[str, str]) -> str:
    names = [name for text in dtypes for name in text.split(";") if name]
    return max(names, key=epsilon) if names else ""


def _counts(
    job: TokenJob,
    rows: Rows,
    pairs: pl.DataFrame,
    judged: Judged,
    misshapen: int,
    unread: int,
    values: Callable[[int, int], dict[str, str]],
) -> TokenCounts:
    target_only, golden_only = pairs["g_row"].null_count(), pairs["t_row"].null_count()
    matched = len(rows) - target_only - golden_only
    index = judged.first_row
    if index is None:
        return TokenCounts(matched, misshapen, unread, target_only, golden_only, None)
    target, golden = rows.files(index)
    call, error = rows.both[0].call(rows.rows[index].target[0]), float(judged.error[index])
    stem = PurePath(target[0].file.partition("#")[0]).stem
    sides = ((job.target, target), (job.golden, golden))
    if job.request.statistics:
        names = [";".join(f"{token.base}{file.file}" for file in files) for token, files in sides]
    else:
        names = [token.names(files) for token, files in sides]
    first = Divergence(
        op=f"token {job.token}: {call.name} ({call.op_type})",
        row=names[0],
        golden_row=names[1],
        stack_line="",
        target_values=values(0, index),
        golden_values=values(1, index),
        relative_error=None if isnan(error) else error,
        sentence=f"{stem}: {judged.reason[index]}{size_of(error)}{judged.unread_before}",
        origin=judged.origin[index],
        order=index,
    )
    return TokenCounts(matched, misshapen, unread, target_only, golden_only, first)


# Statistics that were recorded, in place of tensors.


def _compare_statistics(job: TokenJob) -> TokenResult:
    tokens = job.target, job.golden
    (target_files, golden_files), known = zip(*map(recorded_statistics, tokens), strict=True)
    rows = rows_of(job.plan, target_files, golden_files, job.request.level)
    faults: dict[int, str] = {}
    used: tuple[dict[str, RecordedTensor], dict[str, RecordedTensor]] = {}, {}
    for index, row in enumerate(rows.rows):
        for side, files in enumerate(rows.files(index) if row.target and row.golden else ()):
            try:
                used[side].update({file.file: _recorded(tokens[side], file, known[side]) for file in files})
            except DamagedTensor as damage:
                faults.setdefault(index, f"{RULES['unreadable'].words}: {damage}")
    pairs = rows.pairs(STATISTICS, used)
    misshapen = []
    for index in range(len(rows)):
        target, golden = (
            sum(prod(found[file.file].shape) for file in listed if file.file in found)
            for found, listed in zip(used, rows.files(index), strict=True)
        )
        if target != golden:
            misshapen.append(index)
    dtypes, shapes = ([pairs[f"{side}_{name}"].fill_null("").to_list() for side in "tg"] for name in ("dtype", "shape"))
    pairs = _of_engines(pairs, dtypes, shapes, misshapen)
    limits = job.request.limits
    differences = stat_differences(pairs)
    deviation = of_statistics(pairs, differences, limits.rounding)
    run = rows.run(job.target.root / job.target.folder, STATISTICS)
    judged = judge(run, Evidence(STATISTICS, pairs, deviation, differences), limits)
    columns: dict[str, pl.Series] = {"token_id": pl.repeat(job.token, len(rows), dtype=pl.String, eager=True)}
    for side, own, title in ((1, "golden", "golden"), (0, "target", "my")):
        paths = _paths(rows, own, title, tokens[side].base)
        columns |= {name: column.fill_null("") for name, column in paths.items()}
    for stat, title in zip(STATS, TITLES, strict=True):
        m, g = (pl.select(pl.when(pairs[f"{side}_{stat}_kind"] == FLOAT).then(pairs[f"{side}_{stat}"])).to_series()
                for side in "tg")  # fmt: skip
        gap = (m - g).abs()
        scale = pl.select(pl.max_horizontal(g.abs(), pl.lit(SMALLEST))).to_series()
        columns |= {f"{title}_stat_absolute_error": gap, f"{title}_stat_relative_error": gap / scale}
    columns["Matched By"] = rows.texts["rule"]
    columns |= _verdicts(judged)
    columns["Reason"] = _with(columns["Reason"], faults)
    unread = int(columns["Reason"].str.starts_with(RULES["unreadable"].words).sum())
    counts = _counts(job, rows, pairs, judged, len(misshapen), unread, lambda _side, _index: {})
    return TokenResult(pl.DataFrame(columns), counts)


def _recorded(token: TokenFolder, file: TensorFile, known: dict[str, RecordedTensor]) -> RecordedTensor:
    """What was recorded of a tensor; one without statistics is measured."""
    if file.file in known:
        return known[file.file]
    tensor = token.open(file)
    found = statistics(tensor)
    numbers = (found.max, found.min, found.mean, found.norm)
    return RecordedTensor(tensor.dtype, tensor.shape, tuple(None if one is None else float(one) for one in numbers))


# The report: the columns that people know, then what TwinProbe adds.

METRICS: dict[str, str] = {
    "cosine_similarity": "cosine",
    "max_relative_error": "max_rel",
    "mean_relative_error": "mean_rel",
    "max_absolute_error": "max_abs",
    "mean_absolute_error": "mean_abs",
    "kl_divergence": "kl",
    "relative_euclidean_distance": "euclid",
}
# How the web page and the other reports call what these columns hold.
SHARED_NAMES = {
    f"{side}_{old}": f"{who} {new}"
    for side, who in (("my", "NPU"), ("golden", "Bench"))
    for old, new in (
        ("data_path", "Name"), ("dtype", "Dtype"), ("shape", "Tensor Shape"), ("max_value", "max"),
        ("min_value", "min"), ("mean_value", "mean"),
    )
}  # fmt: skip


def _tensor_table(
    job: TokenJob, rows: Rows, measured: Measured, judged: Judged, algorithms: Sequence[str]
) -> pl.DataFrame:
    """The rows of one token as they stand in the report, but for the running ``data_id``."""
    known = rows.texts
    columns: dict[str, pl.Series] = {"token_id": pl.repeat(job.token, len(rows), dtype=pl.String, eager=True)}
    bases = job.target.base, job.golden.base
    for side, own, title in ((1, "golden", "golden"), (0, "target", "my")):  # the report keeps its old titles
        columns |= _paths(rows, own, title, bases[side])
        columns[f"{title}_dtype"] = pl.Series(measured.dtypes[side], dtype=pl.String)
        columns[f"{title}_shape"] = pl.Series(measured.shapes[side], dtype=pl.String)
        columns |= {f"{title}_{basic}_value": measured.column(f"{own}_{basic}") for basic in ("max", "min", "mean")}
    columns |= {title: measured.column(name) for title, name in METRICS.items()}
    columns["cmp_fail_reason"] = _with(known["alone"], _fail_reasons(known["alone"], measured))
    for index, name in enumerate(algorithms):
        answers = [measured.custom[row][index][0] if row in measured.custom else "" for row in range(len(rows))]
        columns[name] = pl.Series(answers, dtype=pl.String)
    columns["Device"] = pl.repeat(job.device, len(rows), dtype=pl.String, eager=True)
    columns["Level"] = known["level"]
    remarks = {index: f"{rows.rows[index].rule} ({remark})" for index, remark in measured.remarks.items()}
    columns["Matched By"] = _with(known["rule"], remarks)
    columns["Max Absolute Error Everywhere"] = measured.column("max_abs_all")
    verdicts = _verdicts(judged)
    columns["Relative Error"] = verdicts.pop("Relative Error")
    columns["Origin"] = pl.Series(judged.origin, dtype=pl.String)
    # An empty text is quoted in csv; nothing is nothing.
    return pl.DataFrame(columns | verdicts).with_columns(pl.col(pl.String).replace("", None))


def _paths(rows: Rows, own: str, title: str, front: str) -> dict[str, pl.Series]:
    """Several files of a row are told one after the other, each with its whole path."""
    paths = (front + rows.texts[f"{own}_files"]).str.replace_all(BETWEEN, f";{front}", literal=True)
    return {f"{title}_data_path": paths, f"{title}_op_type": rows.texts[f"{own}_type"]}


def _verdicts(judged: Judged) -> dict[str, Any]:
    return {
        "Relative Error": pl.Series(judged.error).fill_nan(None),
        "Result": pl.Series(judged.verdict, dtype=pl.String),
        "Reason": pl.Series(judged.reason, dtype=pl.String),
    }


def _fail_reasons(alone: pl.Series, measured: Measured) -> dict[int, str]:
    """Why rows have no numbers, and what own metrics said; a tensor without counterpart has its reason already."""
    words_of: dict[int, list[str]] = {index: [reason] for index, reason in (measured.reasons | measured.faults).items()}
    for index, custom in measured.custom.items():
        words_of.setdefault(index, []).extend(message for _, message in custom if message)
    return {index: " ".join(words).strip() for index, words in words_of.items() if not alone[index]}


def _with(column: pl.Series, others: dict[int, str]) -> pl.Series:
    """A column with other texts in a few rows."""
    texts = column.to_list() if others else column
    for index, text in others.items():
        texts[index] = text
    return pl.Series(texts, dtype=pl.String)


def numbered(tables: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The tables of all tokens under each other, with ``data_id`` in its place."""
    table = pl.concat(tables)
    return table.insert_column(1, pl.Series("data_id", range(table.height), dtype=pl.Int64))
