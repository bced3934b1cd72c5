"""Kernels of a static graph belong together by their names; repeated runs of a kernel by their order in time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

from twinprobe.align.pairs import NONE, Pairs, from_partners
from twinprobe.runs.kernel.dump import KernelRow

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
