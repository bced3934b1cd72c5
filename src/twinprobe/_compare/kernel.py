"""The compare command's work on kernel dumps: every common rank and step, each compared and written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from twinprobe import __version__
from twinprobe._align.folders import match_kernels
from twinprobe._align.matcher import MappingOptions
from twinprobe._compare.one import Options, compare_runs, silent
from twinprobe._compare.ranks import finish, run_all
from twinprobe._compare.request import Outcome, Request, once
from twinprobe._judge.deviation import bools
from twinprobe._judge.rules import Thresholds
from twinprobe._judge.summary import Summary
from twinprobe._judge.verdicts import Evidence, Judged
from twinprobe._lazy import polars as pl
from twinprobe._measure.statistics import statistics
from twinprobe._report.console import log_rows
from twinprobe._report.files import prepare_folder
from twinprobe._report.tables import (
    DIFFERENCES,
    NOT_APPLICABLE,
    RELATIVES,
    SIDES,
    float_texts,
    metric_columns,
    side_columns,
    statistic_columns,
    write_reports,
)
from twinprobe._runs.kernel_dump import (
    NPY,
    NULL,
    STATISTIC,
    KernelFolder,
    KernelRow,
    kernel_folders,
    parse_kernel_name,
    read_kernels,
)
from twinprobe._runs.run import STATISTICS, TENSORS, Run, files_below, files_fingerprint
from twinprobe._runs.table import INPUT, OUTPUT, POINT, STATS, TableBuilder
from twinprobe._runs.tensors.tensor_files import tensor_loaders
from twinprobe._runs.whole_files import place
from twinprobe._scale.ledger import Session
from twinprobe.errors import BadInput, DamagedTensor, NothingToCompare

# Kernel compare: two dumps of a static graph, rank by rank and step by step.

# What compares calls of two frameworks means nothing for kernels: the flag of each option, by its name.
_MAPPING_FLAGS = {
    "fuzzy": "-fm (--fuzzy_match)",
    "api": "-am (--api_mapping)",
    "cell": "-cm (--cell_mapping)",
    "data": "-dm (--data_mapping)",
    "layer": "-lm (--layer_mapping)",
}


@dataclass(frozen=True)
class KernelPair:
    """One rank's step on both sides."""

    rank: int
    step: int
    target_root: Path
    golden_root: Path
    target: tuple[KernelFolder, ...]
    golden: tuple[KernelFolder, ...]


def refuse_mapping(options: MappingOptions) -> None:
    """Raise BadInput if a mapping is asked for; kernels have none."""
    for name, flag in _MAPPING_FLAGS.items():
        if getattr(options, name):
            refuse_option(flag)


def refuse_option(flag: str) -> None:
    """Raise BadInput for an option that kernel dumps do not have."""
    hint = "kernels are paired by their own names; --rank and --step choose among them"
    raise BadInput(f"{flag} cannot be used with kernel dumps", hint=hint)


def pair_kernels(
    target: Path, golden: Path, *, ranks: Collection[int] | None = None, steps: Collection[int] | None = None
) -> tuple[list[KernelPair], list[str]]:
    """The ranks and steps that both dumps have; and in words what was asked for and only one of them or none has."""
    sides = [_by_place(root, ranks, steps) for root in (target, golden)]
    common = sorted(sides[0].keys() & sides[1].keys())
    if not common:
        have = [_listed(side.keys()) for side in sides]
        what = f"no rank and step in common with {golden}: {have[0]} here, {have[1]} there"
        raise BadInput(what, where=target, hint="--rank and --step must name what both dumps have")
    notes = [
        f"only {root} has {_listed(side.keys() - set(common))}: left out"
        for root, side in ((target, sides[0]), (golden, sides[1]))
        if side.keys() - set(common)
    ]
    for what, asked, index in (("rank", ranks, 0), ("step", steps, 1)):
        absent = sorted(set(asked or ()) - {key[index] for side in sides for key in side})
        if absent:
            notes.append(f"no dump has {what} {', '.join(map(str, absent))}")
    return [KernelPair(*key, target, golden, tuple(sides[0][key]), tuple(sides[1][key])) for key in common], notes


def compare_kernel_pair(
    pair: KernelPair, thresholds: Thresholds | None = None, progress: Callable[[int, int], None] = silent
) -> tuple[pl.DataFrame, Summary]:
    """Compare one rank's step: the table that is written, and the summary with counts and notes."""
    target = open_kernel_run(pair.target_root, list(pair.target))
    golden = open_kernel_run(pair.golden_root, list(pair.golden))
    if target.task != golden.task:
        kinds = [NPY if run.task == TENSORS else STATISTIC for run in (target, golden)]
        what = f"holds {kinds[0]}, but {golden.path} holds {kinds[1]}"
        raise BadInput(what, where=target.path, hint="dump both runs with the same saved_data")
    pairs = match_kernels(target.rows, golden.rows)
    # Kernels are told apart by what they are given: dtype and shape count row by row, as in the columns of old.
    limits = replace(thresholds or Thresholds(), by_row=True)
    options = Options(match=lambda _target, _golden: pairs, thresholds=limits, progress=progress)
    comparison = compare_runs(target, golden, options)
    summary = comparison.summary
    if not summary.matched:
        raise NothingToCompare(f"no kernel has a counterpart in {golden.path}", where=target.path)
    first = summary.first
    name = parse_kernel_name(Path(first.row).name) if first else None
    if first is not None and name is not None:  # the sentence tells which input or output, not the path of its file
        sentence = first.sentence.replace(first.row, f"{name.io}.{name.slot}")
        summary = replace(summary, first=replace(first, sentence=sentence))
    return kernel_table(target, golden, comparison.evidence, comparison.judged), summary


def _by_place(
    root: Path, ranks: Collection[int] | None, steps: Collection[int] | None
) -> dict[tuple[int, int], list[KernelFolder]]:
    if not root.is_dir():
        raise BadInput("is not a folder" if root.exists() else "does not exist", where=root)
    folders = kernel_folders(root)
    if not folders:
        layout = "rank_<R>/<net>/<graph>/<step> with npy files or a statistic.csv"
        raise BadInput("holds no kernel dump", where=root, hint=f"expected {layout}")
    keyed = groupby(folders, key=lambda folder: (folder.rank, folder.step))
    return {
        (rank, step): list(group)
        for (rank, step), group in keyed
        if (ranks is None or rank in ranks) and (steps is None or step in steps)
    }


def _listed(places: Iterable[tuple[int, int]]) -> str:
    shown = [f"rank {rank} step {step}" for rank, step in sorted(places)]
    return ", ".join(shown[:6]) + (" ..." if len(shown) > 6 else "") if shown else "nothing"


@dataclass(frozen=True)
class KernelJob:
    """One rank's step and what the user asked for."""

    pair: KernelPair
    request: Request
    session: Session | None = None

    @property
    def name(self) -> str:
        """The step and rank as people know them."""
        return f"step{self.pair.step}/rank{self.pair.rank}"


def run_kernel_request(request: Request, advance: Callable[[str, int, int], None]) -> Outcome:
    """Carry out a compare request on two kernel dumps; ``advance(what, done, total)`` reports progress."""
    pairs, lost = pair_kernels(request.target, request.golden, ranks=request.ranks, steps=request.steps)
    prepare_folder(request.output)
    with request.session("kernel", pairs) as (stamp, session, notes):
        stamped = replace(request, timestamp=stamp, formats=request.formats or ("xlsx",))
        jobs = [KernelJob(pair, stamped, session) for pair in pairs]
        if session is None:
            summary = _carry_out(jobs[0], lambda done, total: advance("MiB", done, total))
            return Outcome([summary], lost, notes)
        gathered = run_all(run_kernel_job, jobs, request, advance)
        finish(session, gathered, keep=False)
    return Outcome(gathered.in_order(), lost + gathered.reasons(), notes)


def run_kernel_job(job: KernelJob) -> Summary:
    """Compare one rank's step and write its results (in a worker process)."""

    def work() -> tuple[Summary, list[Path]]:
        summary = _carry_out(job, silent)
        return summary, [place(file) for file in summary.files]

    def mark() -> str:
        pair = job.pair
        sides = ((pair.target_root, pair.target), (pair.golden_root, pair.golden))
        parts = [files_fingerprint(root, [file for one in folders for file in files_below(one.path)])
                 for root, folders in sides]  # fmt: skip
        return " ".join([__version__, job.request.identity(), *parts])

    return once(job.session, job.name, mark, Summary, work)


def _carry_out(job: KernelJob, progress: Callable[[int, int], None]) -> Summary:
    request = job.request
    table, summary = compare_kernel_pair(job.pair, request.thresholds, progress)
    summary = replace(summary, rank=job.name)
    if request.log_rows:
        log_rows(table)
    stem = f"compare_result_{job.pair.rank}_{job.pair.step}_{request.timestamp}"
    files = write_reports(table, summary, request.output, stem, request.formats)
    return replace(summary, files=[str(file) for file in files])


# A rank's step of a kernel dump as a Run, so that kernels are measured and judged like any other call.

_COLLECTIVES = ("allreduce", "allgather", "reducescatter", "broadcast", "alltoall", "send", "receive", "allsum")


@dataclass
class KernelRun(Run):
    """The kernels of one rank and step: a Run whose tensor files lie in the dump itself."""

    root: Path = Path()
    rows: list[KernelRow] = field(default_factory=list)

    @property
    def tensor_folder(self) -> Path:
        """Files are named relative to the dump."""
        return self.root

    @property
    def single_points(self) -> bool:
        """Kernels are calls."""
        return False


def open_kernel_run(root: Path, folders: list[KernelFolder]) -> KernelRun:
    """Read one rank's step; statistics of npy files are computed here, a damaged file costs its own row."""
    kind, rows, notes = read_kernels(root, folders)
    if not rows:
        raise NothingToCompare("holds no kernels: nothing to compare", where=folders[0].path)
    calls, rows = _by_call(rows)
    if kind == NPY:
        _measure(root, rows)
    builder = TableBuilder()
    for at, row in zip(calls, rows, strict=True):
        shown = str(row.source) if kind == NPY else row.name.shown
        builder.add(at, _role(row), shown, row.leaf)
    task = TENSORS if kind == NPY else STATISTICS
    ops = _op_names(calls, rows)
    return KernelRun(folders[0].path, task, "L2", "mindspore", ops, builder.build(), notes, root, rows)


def _by_call(rows: list[KernelRow]) -> tuple[list[int], list[KernelRow]]:
    """The call of each row, calls in the order they began, inputs of a call before its outputs.

    A kernel that runs again begins a new call when one of its inputs or outputs comes for the second time.
    """
    seen: dict[tuple[str, ...], int] = {}
    calls: dict[tuple[object, ...], int] = {}
    of_row = []
    for row in rows:
        name = row.name
        place = (row.graph, name.op, name.task, name.io, name.slot)
        seen[place] = seen.get(place, -1) + 1
        of_row.append(calls.setdefault((row.graph, name.op, name.task, seen[place]), len(calls)))
    order = sorted(range(len(rows)), key=lambda at: (of_row[at], _role(rows[at])))
    return [of_row[at] for at in order], [rows[at] for at in order]


def _role(row: KernelRow) -> int:
    if row.name.op_type == "Parameter":
        return POINT  # its value at the time of the dump, not the result of a call
    return INPUT if row.name.io == "input" else OUTPUT


def _op_names(calls: list[int], rows: list[KernelRow]) -> list[str]:
    """One name per call. A collective's says so in the recorders' way: its output may have begun on another rank."""
    names: dict[int, str] = {}
    for at, row in zip(calls, rows, strict=True):
        kind = row.name.op_type
        plain = f"{kind}.{row.name.op}"
        is_collective = kind.lower().removeprefix("hcom").replace("_", "") in _COLLECTIVES
        names.setdefault(at, f"Distributed.{plain}.{at}.forward" if is_collective else plain)
    return [names[at] for at in range(len(names))]


def _measure(root: Path, rows: list[KernelRow]) -> None:
    for row, load in zip(rows, tensor_loaders([(root, str(row.file)) for row in rows]), strict=True):
        try:
            tensor = load()
        except DamagedTensor:
            continue  # the comparison of its pair says what is wrong with it
        found = statistics(tensor)
        leaf = row.leaf
        leaf.dtype, leaf.shown_shape = tensor.dtype, str(list(tensor.shape))
        leaf.Max, leaf.Min, leaf.Mean, leaf.Norm = found.max, found.min, found.mean, found.norm


# The result table of a kernel compare: the columns that people know, then what TwinProbe adds.

YES, NO, NONE, UNMATCHED = "Yes", "No", "None", "Unmatched"
# The known limits of "Accuracy Reached or Not".
_COSINE, _MAX_ABS, _LOW_COSINE, _HIGH_ABS = 0.99, 0.001, 0.9, 1.0
_MAGNITUDE, _SMALLEST = 0.5, 1e-10


def kernel_table(target: KernelRun, golden: KernelRun, evidence: Evidence, judged: Judged) -> pl.DataFrame:
    """Render a judged pair table; every column is text but the last, the relative error."""
    pairs = evidence.pairs
    # As they have always been shown: a statistic that was not computed (null) stands as 0.
    columns = side_columns(pairs) | statistic_columns(pairs, {NULL: "0", "None": NOT_APPLICABLE})
    messages = pl.Series(judged.messages, dtype=pl.String)
    if evidence.metrics is not None:
        columns |= {"Accuracy Reached or Not": _accuracy_of_tensors(pairs, evidence.metrics), "Err_message": messages}
        columns |= metric_columns(evidence.metrics)
    else:
        columns |= {"Accuracy Reached or Not": _accuracy_of_statistics(pairs), "Err_message": messages}
        columns |= _differences(pairs) | _sources(target, golden, pairs)
    columns["Result"] = pl.Series(judged.verdict, dtype=pl.String)
    columns["Reason"] = pl.Series(judged.reason, dtype=pl.String)
    columns["Matched By"] = pairs["rule"]
    columns["Origin"] = pl.Series(judged.origin, dtype=pl.String)
    columns["Relative Error"] = pl.Series(judged.error).fill_nan(None)
    return pl.DataFrame(columns)


def _numbers(pairs: pl.DataFrame, side: str, stat: str) -> NDArray[Any]:
    """A statistic as a number, NaN where there is none but for null, which counts as 0 in these columns."""
    numbers: NDArray[Any] = pairs[f"{side}_{stat}"].fill_null(np.nan).to_numpy().copy()
    numbers[bools(pairs[f"{side}_{stat}_text"] == NULL)] = 0.0
    return numbers


def _comparable(pairs: pl.DataFrame) -> NDArray[Any]:
    """Rows with both sides, of one shape."""
    both = pairs["t_row"].is_not_null() & pairs["g_row"].is_not_null()
    return cast("NDArray[Any]", (both & (pairs["t_shape"] == pairs["g_shape"]).fill_null(value=True)).to_numpy())


def _differences(pairs: pl.DataFrame) -> dict[str, pl.Series]:
    comparable = pl.Series(_comparable(pairs))
    diffs, relatives = {}, {}
    for stat in STATS:
        t, g = (_numbers(pairs, side, stat) for side in "tg")
        with np.errstate(all="ignore"):
            gap = np.where(t == g, 0.0, np.abs(t - g))
            relative = np.where(np.isinf(t) & (t == g), 0.0, np.abs(gap / g) * 100)
        known = float_texts(pl.Series(gap)).replace({"nan": "Nan"})
        diffs[DIFFERENCES[stat]] = known.zip_with(comparable, pl.Series([NOT_APPLICABLE]))
        percent = float_texts(pl.Series(relative))
        percent = percent.zip_with(pl.Series(np.isinf(relative)), percent + "%")
        percent = percent.zip_with(pl.Series(~np.isnan(relative)), pl.Series(["Nan"]))
        usable = comparable & pl.Series(g != 0)
        relatives[RELATIVES[stat]] = percent.zip_with(usable, pl.Series([NOT_APPLICABLE]))
    return diffs | relatives


def _accuracy_of_statistics(pairs: pl.DataFrame) -> pl.Series:
    """The maxima differ by at most half of the larger one. Sizes are compared without their signs."""
    t, g = (_numbers(pairs, side, "max") for side in "tg")
    with np.errstate(all="ignore"):
        share = np.abs(t - g) / (np.fmax(np.abs(t), np.abs(g)) + _SMALLEST)
    reached = (share <= _MAGNITUDE) | (t == g) | (np.isnan(t) & np.isnan(g) & _comparable(pairs))
    return _texts(np.where(~_comparable(pairs), UNMATCHED, np.where(reached, YES, NO)))


def _accuracy_of_tensors(pairs: pl.DataFrame, metrics: pl.DataFrame) -> pl.Series:
    cosine, gap = (metrics[name].fill_null(np.nan).to_numpy() for name in ("cosine", "max_abs"))
    status = metrics["status"].to_numpy()
    single = status == "scalar"
    alike = bools(pairs["t_max_text"] == pairs["g_max_text"])
    t, g = (_numbers(pairs, side, "max") for side in "tg")
    with np.errstate(all="ignore"):  # of tensors that hold one number: whether its sign is the same
        sign = np.where(np.isnan(t) | np.isnan(g), np.nan, np.where(t == g, 1.0, np.sign(t) * np.sign(g)))
    cosine = np.where(single, sign, cosine)
    far = ((cosine < _COSINE) & (gap > _MAX_ABS)) | (cosine < _LOW_COSINE) | (gap > _HIGH_ABS)
    known = ~np.isnan(cosine) & ~np.isnan(gap)
    # A whole number or a flag has no size of error: another one is another one.
    whole = bools(pairs["t_dtype"].str.contains(r"^(bool|u?int)"))
    far = np.where(single & whole, ~alike, far)
    numeric = np.where(known, np.where(far, NO, YES), NONE)
    unmatched = ~_comparable(pairs) | (status == "shape unmatched")
    return _texts(np.select([unmatched, status == NOT_APPLICABLE], [UNMATCHED, NO], numeric))


def _texts(values: NDArray[Any]) -> pl.Series:
    return pl.Series(values.tolist(), dtype=pl.String)


def _sources(target: KernelRun, golden: KernelRun, pairs: pl.DataFrame) -> dict[str, pl.Series]:
    columns = {}
    for run, (side, who) in zip((target, golden), SIDES, strict=True):
        files = [NOT_APPLICABLE if at is None else str(run.rows[at].source) for at in pairs[f"{side}_row"].to_list()]
        columns[f"{who} CSV File"] = pl.Series(files, dtype=pl.String)
    return columns
