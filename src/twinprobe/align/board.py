"""The board on which the rules write: which call of the target was linked with which of the golden run, and why."""

from __future__ import annotations

from twinprobe.align.mapping.arguments import ArgumentMap
from twinprobe.align.mapping.in_order import in_order
from twinprobe.align.side import Head, Side
from twinprobe.runs.names import BACKWARD, FORWARD
from twinprobe.runs.run import Run
from twinprobe.runs.table import OUTPUT

NONE = -1


class Board:
    """Links between two runs. A rule only adds links between what is still free, so the first rule wins."""

    def __init__(self, target: Run, golden: Run) -> None:
        self.target = Side(target)
        self.golden = Side(golden)
        self.partner = [NONE] * len(target.ops)
        self.back = [NONE] * len(golden.ops)
        self.rule = [""] * len(target.ops)
        # Rows that a data mapping names one by one: target row -> golden row.
        self.rows: dict[int, int] = {}
        # Argument lists that a user wrote for two APIs: (target head, golden head) -> map.
        self.arguments: dict[tuple[str, str], ArgumentMap] = {}
        self.notes: list[str] = []
        self._both_nested = self.target.has_hierarchy and self.golden.has_hierarchy
        self._backward = _with_forward(self.target)
        self._both_forward = FORWARD in self.target.direction and FORWARD in self.golden.direction

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

    def link_heads(self, target: Head, golden: Head, rule: str, *, by_order: bool = True) -> None:
        """Link all calls of two heads by number; where no number meets, by order."""
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
            calls = golden.head_of[other].calls.get(BACKWARD)
            backward = calls.get(golden.call[other], NONE) if calls else NONE
            if backward != NONE:
                self.link(op, backward, self.rule[forward])
        self._backward = still_free

    def free(self, heads: list[Head], direction: str, *, golden: bool = False) -> list[int]:
        """The calls of these heads in this direction that no rule has linked, in order of appearance.

        A backward call belongs to its forward call, so it is free only where forward calls were not recorded.
        """
        side, taken = (self.golden, self.back) if golden else (self.target, self.partner)
        ops = [op for head in heads for op in head.calls.get(direction, {}).values() if taken[op] == NONE]
        if direction == BACKWARD and self._both_forward:
            ops = [op for op in ops if side.forward(op) == NONE]
        return ops if len(heads) == 1 else sorted(ops)

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
    def sign(side: Side, op: int) -> tuple[str | None, ...]:
        """What a call's results look like: the shapes of its outputs."""
        first, last = side.starts[op], side.starts[op + 1]
        return tuple(side.shapes[row] for row in range(first, last) if side.roles[row] == OUTPUT)


def _with_forward(side: Side) -> list[tuple[int, int]]:
    """All backward calls whose forward call was recorded, and that one."""
    found = []
    for head in side.heads.values():
        forward = head.calls.get(FORWARD, {})
        found += [(op, forward[call]) for call, op in head.calls.get(BACKWARD, {}).items() if call in forward]
    return found
