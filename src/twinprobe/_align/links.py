"""The links that the rules add: which call of the target was linked with which of the golden run, and why."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from twinprobe._align.calls import MINDSPORE, Callee, RunCalls, bare_path, split
from twinprobe._align.mapping.api_names import ArgumentMap
from twinprobe._runs.names import BACKWARD, FORWARD, GRADIENTS
from twinprobe._runs.run import Run
from twinprobe._runs.table import OUTPUT

NONE = -1

# Two ordered lists of unequal length: which of one belongs to which of the other.

# Above this many cells the table costs more than it tells.
_MAX_CELLS = 4096


def in_order(target: Sequence[Hashable], golden: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Pair places in order so that as many signs as possible agree; without any agreement, place by place."""
    if len(target) * len(golden) <= _MAX_CELLS:
        # The shorter list leads, so that swapped runs give the mirrored answer.
        few, many = (golden, target) if len(target) > len(golden) else (target, golden)
        pairs, _ = best_in_order([{to: 1 for to, sign in enumerate(many) if sign == wanted} for wanted in few])
        if pairs:
            return [(to, at) for at, to in pairs] if few is golden else pairs
    shared = min(len(target), len(golden))
    return list(zip(range(shared), range(shared), strict=True))


def best_in_order(scores: Sequence[Mapping[int, float]]) -> tuple[list[tuple[int, int]], float]:
    """The pairs that do not cross whose scores add up to most, and that sum.

    ``scores``: for each place of one list, what the places of the other that may be its partner are worth.
    """
    rows, columns = len(scores), 1 + max((to for row in scores for to in row), default=NONE)
    best = [[0.0] * (columns + 1) for _ in range(rows + 1)]
    for at in range(rows - 1, -1, -1):
        here, below, row = best[at], best[at + 1], scores[at]
        for to in range(columns - 1, -1, -1):
            here[to] = max(below[to], here[to + 1], below[to + 1] + row[to] if to in row else 0.0)
    pairs, at, to = [], 0, 0
    while at < rows and to < columns:
        if to in scores[at] and best[at][to] == best[at + 1][to + 1] + scores[at][to]:
            pairs.append((at, to))
            at, to = at + 1, to + 1
        elif best[at][to] == best[at + 1][to]:
            at += 1
        else:
            to += 1
    return pairs, best[0][0]


class CallLinks:
    """Links between two runs. A rule only adds links between what is still free, so the first rule wins."""

    def __init__(self, target: Run, golden: Run) -> None:
        self.target = RunCalls(target)
        self.golden = RunCalls(golden)
        self.partner = [NONE] * len(target.ops)
        self.back = [NONE] * len(golden.ops)
        self.rule = [""] * len(target.ops)
        # Rows that a data mapping names one by one: target row -> golden row.
        self.rows: dict[int, int] = {}
        # Argument lists that a user wrote for two APIs: (target callee, golden callee) -> map.
        self.arguments: dict[tuple[str, str], ArgumentMap] = {}
        self.notes: list[str] = []
        self._both_nested = self.target.has_hierarchy and self.golden.has_hierarchy
        # Backward calls of the target that are still free, each with its forward call.
        self._backward = [
            (op, forward)
            for callee in self.target.callees.values()
            for op in callee.calls.get(BACKWARD, {}).values()
            if (forward := self.target.forward(op)) != NONE
        ]
        self.both_forward = FORWARD in self.target.direction and FORWARD in self.golden.direction

    @property
    def across_frameworks(self) -> bool:
        """Whether the two runs spell their APIs differently."""
        return self.target.is_mindspore != self.golden.is_mindspore

    def link(self, target: int, golden: int, rule: str) -> bool:
        """Link two calls if both are free."""
        if self.partner[target] != NONE or self.back[golden] != NONE:
            return False
        self.partner[target] = golden
        self.back[golden] = target
        self.rule[target] = rule
        return True

    def link_callees(self, target: Callee, golden: Callee, rule: str, *, by_order: bool = True) -> None:
        """Link all calls of two callees by number; where no number meets, by order."""
        for direction, calls in target.calls.items():
            others = golden.calls.get(direction)
            if not others:
                continue
            common = calls.keys() & others.keys()
            if common:
                for call, op in calls.items():
                    if call in common:
                        self.link(op, others[call], rule)
            elif by_order:
                for op, other in zip(calls.values(), others.values(), strict=False):
                    self.link(op, other, rule)

    def link_in_order(self, target: list[int], golden: list[int], rule: str) -> None:
        """Link two ordered lists of calls."""
        for op, other in self.in_order(target, golden):
            if self.same_place(op, other):
                self.link(op, other, rule)

    def in_order(self, target: list[int], golden: list[int]) -> list[tuple[int, int]]:
        """Pair two ordered lists of calls; where one is longer, the shapes of the outputs say which were left out."""
        if len(target) == len(golden):
            return list(zip(target, golden, strict=True))
        signs = [self.sign(self.target, op) for op in target], [self.sign(self.golden, op) for op in golden]
        return [(target[at], golden[to]) for at, to in in_order(*signs)]

    def follow_forward(self) -> None:
        """Link each free backward call with the backward call of its forward call's partner."""
        golden, partner = self.golden, self.partner
        still_free = []
        for op, forward in self._backward:
            if partner[op] != NONE:
                continue
            other = partner[forward]
            if other == NONE:
                still_free.append((op, forward))
                continue
            backward = golden.backward(other)
            if backward != NONE:
                self.link(op, backward, self.rule[forward])
        self._backward = still_free

    def free(self, callees: list[Callee], direction: str, *, golden: bool = False) -> list[int]:
        """The calls of these callees in this direction that no rule has linked, in order of appearance.

        A backward call belongs to its forward call, so it is free only where forward calls were not recorded.
        """
        side, taken = (self.golden, self.back) if golden else (self.target, self.partner)
        ops = [op for callee in callees for op in callee.calls.get(direction, {}).values() if taken[op] == NONE]
        if direction == BACKWARD and self.both_forward:
            ops = [op for op in ops if side.forward(op) == NONE]
        return ops if len(callees) == 1 else sorted(ops)

    def same_place(self, target: int, golden: int) -> bool:
        """Whether nothing speaks against this pair: the modules around the two are not linked elsewhere."""
        if not self._both_nested:
            return True
        around, other = self.target.parents[target], self.golden.parents[golden]
        linked = self.partner[around] if around != NONE else NONE
        linked_back = self.back[other] if other != NONE else NONE
        if linked == NONE and linked_back == NONE:
            return True
        return linked != NONE and linked == other

    @staticmethod
    def shapes(side: RunCalls, op: int) -> list[str | None]:
        """The shapes of all values of a call."""
        return side.shapes[side.starts[op] : side.starts[op + 1]]

    @staticmethod
    def sign(side: RunCalls, op: int) -> tuple[str | None, ...]:
        """What a call's results look like: the shapes of its outputs."""
        return tuple(side.shapes[row] for row in side.rows(op) if side.roles[row] == OUTPUT)


# Which row of one run belongs to which row of the other, by which rule.

# Place of a pair -> the rows that it stands for on either side, where one side has several.
Groups = dict[int, tuple[tuple[int, ...], tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class CallGroup:
    """Numbers of calls that are equal in meaning: what the target's compute, the golden run's compute in other steps.

    They are compared as one call: by the values that enter and leave them. The way back is a group of its own.
    """

    target: tuple[int, ...]
    golden: tuple[int, ...]


@dataclass
class Pairs:
    """Row numbers side by side, -1 where a row has no partner, and the rule that joined them.

    Rows stand in the target's order; rows that only the golden run has come last, in its order.
    """

    target: NDArray[np.int32]
    golden: NDArray[np.int32]
    rule: list[str]
    notes: list[str] = field(default_factory=list)
    groups: Groups = field(default_factory=dict)
    call_groups: list[CallGroup] = field(default_factory=list)


def from_partners(partners: list[int], golden_rows: int, rules: list[str], notes: Iterable[str] = ()) -> Pairs:
    """Build Pairs from the golden partner of each target row (or -1); each golden row serves once."""
    golden = np.asarray(partners, dtype=np.int32)
    used = np.zeros(golden_rows, dtype=bool)
    used[golden[golden >= 0]] = True
    rest = np.flatnonzero(~used).astype(np.int32)
    return Pairs(
        target=np.concatenate([np.arange(len(golden), dtype=np.int32), np.full(len(rest), NONE, dtype=np.int32)]),
        golden=np.concatenate([golden, rest]),
        rule=rules + [""] * len(rest),
        notes=list(notes),
    )


RULE = "name"
MEANING = "equal in meaning"  # rows at which a group is compared
MERGED = "merged statistics"  # how rows of fused and split layers compare

# Whether the names of two runs meet, or whether pairing them needs more than names.

# So many modules without their like do not make two code bases; of calls, some names in common are enough.
_STRANGE_MODULES, _STRANGE_CALLS = 0.05, 0.95


def needs_help(target: Run, golden: Run, *, by_place: bool = True) -> bool:
    """Whether names alone would leave much unpaired: other framework, other code base.

    ``by_place``: names are the paths of modules and the APIs, without call numbers and wrappers.
    """
    if (target.framework == MINDSPORE) != (golden.framework == MINDSPORE):
        return True
    if target.ops == golden.ops:
        return False
    if not by_place:
        return not names_meet(target, golden) or not modules_meet(target.ops, golden.ops)
    paths, others = (
        {bare_path(split(name)[0].partition(".")[2].rpartition(".")[0]) for name in _forward_modules(run.ops)}
        for run in (target, golden)
    )
    if paths and others:
        # Where an adapter is put into a layer that is plain in the other run, there is nothing to pair it with: other
        # names are those of modules in whose surroundings both runs have something of their own.
        shared = (paths & others) | {""}
        homes = [[_home(path, shared) for path in side - shared] for side in (paths, others)]
        renamed = min(sum(one in homes[1 - at] for one in side) for at, side in enumerate(homes))
        return renamed > _STRANGE_MODULES * min(len(paths), len(others))
    callees, others = (
        {split(name)[0] for name in run.ops} for run in (target, golden)
    )  # without modules: do APIs recur?
    return _strangers(callees, others) > _STRANGE_CALLS


def names_meet(target: Run, golden: Run) -> bool:
    """Whether some calls of the two runs have equal names."""
    return _strangers(set(target.ops), set(golden.ops)) <= _STRANGE_CALLS


def modules_meet(target: list[str], golden: list[str]) -> bool:
    """Whether the modules of one run nearly all have their names in the other (or there are none)."""
    return target == golden or _strangers(_forward_modules(target), _forward_modules(golden)) <= _STRANGE_MODULES


def _strangers(target: set[str], golden: set[str]) -> float:
    """The share of the smaller side that is not in the other."""
    fewest = min(len(target), len(golden))
    return (fewest - len(target & golden)) / fewest if fewest else 0.0


def _home(path: str, shared: set[str]) -> str:
    """The innermost module around a path that both runs have."""
    while path not in shared:
        path = path.rpartition(".")[0]
    return path


def _forward_modules(ops: list[str]) -> set[str]:
    return {name for name in ops if name.startswith(("Module.", "Cell.")) and f".{FORWARD}." in name}


# Equal names belong together: the last rule of every mapping.


def link_equal_names(call_links: CallLinks) -> None:
    """Link what is still free and has the same name on both sides, unless the modules around it lie elsewhere."""
    if NONE not in call_links.partner or NONE not in call_links.back:
        return
    golden = call_links.golden.callees
    free = {
        id(callee): callee
        for callee, link in zip(call_links.target.callee_of, call_links.partner, strict=True)
        if link == NONE
    }
    common = [(callee, golden[callee.name]) for callee in free.values() if callee.name in golden]
    for callee, other in common:
        if callee.is_module or not {FORWARD, BACKWARD, GRADIENTS}.intersection(callee.calls):
            call_links.link_callees(callee, other, RULE, by_order=False)
    apis = [(callee, other) for callee, other in common if not callee.is_module]
    for callee, other in apis:
        calls = other.calls.get(FORWARD, {})
        for call, op in callee.calls.get(FORWARD, {}).items():
            if call in calls and call_links.same_place(op, calls[call]):
                call_links.link(op, calls[call], RULE)
    call_links.follow_forward()
    for callee, other in apis:
        call_links.link_in_order(
            call_links.free([callee], BACKWARD), call_links.free([other], BACKWARD, golden=True), RULE
        )
