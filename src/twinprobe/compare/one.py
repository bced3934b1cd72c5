"""Compare one run with another: the whole path from two runs to a judged table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from twinprobe.align.exact import match_names
from twinprobe.align.pairs import Pairs
from twinprobe.compare.both import open_both
from twinprobe.compare.first import describe_first
from twinprobe.compare.pair_table import pair_table
from twinprobe.errors import BadInput
from twinprobe.judge.summary import Side, Summary
from twinprobe.judge.thresholds import Thresholds
from twinprobe.runs.run import DIGESTS, STATISTICS, TENSORS, Run

if TYPE_CHECKING:
    import polars as pl

    from twinprobe.judge.verdicts import Evidence, Judged

Matcher = Callable[[Run, Run], Pairs]
Measurer = Callable[[Run, Run, "pl.DataFrame", Callable[[int, int], None]], "pl.DataFrame"]


def silent(_done: int, _total: int) -> None:
    """No progress is shown."""


@dataclass
class Options:
    """How two runs are compared."""

    match: Matcher = match_names
    thresholds: Thresholds = field(default_factory=Thresholds)
    progress: Callable[[int, int], None] = silent
    measure: Measurer | None = None
    """How tensors are measured, if not here and at once."""


@dataclass
class Comparison:
    """Two runs, compared: the typed pair table, the verdicts, the table people read, and the summary."""

    target: Run
    golden: Run
    evidence: Evidence
    judged: Judged
    summary: Summary

    def table(self) -> pl.DataFrame:
        """The result table, every old column in its place."""
        from twinprobe.report.columns import result_table

        return result_table(self.target, self.evidence, self.judged)


def compare_paths(target: Path, golden: Path, options: Options | None = None) -> Comparison:
    """Compare two dump.json (or two debug.json) files."""
    return compare_runs(*open_both(target, golden), options)


def compare_runs(target: Run, golden: Run, options: Options | None = None) -> Comparison:
    """Pair, measure and judge two runs."""
    from twinprobe.judge.verdicts import judge

    options = options or Options()
    mode = common_mode(target, golden)
    pairs = options.match(target, golden)
    evidence = _measure(mode, target, golden, pair_table(target, golden, pairs), options)
    judged = judge(target, evidence, options.thresholds)
    return Comparison(target, golden, evidence, judged, _summarise(mode, target, golden, evidence, judged, pairs))


def common_mode(target: Run, golden: Run) -> str:
    """The way both runs can be measured; BadInput where they cannot be compared at all."""
    if target.single_points != golden.single_points:
        raise BadInput(
            f"{target.path.name} cannot be compared with {golden.path}",
            where=target.path, hint="give two dump.json or two debug.json files",
        )  # fmt: skip
    if target.task != golden.task:
        raise BadInput(
            f'the tasks differ: {target.task!r} here, {golden.task!r} in {golden.path}',
            where=target.path, hint="record both runs with the same task",
        )  # fmt: skip
    if target.mode != golden.mode:
        with_digest, without = (target, golden) if target.mode == DIGESTS else (golden, target)
        raise BadInput(
            f"only {with_digest.path} holds checksums",
            where=without.path, hint="record both runs with the same summary_mode",
        )  # fmt: skip
    if target.mode == TENSORS:
        for run in (target, golden):
            if not run.tensor_folder.is_dir():
                raise BadInput("the folder of the tensors is missing", where=run.tensor_folder)
    return target.mode


def _measure(mode: str, target: Run, golden: Run, pairs: pl.DataFrame, options: Options) -> Evidence:
    from twinprobe.judge.deviation import of_digests, of_statistics, of_tensors
    from twinprobe.judge.verdicts import Evidence
    from twinprobe.measure.stat_columns import stat_difference
    from twinprobe.runs.table import STATS

    if mode == DIGESTS:
        return Evidence(mode, pairs, of_digests(pairs))
    rounding = options.thresholds.rounding
    differences = {stat: stat_difference(pairs, stat) for stat in STATS}
    recorded = of_statistics(pairs, differences, rounding)
    if mode == STATISTICS:
        return Evidence(mode, pairs, recorded, differences)
    from twinprobe.compare.tensors import tensor_metrics

    metrics = (options.measure or tensor_metrics)(target, golden, pairs, options.progress)
    return Evidence(mode, pairs, of_tensors(pairs, metrics, recorded, rounding), differences, metrics)


def _summarise(mode: str, target: Run, golden: Run, evidence: Evidence, judged: Judged, pairs: Pairs) -> Summary:
    matched = int(((pairs.target >= 0) & (pairs.golden >= 0)).sum())
    verdicts = {name: judged.verdict.count(name) for name in ("pass", "warning", "error")}
    return Summary(
        mode=mode,
        target=_side(target),
        golden=_side(golden),
        rows=len(pairs.target),
        matched=matched,
        target_only=int((pairs.golden < 0).sum()),
        golden_only=int((pairs.target < 0).sum()),
        verdicts=verdicts,
        first=describe_first(target, evidence, judged),
        notes=[*target.notes, *golden.notes, *pairs.notes],
        files=[],
        unread=int(judged.unread.sum()),
    )


def _side(run: Run) -> Side:
    return Side(str(run.path), run.framework, run.task, run.level, len(run.ops), run.table.height)
