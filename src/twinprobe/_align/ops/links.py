"""From matched operators to linked tensors: projections and their parts, containers, what feeds a matched operator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

from twinprobe._align.ops.regions import ShapesOf, Unit, units
from twinprobe._align.ops.table import Entry, Named, OperatorTable, folded
from twinprobe._runs.llm.files import INPUT, OUTPUT
from twinprobe._runs.llm.tree import OpNode

# Two sequences of operators, aligned in order: by what they do and how much they give, one to one or fused.

_MOST_PARTS = 4
_MOST_CELLS = 4_000_000
_LINEAR = frozenset({"linear", "head"})
# Kinds that say too little: what an engine's operator of such a kind gives is not what a module of it gives.
_NEVER = frozenset({"dropout", "split", "collective", "rotary"})


@dataclass(frozen=True, slots=True)
class Match:
    """Units of the one side that are those of the other; more than one where a side fuses them."""

    target: tuple[int, ...]
    golden: tuple[int, ...]
    rule: str


class Scores:
    """How well two units fit: 0 where they cannot be the same."""

    def __init__(self, table: OperatorTable, *, cards: int = 1) -> None:
        self._table = table
        self._ratios = {1, cards}

    def single(self, target: Unit, golden: Unit) -> tuple[float, str]:
        """The score of one unit against one, and the rule behind it."""
        if not self._sizes_fit(_size(target), _size(golden)):
            return 0.0, ""
        base, rule = self._types(target, golden)
        if not base:
            return 0.0, ""
        if target.inputs and golden.inputs and self._sizes_fit(prod(target.inputs[0]), prod(golden.inputs[0])):
            base += 0.5
        if target.around and target.around == golden.around:
            base += 0.5
        if target.is_last == golden.is_last:
            base += 0.25
        return base, rule

    def fused(self, one: Unit, parts: list[Unit]) -> float:
        """The score of one projection against several that it may be made of."""
        if one.kind not in _LINEAR or not self._sizes_fit(_size(one), sum(_size(part) for part in parts)):
            return 0.0
        return 2.5 * len(parts)

    def _types(self, target: Unit, golden: Unit) -> tuple[float, str]:
        types = target.node.op_type, golden.node.op_type
        if self._table.entry(*types) or self._table.entry(*reversed(types)):
            return 4.0, "operator table"
        if folded(types[0]) == folded(types[1]):
            return 3.5, "structure"
        if target.kind in _NEVER or golden.kind in _NEVER:
            return 0.0, ""
        if target.kind == golden.kind:
            return (1.0 if target.kind == "elementwise" else 3.0), "structure"
        if {target.kind, golden.kind} == _LINEAR:
            return 2.5, "structure"
        return 0.0, ""

    def _sizes_fit(self, target: int, golden: int) -> bool:
        return any(target * ratio == golden or golden * ratio == target for ratio in self._ratios)


def _size(unit: Unit) -> int:
    return prod(unit.outputs[0])


def align(target: list[Unit], golden: list[Unit], scores: Scores) -> list[Match]:
    """The best matching of two sequences in which nothing crosses."""
    if len(target) * len(golden) > _MOST_CELLS:
        shared = min(len(target), len(golden))
        target, golden = target[:shared], golden[:shared]
    rows, columns = len(target), len(golden)
    best = [[0.0] * (columns + 1) for _ in range(rows + 1)]
    choice: dict[tuple[int, int], tuple[Match, int, int]] = {}
    for at in range(rows - 1, -1, -1):
        for to in range(columns - 1, -1, -1):
            score, chosen = max(best[at + 1][to], best[at][to + 1]), None
            for match, gain, next_at, next_to in _moves(target, golden, at, to, scores):
                if gain + best[next_at][next_to] > score:
                    score, chosen = gain + best[next_at][next_to], (match, next_at, next_to)
            best[at][to] = score
            if chosen is not None:
                choice[at, to] = chosen
    found, at, to = [], 0, 0
    while at < rows and to < columns:
        chosen = choice.get((at, to))
        if chosen is not None:
            match, at, to = chosen
            found.append(match)
        elif best[at + 1][to] >= best[at][to + 1]:
            at += 1
        else:
            to += 1
    return found


def align_rest(target: list[Unit], golden: list[Unit], found: list[Match], scores: Scores) -> list[Match]:
    """What is left, aligned among itself: branches that do not depend on each other may run in either order."""
    left = [
        [at for at in range(len(own)) if not any(at in match for match in taken)]
        for own, taken in ((target, [match.target for match in found]), (golden, [match.golden for match in found]))
    ]
    rest = align([target[at] for at in left[0]], [golden[at] for at in left[1]], scores)
    moved = [
        Match(tuple(left[0][at] for at in match.target), tuple(left[1][at] for at in match.golden), match.rule)
        for match in rest
    ]
    return [match for match in moved if target[match.target[0]].around == golden[match.golden[0]].around]


def _moves(
    target: list[Unit], golden: list[Unit], at: int, to: int, scores: Scores
) -> Iterator[tuple[Match, float, int, int]]:
    gain, rule = scores.single(target[at], golden[to])
    if gain:
        yield Match((at,), (to,), rule), gain, at + 1, to + 1
    for parts in _parts(golden, to):
        gain = scores.fused(target[at], [golden[part] for part in parts])
        if gain:
            yield Match((at,), parts, "fused projection"), gain, at + 1, parts[-1] + 1
    for parts in _parts(target, at):
        gain = scores.fused(golden[to], [target[part] for part in parts])
        if gain:
            yield Match(parts, (to,), "fused projection"), gain, parts[-1] + 1, to + 1


def _parts(units: list[Unit], first: int) -> Iterator[tuple[int, ...]]:
    """Two and more projections of one parent, from this one on; what lies between them is passed over."""
    if units[first].kind not in _LINEAR:
        return
    parts = [first]
    for at in range(first + 1, len(units)):
        if units[at].parent is not units[first].parent:
            return
        if units[at].kind in _LINEAR:
            parts.append(at)
            if len(parts) > _MOST_PARTS:
                return
            yield tuple(parts)


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """One tensor of an operator: its place among the recorded inputs or outputs."""

    node: OpNode
    io: str
    at: int


@dataclass(frozen=True, slots=True)
class Link:
    """Tensors that hold the same: one each, or a list whose concatenation is the other side's."""

    target: tuple[TensorSlot, ...]
    golden: tuple[TensorSlot, ...]
    rule: str


# Operators whose result goes to the next one in line.
_PASSED_ON = frozenset({"elementwise", "attention"})


class Region:
    """The links of one region or layer."""

    def __init__(self, shapes: tuple[ShapesOf, ShapesOf], scores: Scores, table: OperatorTable) -> None:
        self._shapes, self._scores, self._table = shapes, scores, table
        self._links: list[Link] = []
        self._linked: set[tuple[int, int, str, int]] = set()  # side, node, io, place

    def match(self, target: list[OpNode], golden: list[OpNode], whole: tuple[OpNode, OpNode] | None) -> list[Link]:
        sides = units(target, self._shapes[0]), units(golden, self._shapes[1])
        matches = align(*sides, self._scores)
        matches += align_rest(*sides, matches, self._scores)
        for match in matches:
            self._outputs(match, sides)
        pairs = self._containers(matches, sides, (target, golden), whole)
        self._splits(matches, sides)
        for container, other in pairs:
            self._whole(container, other)
        for side, tops in enumerate((target, golden)):
            self.chains([*([whole[side]] if whole else []), *(node for top in tops for node in top.walk())], side)
        self._named(target, golden, whole)
        self._ends(pairs)
        self._feeding(matches, sides)
        self._rotary(sides)
        for match in matches:
            self._inputs(match, sides)
        return self._links

    # -- single rules -------------------------------------------------------------------------------------------------

    def _outputs(self, match: Match, sides: tuple[list[Unit], list[Unit]]) -> None:
        target = tuple(TensorSlot(sides[0][at].node, OUTPUT, 0) for at in match.target)
        golden = tuple(TensorSlot(sides[1][at].node, OUTPUT, 0) for at in match.golden)
        self._add(target, golden, match.rule)
        if len(target) == len(golden) == 1:
            more = zip(sides[0][match.target[0]].outputs, sides[1][match.golden[0]].outputs, strict=False)
            for at, (shape, other) in enumerate(more):
                if at and prod(shape) == prod(other):
                    self._add(
                        (TensorSlot(target[0].node, OUTPUT, at),), (TensorSlot(golden[0].node, OUTPUT, at),), match.rule
                    )

    def _rotary(self, sides: tuple[list[Unit], list[Unit]]) -> None:
        """An engine's rotary operator takes the cosines and sines that a rotary module gives."""
        operators, modules = ([unit for unit in own if unit.kind == "rotary"] for own in sides)
        for side, takers, givers in ((0, operators, modules), (1, modules, operators)):
            for taker, giver in zip(takers, givers, strict=False):
                for at, shape in enumerate(giver.outputs[:2]):
                    place = at + 2  # after the queries and the keys
                    if place < len(taker.inputs) and prod(taker.inputs[place]) == prod(shape):
                        slots = TensorSlot(taker.node, INPUT, place), TensorSlot(giver.node, OUTPUT, at)
                        self._add_on(side, slots[0], slots[1], "cosines and sines")

    def _inputs(self, match: Match, sides: tuple[list[Unit], list[Unit]]) -> None:
        target, golden = sides[0][match.target[0]], sides[1][match.golden[0]]
        if target.inputs and golden.inputs and prod(target.inputs[0]) == prod(golden.inputs[0]):
            self._add((TensorSlot(target.node, INPUT, 0),), (TensorSlot(golden.node, INPUT, 0),), match.rule)

    def _containers(
        self,
        matches: list[Match],
        sides: tuple[list[Unit], list[Unit]],
        tops: tuple[list[OpNode], list[OpNode]],
        whole: tuple[OpNode, OpNode] | None,
    ) -> list[tuple[OpNode, OpNode]]:
        """Composite operators whose matched parts are all the matched parts of a composite on the other side."""
        partner: dict[int, set[int]] = {}
        for match in matches:
            golden = {id(sides[1][at].node) for at in match.golden}
            for at in match.target:
                partner.setdefault(id(sides[0][at].node), set()).update(golden)
        covered = set().union(*partner.values()) if partner else set()
        others = [(node, _leaf_ids(node) & covered) for top in tops[1] for node in top.walk() if node.children]
        pairs = [whole] if whole else []
        for top in tops[0]:
            for node in top.walk():
                if not node.children:
                    continue
                wanted = set().union(*(partner.get(leaf, set()) for leaf in _leaf_ids(node)))
                fitting = [other for other, leaves in others if wanted and leaves == wanted]
                if fitting:
                    pairs.append((node, fitting[0]))
        return pairs

    def _whole(self, target: OpNode, golden: OpNode) -> None:
        """Link the inputs and outputs of two composite operators as far as their sizes agree."""
        for io, which in ((OUTPUT, 1), (INPUT, 0)):
            target_shapes, golden_shapes = self._shapes[0](target)[which], self._shapes[1](golden)[which]
            for at, (shape, other) in enumerate(zip(target_shapes, golden_shapes, strict=False)):
                if prod(shape) == prod(other):
                    self._add((TensorSlot(target, io, at),), (TensorSlot(golden, io, at),), "structure")

    def _splits(self, matches: list[Match], sides: tuple[list[Unit], list[Unit]]) -> None:
        """The outputs of an operator that cuts a fused projection are the projections of the other side."""
        for match in matches:
            for side, fused, parts in ((0, match.target, match.golden), (1, match.golden, match.target)):
                if len(fused) == 1 and len(parts) > 1:
                    self._split(side, fused[0], [sides[1 - side][at] for at in parts], sides[side])

    def _split(self, side: int, fused: int, parts: list[Unit], own: list[Unit]) -> None:
        cutting = next((unit for unit in own[fused + 1 :] if unit.kind == "split"), None)
        if cutting is None or len(cutting.outputs) != len(parts):
            return
        for at, (shape, part) in enumerate(zip(cutting.outputs, parts, strict=True)):
            if prod(shape) == prod(part.outputs[0]):
                self._add_on(
                    side,
                    TensorSlot(cutting.node, OUTPUT, at),
                    TensorSlot(part.node, OUTPUT, 0),
                    "cut of a fused projection",
                )

    def chains(self, nodes: list[OpNode], side: int) -> None:
        """What the last part of a composite operator gives is what the composite gives."""
        for node in reversed(nodes):
            if not node.children or self._is_linked(side, node, OUTPUT, 0):
                continue
            last = next((child for child in reversed(node.children) if self._shapes[side](child)[1]), None)
            if last is None or self._output_sizes(side, node) != self._output_sizes(side, last):
                continue
            for link in [link for link in self._links if self._gives(link, side, last)]:
                slot = link.target[0] if side == 0 else link.golden[0]
                other = link.golden if side == 0 else link.target
                if len(other) == 1:
                    self._add_on(side, TensorSlot(node, OUTPUT, slot.at), other[0], link.rule)

    def _output_sizes(self, side: int, node: OpNode) -> list[int]:
        return [prod(shape) for shape in self._shapes[side](node)[1]]

    @staticmethod
    def _gives(link: Link, side: int, node: OpNode) -> bool:
        slots = link.target if side == 0 else link.golden
        return len(slots) == 1 and slots[0].node is node and slots[0].io == OUTPUT

    def _ends(self, pairs: list[tuple[OpNode, OpNode]]) -> None:
        """The last operator inside a composite gives what the composite's counterpart gives."""
        for target, golden in pairs:
            for side, node, other in ((0, target, golden), (1, golden, target)):
                last = node
                while last.children:
                    inner = [child for child in last.children if self._shapes[side](child)[1]]
                    if not inner:
                        break
                    last = inner[-1]
                if last is node or self._is_linked(side, last, OUTPUT, 0):
                    continue
                shapes, others = self._shapes[side](last)[1], self._shapes[1 - side](other)[1]
                if shapes and others and len(shapes) == 1 and prod(shapes[0]) == prod(others[0]):
                    self._add_on(side, TensorSlot(last, OUTPUT, 0), TensorSlot(other, OUTPUT, 0), "end of a layer")

    def _feeding(self, matches: list[Match], sides: tuple[list[Unit], list[Unit]]) -> None:
        """An operator without counterpart that feeds a matched one gives what the counterpart takes."""
        taker: tuple[dict[int, Unit], dict[int, Unit]] = ({}, {})
        for match in matches:
            for at in match.target:
                taker[0].setdefault(at, sides[1][match.golden[0]])
            for at in match.golden:
                taker[1].setdefault(at, sides[0][match.target[0]])
        for side in (0, 1):
            for at, unit in enumerate(sides[side]):
                if len(unit.outputs) != 1 or self._is_linked(side, unit.node, OUTPUT, 0):
                    continue
                next_at = _consumer(sides[side], at)
                fed = taker[side].get(next_at) if next_at is not None else None
                if fed is not None and fed.inputs and prod(fed.inputs[0]) == prod(unit.outputs[0]):
                    self._add_on(
                        side,
                        TensorSlot(unit.node, OUTPUT, 0),
                        TensorSlot(fed.node, INPUT, 0),
                        "feeds a matched operator",
                    )

    def _named(self, target: list[OpNode], golden: list[OpNode], whole: tuple[OpNode, OpNode] | None) -> None:
        """Composite operators that the table names, in order, where both sides have equally many."""
        target_nodes = [node for top in ([whole[0]] if whole else target) for node in top.walk()]
        golden_nodes = [node for top in ([whole[1]] if whole else golden) for node in top.walk()]
        for entry in self._table.entries:
            for left, right, side in ((target_nodes, golden_nodes, 0), (golden_nodes, target_nodes, 1)):
                operators = _typed(left, [entry.operator], entry)
                modules = _typed(right, entry.modules, entry)
                if not operators or len(operators) != len(modules):
                    continue
                for (operator, own), (module, other) in zip(operators, modules, strict=True):
                    slot, counterpart = (
                        self._spot(side, operator, own.tensor),
                        self._spot(1 - side, module, other.tensor),
                    )
                    if slot and counterpart and not self._is_linked(side, slot.node, slot.io, slot.at):
                        self._add_on(side, slot, counterpart, "operator table")

    def _spot(self, side: int, node: OpNode, tensor: str | None) -> TensorSlot | None:
        inputs, outputs = self._shapes[side](node)
        if tensor is None:
            return TensorSlot(node, OUTPUT, 0) if outputs else None
        io = INPUT if tensor.startswith("in") else OUTPUT
        digits = "".join(letter for letter in tensor if letter.isdecimal())
        at = int(digits[:4] or 0)
        return TensorSlot(node, io, at) if at < len(inputs if io == INPUT else outputs) else None

    # -- bookkeeping --------------------------------------------------------------------------------------------------

    def _is_linked(self, side: int, node: OpNode, io: str, at: int) -> bool:
        return (side, id(node), io, at) in self._linked

    def _add_on(self, side: int, slot: TensorSlot, other: TensorSlot, rule: str) -> None:
        self._add((slot,), (other,), rule) if side == 0 else self._add((other,), (slot,), rule)

    def _add(self, target: tuple[TensorSlot, ...], golden: tuple[TensorSlot, ...], rule: str) -> None:
        if any(link.target == target and link.golden == golden for link in self._links):
            return
        self._links.append(Link(target, golden, rule))
        for side, slots in ((0, target), (1, golden)):
            self._linked.update((side, id(slot.node), slot.io, slot.at) for slot in slots)


def _leaf_ids(node: OpNode) -> set[int]:
    return {id(leaf) for leaf in node.leaves()}


def _typed(nodes: Iterable[OpNode], names: Iterable[Named], entry: Entry) -> list[tuple[OpNode, Named]]:
    fitting = ((node, next((name for name in names if entry.names(name, node.op_type)), None)) for node in nodes)
    return [(node, name) for node, name in fitting if name is not None]


def _consumer(own: list[Unit], at: int) -> int | None:
    """The unit that takes what this one gives: by the names of the tensors where they tell, else the next one.

    Modules have no such names, and the next module need not be fed by this one.
    """
    unit = own[at]
    names = unit.node.outputs
    is_unique = names and names[0] not in unit.node.inputs and sum(names[0] in other.node.outputs for other in own) == 1
    if is_unique:
        return next((to for to in range(at + 1, len(own)) if names[0] in own[to].node.inputs), None)
    is_operator = unit.node.folder[:1].isdecimal()
    follows = is_operator and unit.kind in _PASSED_ON and at + 1 < len(own)
    return at + 1 if follows else None
