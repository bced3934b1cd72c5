"""Which rank of one run set belongs to which rank of the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from twinprobe._align.links import NONE, Pairs, from_partners
from twinprobe._runs.kernel_dump import KernelRow
from twinprobe._runs.run import RunFolder, run_folders
from twinprobe.errors import BadInput


@dataclass(frozen=True, slots=True)
class FolderPair:
    """The same step and rank on both sides."""

    target: RunFolder
    golden: RunFolder


def pair_folders(
    target: Path, golden: Path, *, ranks: set[int] | None = None, steps: set[int] | None = None, shift: int = 0
) -> tuple[list[FolderPair], list[str], list[str]]:
    """Pair steps and ranks by their numbers: the pairs, notes, and what was asked for but is not on both sides.

    ``shift``: so much the golden run counts its steps ahead of the target.
    """
    sides = [_wanted(run_folders(root), ranks, steps) for root in (target, golden)]
    by_step = [_group(sides[0]), {(mode, step - shift): found for (mode, step), found in _group(sides[1]).items()}]
    lost = _missing("step", target, golden, by_step[0].keys(), by_step[1].keys(), shift)
    for what, asked in (("rank", ranks), ("step", steps)):
        absent = set(asked or ()) - {getattr(folder.key, what) for side in sides for folder in side}
        lost += [f"neither {target} nor {golden} has {what}{number}" for number in sorted(absent)]
    pairs: list[FolderPair] = []
    notes: list[str] = []
    for step in sorted(by_step[0].keys() & by_step[1].keys()):
        found, told, alone = _pair_ranks(by_step[0][step], by_step[1][step], target, golden)
        pairs += found
        notes += told
        lost += alone
    if not pairs and len(by_step[0]) == len(by_step[1]) == 1 and not steps:
        # Two step folders named on the command line may well be different steps.
        (left,), (right,) = by_step[0].values(), by_step[1].values()
        if left[0].key.step < 0 and right[0].key.step < 0:
            pairs, notes, lost = _pair_ranks(left, right, target, golden)
    if not pairs:
        raise BadInput(
            f"no step and rank in common with {golden}: {_list(sides[0])} here, {_list(sides[1])} there", where=target
        )
    return pairs, notes, lost


def _wanted(side: list[RunFolder], ranks: set[int] | None, steps: set[int] | None) -> list[RunFolder]:
    return [
        folder
        for folder in side
        if (ranks is None or folder.key.rank in ranks) and (steps is None or folder.key.step in steps)
    ]


def _group(side: list[RunFolder]) -> dict[tuple[str, int], list[RunFolder]]:
    keyed = groupby(side, key=lambda folder: (folder.key.graph_mode, folder.key.step))
    return {key: list(group) for key, group in keyed}


def _pair_ranks(
    left: list[RunFolder], right: list[RunFolder], target: Path, golden: Path
) -> tuple[list[FolderPair], list[str], list[str]]:
    if len(left) == len(right) == 1:
        return [FolderPair(left[0], right[0])], [], []
    if left[0].by_process and right[0].by_process:
        # Process numbers mean nothing from run to run; their order is all there is.
        pairs = [FolderPair(a, b) for a, b in zip(left, right, strict=False)]
        rest = [folder.label for folder in left[len(right) :] + right[len(left) :]]
        notes = [f"processes are paired in the order of their numbers: {target} and {golden}"]
        return pairs, notes, [f"{label} has no counterpart" for label in rest]
    numbers = {folder.key.rank: folder for folder in right}
    pairs = [FolderPair(folder, numbers[folder.key.rank]) for folder in left if folder.key.rank in numbers]
    what = (left[0].key.subfolder / "rank").as_posix()
    return pairs, [], _missing(what, target, golden, {folder.key.rank for folder in left}, numbers.keys())


def _missing(what: str, target: Path, golden: Path, left: object, right: object, shift: int = 0) -> list[str]:
    ours, theirs = set(left), set(right)  # type: ignore[call-overload]
    notes = []
    for root, only, ahead in ((target, ours - theirs, 0), (golden, theirs - ours, shift)):
        if only:
            names = ", ".join(_name(what, key, ahead) for key in sorted(only))
            notes.append(f"only {root} has {names}: left out")
    return notes


def _name(what: str, key: object, ahead: int) -> str:
    number = key[1] + ahead if isinstance(key, tuple) else key
    prefix = f"{key[0]}/" if isinstance(key, tuple) and key[0] else ""
    return f"{prefix}{what}{number}"


def _list(side: list[RunFolder]) -> str:
    names = sorted({f"{folder.key.subfolder / folder.label}" for folder in side})
    return ", ".join(names[:6]) + (" ..." if len(names) > 6 else "") if names else "nothing"


# Kernels of a static graph belong together by their names; repeated runs of a kernel by their order in time.

Key = Callable[[KernelRow], Hashable]

# From strict to loose. Graph and task numbers are given out by the framework and may differ between its versions.
RULES: tuple[tuple[str, Key], ...] = (
    ("kernel", lambda row: (row.graph, row.name.op, row.name.task, row.name.io, row.name.slot)),
    ("kernel of another graph", lambda row: (row.name.op, row.name.task, row.name.io, row.name.slot)),
    ("kernel of another task", lambda row: (row.name.op, row.name.io, row.name.slot)),
)


def match_kernels(target: Sequence[KernelRow], golden: Sequence[KernelRow]) -> Pairs:
    """Pair the rows of two dumps; both must be in the order they were recorded."""
    partners = [NONE] * len(target)
    rules = [""] * len(target)
    free = list(range(len(golden)))
    for rule, key in RULES:
        open_rows = [at for at, partner in enumerate(partners) if partner == NONE]
        if not open_rows or not free:
            break
        waiting: defaultdict[Hashable, list[int]] = defaultdict(list)
        for at in reversed(free):
            waiting[key(golden[at])].append(at)
        for at in open_rows:
            found = waiting.get(key(target[at]))
            if found:
                partners[at], rules[at] = found.pop(), rule
        used = set(partners)
        free = [at for at in free if at not in used]
    return from_partners(partners, len(golden), rules)
