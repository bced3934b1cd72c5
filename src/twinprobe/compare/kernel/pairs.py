"""Kernel compare: two dumps of a static graph, rank by rank and step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from twinprobe.align.kernels import match_kernels
from twinprobe.align.matcher import MappingOptions
from twinprobe.errors import BadInput, NothingToCompare
from twinprobe.judge.thresholds import Thresholds
from twinprobe.runs.kernel.dump import KernelFolder, is_kernel_folder, kernel_folders
from twinprobe.runs.kernel.names import parse_kernel_name

if TYPE_CHECKING:
    import polars as pl

    from twinprobe.align.pairs import Pairs
    from twinprobe.judge.summary import Summary
    from twinprobe.runs.run import Run

__all__ = [
    "KernelPair", "KernelResult", "compare_kernel_pair", "compare_kernels", "is_kernel_folder", "kernel_stem",
    "pair_kernels", "refuse_mapping",
]  # fmt: skip

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


@dataclass
class KernelResult:
    """One rank's step, compared: the table that is written, and its summary with counts and notes."""

    rank: int
    step: int
    table: pl.DataFrame
    summary: Summary


def kernel_stem(rank: int, step: int, timestamp: str) -> str:
    """The name of a result without its ending."""
    return f"compare_result_{rank}_{step}_{timestamp}"


def refuse_mapping(options: MappingOptions) -> None:
    """Raise BadInput if a mapping is asked for; kernels have none."""
    for name, flag in _MAPPING_FLAGS.items():
        if getattr(options, name):
            refuse_option(flag)


def refuse_option(flag: str) -> None:
    """Raise BadInput for an option that kernel dumps do not have."""
    hint = "kernels are paired by their own names; --rank and --step choose among them"
    raise BadInput(f"{flag} does not go with kernel dumps", hint=hint)


def pair_kernels(
    target: Path, golden: Path, *, ranks: Iterable[int] | None = None, steps: Iterable[int] | None = None
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
    for what, asked, place in (("rank", ranks, 0), ("step", steps, 1)):
        absent = sorted(set(asked or ()) - {key[place] for side in sides for key in side})
        if absent:
            notes.append(f"no dump has {what} {', '.join(map(str, absent))}")
    return [KernelPair(*key, target, golden, tuple(sides[0][key]), tuple(sides[1][key])) for key in common], notes


def compare_kernels(
    target: Path,
    golden: Path,
    *,
    ranks: set[int] | None,
    steps: set[int] | None,
    notes: list[str] | None = None,
) -> Iterator[tuple[int, int, pl.DataFrame, dict[str, int]]]:
    """Compare every common rank and step; yield (rank, step, result table, verdict counts).

    What the user should know (ranks left out, files that are no kernels) is appended to ``notes``.
    """
    pairs, told = pair_kernels(target, golden, ranks=ranks, steps=steps)
    notes = notes if notes is not None else []
    notes += told
    for pair in pairs:
        result = compare_kernel_pair(pair)
        notes += result.summary.notes
        yield pair.rank, pair.step, result.table, result.summary.verdicts


def _silent(_done: int, _total: int) -> None:
    """No progress is shown."""


def compare_kernel_pair(
    pair: KernelPair, thresholds: Thresholds | None = None, progress: Callable[[int, int], None] = _silent
) -> KernelResult:
    """Compare one rank's step (also in a worker process)."""
    from twinprobe.compare.kernel.run import KernelRun, open_kernel_run
    from twinprobe.compare.kernel.table import kernel_table
    from twinprobe.compare.one import Options, compare_runs

    def match(one: Run, other: Run) -> Pairs:
        assert isinstance(one, KernelRun)
        assert isinstance(other, KernelRun)
        return match_kernels(one.rows, other.rows)

    target = open_kernel_run(pair.target_root, list(pair.target))
    golden = open_kernel_run(pair.golden_root, list(pair.golden))
    if target.task != golden.task:
        what = f"holds {target.kind}, but {golden.path} holds {golden.kind}"
        raise BadInput(what, where=target.path, hint="dump both runs with the same saved_data")
    options = Options(match=match, thresholds=thresholds or Thresholds(), progress=progress)
    comparison = compare_runs(target, golden, options)
    if not comparison.summary.matched:
        raise NothingToCompare(f"no kernel has a counterpart in {golden.path}", where=target.path)
    table = kernel_table(target, golden, comparison.evidence, comparison.judged)
    return KernelResult(pair.rank, pair.step, table, _readable(comparison.summary))


def _readable(summary: Summary) -> Summary:
    """In the sentence about the first divergence, which input or output it is, and not the path of its file."""
    first = summary.first
    name = parse_kernel_name(Path(first.row).name) if first else None
    if first is None or name is None:
        return summary
    return replace(summary, first=replace(first, sentence=first.sentence.replace(first.row, f"{name.io}.{name.slot}")))


def _by_place(
    root: Path, ranks: Iterable[int] | None, steps: Iterable[int] | None
) -> dict[tuple[int, int], list[KernelFolder]]:
    if not root.is_dir():
        raise BadInput("is not a folder" if root.exists() else "does not exist", where=root)
    folders = kernel_folders(root)
    if not folders:
        layout = "rank_<R>/<net>/<graph>/<step> with npy files or a statistic.csv"
        raise BadInput("holds no kernel dump", where=root, hint=f"expected {layout}")
    wanted_ranks, wanted_steps = (None if asked is None else set(asked) for asked in (ranks, steps))
    chosen = [
        folder
        for folder in folders
        if (wanted_ranks is None or folder.rank in wanted_ranks)
        and (wanted_steps is None or folder.step in wanted_steps)
    ]
    return {key: list(group) for key, group in groupby(chosen, key=lambda folder: (folder.rank, folder.step))}


def _listed(places: Iterable[tuple[int, int]]) -> str:
    shown = [f"rank {rank} step {step}" for rank, step in sorted(places)]
    return ", ".join(shown[:6]) + (" ..." if len(shown) > 6 else "") if shown else "nothing"
