"""The board on which the rules write: which call of the target was linked with which of the golden run, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from twinprobe._align.calls import MINDSPORE, Head, Side, bare_path, split
from twinprobe._align.mapping.api_names import ArgumentMap
from twinprobe._runs.names import BACKWARD, FORWARD, GRADIENTS, parse_op
from twinprobe._runs.run import Run
from twinprobe._runs.table import OUTPUT

# Two ordered lists of unequal length: which of one belongs to which of the other.

# Above this many cells the table costs more than it tells.
_MAX_CELLS = 4096


def in_order(target: Sequence[Hashable], golden: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Pair places in order so that as many signs as possible agree; without any agreement, place by place."""
    if len(target) * len(golden) <= _MAX_CELLS:
        # The shorter list leads, so that swapped runs give the mirrored answer.
        if len(target) > len(golden):
            pairs = [(at, to) for to, at in _longest_common(golden, target)]
        else:
            pairs = _longest_common(target, golden)
        if pairs:
            return pairs
    shared = min(len(target), len(golden))
    return list(zip(range(shared), range(shared), strict=True))


def _longest_common(target: Sequence[Hashable], golden: Sequence[Hashable]) -> list[tuple[int, int]]:
    rows, columns = len(target), len(golden)
    best = [[0] * (columns + 1) for _ in range(rows + 1)]
    for at in range(rows - 1, -1, -1):
        for to in range(columns - 1, -1, -1):
            if target[at] == golden[to]:
                best[at][to] = best[at + 1][to + 1] + 1
            else:
                best[at][to] = max(best[at + 1][to], best[at][to + 1])
    pairs, at, to = [], 0, 0
    while at < rows and to < columns:
        if target[at] == golden[to]:
            pairs.append((at, to))
            at, to = at + 1, to + 1
        elif best[at + 1][to] >= best[at][to + 1]:
            at += 1
        else:
            to += 1
    return pairs


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
        if direction == BACKWARD and self.both_forward:
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
    def shapes(side: Side, op: int) -> list[str | None]:
        """The shapes of all values of a call."""
        return side.shapes[side.starts[op] : side.starts[op + 1]]

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


# The keys by which rows of two runs are joined.


def op_keys(run: Run) -> list[str]:
    """One key per call. Backward calls are numbered by their order of appearance.

    Autograd replays calls in an order of its own, so the n-th backward entry of an API is the n-th to run, whatever
    number it carries; both runs are numbered the same way, or two equal runs would not pair with themselves.
    """
    if run.single_points:
        return run.ops
    seen: Counter[str] = Counter()
    keys = []
    for name in run.ops:
        if BACKWARD not in name:
            keys.append(name)
            continue
        op = parse_op(name)
        if op.direction != BACKWARD:
            keys.append(name)
            continue
        kind = op.without_call
        keys.append(op.renumbered(seen[kind]))
        seen[kind] += 1
    return keys


def row_keys(run: Run, keys: list[str]) -> list[str]:
    """One key per row: its call's key and its place among the call's values."""
    ops = run.ops
    result = []
    for at, shown in zip(run.table["op"].to_list(), run.table["name"].to_list(), strict=True):
        op, key, name = ops[at], keys[at], shown
        if key is not op and name.startswith(op):
            name = key + name[len(op) :]
        # A keyword argument's file says .kwargs., its row without a file says .input.
        if ".kwargs." in name:
            name = name.replace(".kwargs.", ".input.", 1)
        result.append(name)
    return result


# Equal names belong together.

RULE = "name"
MEANING = "equal in meaning"  # rows at which a group is compared
MERGED = "merged statistics"  # how rows of fused and split layers compare


def match_names(target: Run, golden: Run) -> Pairs:
    """Pair rows of equal name; backward calls by their order of appearance, on both sides."""
    if _same_calls(target, golden):
        rows = target.table.height
        return from_partners(list(range(rows)), rows, [RULE] * rows)
    return join_names(target, golden)


def join_names(target: Run, golden: Run) -> Pairs:
    """The same for any two runs, key by key."""
    golden_keys = row_keys(golden, op_keys(golden))
    place = dict(zip(reversed(golden_keys), range(len(golden_keys) - 1, -1, -1), strict=True))
    partners = [place.pop(key, -1) for key in row_keys(target, op_keys(target))]
    return from_partners(partners, len(golden_keys), [RULE if at >= 0 else "" for at in partners])


# What MindSpore calls the parameters of a normalisation and of a table, and PyTorch and Paddle do.
_WORDS = {"gamma": "weight", "beta": "bias", "embedding_table": "weight"}


def match_updates(target: Run, golden: Run, names: Mapping[str, str] | None = None) -> Pairs:
    """Pair what the optimizers of two frameworks did: by parameter, by the optimizer's place among all, and by step.

    ``names`` are golden's names of the target's parameters where they are known to be others.
    """
    sides = []
    for run, known in ((target, names or {}), (golden, {})):
        kinds: dict[str, int] = {}  # Momentum here is SGD there: the first belongs to the first
        keys = []
        for op in run.ops:
            name, kind, step, _ = op.removeprefix("Optimizer.").rsplit(".", 3)
            path, _, word = known.get(name, name).rpartition(".")
            keys.append(f"{path}.{_WORDS.get(word, word)} {kinds.setdefault(kind, len(kinds))} {step}")
        sides.append(row_keys(run, keys))
    place = dict(zip(reversed(sides[1]), range(len(sides[1]) - 1, -1, -1), strict=True))
    partners = [place.pop(key, -1) for key in sides[0]]
    return from_partners(partners, len(sides[1]), [RULE if at >= 0 else "" for at in partners])


def _same_calls(target: Run, golden: Run) -> bool:
    """Whether both runs hold the same rows in the same order, none of them twice: every row meets its like then."""
    if target.ops != golden.ops:
        return False
    names, place = target.table["name"], ["op", "name"]
    return names.n_unique() == len(names) and target.table.select(place).equals(golden.table.select(place))


# Whether the names of two runs meet, or whether pairing them needs more than names.

# Names meet where at least one call in twenty of the smaller run has its like.
_MEETING = 20
_STRANGERS = 0.05  # so many modules without their like do not make two code bases


def needs_help(target: Run, golden: Run, *, by_place: bool = True) -> bool:
    """Whether names alone would leave much unpaired: other framework, other code base.

    ``by_place``: names are the paths of modules and the APIs, without call numbers and wrappers.
    """
    if (target.framework == MINDSPORE) != (golden.framework == MINDSPORE):
        return True
    if by_place:
        return not places_meet(target.ops, golden.ops)
    return not names_meet(target, golden) or not modules_meet(target.ops, golden.ops)


def places_meet(target: list[str], golden: list[str]) -> bool:
    """Whether the modules of one run nearly all have their paths in the other; without modules, whether APIs recur."""
    if target == golden:
        return True
    modules = [
        {bare_path(split(name)[0].partition(".")[2].rpartition(".")[0]) for name in _forward_modules(ops)}
        for ops in (target, golden)
    ]
    if all(modules):
        fewest = min(len(modules[0]), len(modules[1]))
        return fewest - len(modules[0] & modules[1]) <= _STRANGERS * fewest
    heads = [{split(name)[0] for name in ops} for ops in (target, golden)]
    return len(heads[0] & heads[1]) * _MEETING >= min(len(heads[0]), len(heads[1]))


def names_meet(target: Run, golden: Run) -> bool:
    """Whether some calls of the two runs have equal names."""
    if target.ops == golden.ops:
        return True
    common = len(set(target.ops) & set(golden.ops))
    return common * _MEETING >= min(len(target.ops), len(golden.ops))


def modules_meet(target: list[str], golden: list[str]) -> bool:
    """Whether the modules of one run nearly all have their names in the other (or there are none)."""
    if target == golden:
        return True
    mine, theirs = _forward_modules(target), _forward_modules(golden)
    common = len(mine & theirs)
    fewest = min(len(mine), len(theirs))
    return fewest - common <= _STRANGERS * fewest


def _forward_modules(ops: list[str]) -> set[str]:
    return {name for name in ops if name.startswith(("Module.", "Cell.")) and f".{FORWARD}." in name}


# Equal names belong together: the last rule of every mapping.


def link_equal_names(board: Board) -> None:
    """Link what is still free and has the same name on both sides, unless the modules around it lie elsewhere."""
    if NONE not in board.partner or NONE not in board.back:
        return
    golden = board.golden.heads
    free = {id(head): head for head, link in zip(board.target.head_of, board.partner, strict=True) if link == NONE}
    common = [(head, golden[head.name]) for head in free.values() if head.name in golden]
    for head, other in common:
        if head.is_module or not {FORWARD, BACKWARD, GRADIENTS}.intersection(head.calls):
            board.link_heads(head, other, RULE, by_order=False)
    apis = [(head, other) for head, other in common if not head.is_module]
    for head, other in apis:
        calls = other.calls.get(FORWARD, {})
        for call, op in head.calls.get(FORWARD, {}).items():
            if call in calls and board.same_place(op, calls[call]):
                board.link(op, calls[call], RULE)
    board.follow_forward()
    for head, other in apis:
        board.link_in_order(board.free([head], BACKWARD), board.free([other], BACKWARD, golden=True), RULE)
