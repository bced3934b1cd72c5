"""Which operators of one inference run are which of the other: by equal names, else by structure.

The one entry point is ``match_operators``; what it returns, links between tensors with the rule that found each, is all
that the comparison knows of this package.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from twinprobe._align.ops.links import Link, Region, Scores
from twinprobe._align.ops.regions import ShapesOf, regions
from twinprobe._align.ops.table import OperatorTable
from twinprobe._runs.llm.tree import OpNode

# The links of a whole model, layer by layer: layers that are built alike are matched once.


class Linker:
    """Collects links, region by region. Layers that are built alike are matched once."""

    def __init__(self, target_shapes: ShapesOf, golden_shapes: ShapesOf, scores: Scores, table: OperatorTable) -> None:
        self._shapes = (target_shapes, golden_shapes)
        self._scores = scores
        self._table = table
        # By what layers are made of: the operators of the first such layers, and their links.
        self._known: dict[object, tuple[tuple[list[OpNode], list[OpNode]], list[Link]]] = {}
        self.links: list[Link] = []

    def region(self, target: list[OpNode], golden: list[OpNode], around: tuple[list[OpNode], list[OpNode]]) -> None:
        """Match what lies before or after the layers; ``around``: the whole model and what else encloses the layers."""
        region = Region(self._shapes, self._scores, self._table)
        links = region.match(target, golden, None)
        for side in (0, 1):
            region.chains(around[side], side)  # adds to the same links
        self.links += links

    def layer(self, target: OpNode, golden: OpNode) -> None:
        """Match one layer with its counterpart."""
        nodes = list(target.walk()), list(golden.walk())
        kind = (_build(target), _build(golden))
        if kind in self._known:
            first, links = self._known[kind]
            here, there = (
                {id(node): now for node, now in zip(*side, strict=True)} for side in zip(first, nodes, strict=True)
            )
            links = [_moved(link, here, there) for link in links]
        else:
            region = Region(self._shapes, self._scores, self._table)
            links = region.match(target.children, golden.children, (target, golden))
            if links:
                self._known[kind] = nodes, links
        self.links += links


def _moved(link: Link, target: dict[int, OpNode], golden: dict[int, OpNode]) -> Link:
    """The same link between the operators of another layer that is built alike."""
    return Link(
        tuple(replace(slot, node=target[id(slot.node)]) for slot in link.target),
        tuple(replace(slot, node=golden[id(slot.node)]) for slot in link.golden),
        link.rule,
    )


def _build(layer: OpNode) -> tuple[object, ...]:
    """What a layer is made of; which of its operators were called counts too."""
    return tuple((node.op_type, len(node.children), node.called) for node in layer.walk())


# Names correspond where at least one operator in twenty of the smaller side has a partner.
_MEETING = 20


@dataclass(frozen=True, slots=True)
class OperatorRun:
    """One run: its operators in the order of their calls, the shapes that were recorded, and on how many cards.

    ``numbered`` says that names are numbers of operators, as engines give them, and not chosen by a person.
    """

    tree: OpNode
    shapes_of: ShapesOf
    cards: int = 1
    numbered: bool = False


@dataclass(slots=True)
class Matching:
    """Pairs of operators with equal names, or links between single tensors; and what the user should know."""

    nodes: list[tuple[OpNode, OpNode]]
    links: list[Link]
    notes: list[str]


def match_operators(target: OperatorRun, golden: OperatorRun, table: OperatorTable) -> Matching:
    """Match two runs of one model."""
    pairs = _equal_names(target, golden)
    if pairs:
        return Matching(pairs, [], [])
    linker = Linker(target.shapes_of, golden.shapes_of, Scores(table, cards=max(target.cards, golden.cards)), table)
    parts, others = regions(target.tree), regions(golden.tree)
    notes = []
    if len(parts.layers) != len(others.layers):
        notes.append(
            f"my run has {len(parts.layers)} layers, the golden one {len(others.layers)}: "
            "only the first of them are compared; are they of the same model?"
        )
    linker.region(parts.before, others.before, ([], []))
    for layer, other in zip(parts.layers, others.layers, strict=False):
        linker.layer(layer, other)
    linker.region(parts.after, others.after, (parts.around, others.around))
    return Matching([], linker.links, notes)


def _equal_names(target: OperatorRun, golden: OperatorRun) -> list[tuple[OpNode, OpNode]]:
    target_nodes = {node.folder: node for node in target.tree.walk()}
    golden_nodes = {node.folder: node for node in golden.tree.walk()}
    common = (target_nodes.keys() & golden_nodes.keys()) - {""}
    telling = len(common - {"root"})  # every model has a root
    fewer = min(len(target_nodes), len(golden_nodes)) - 1
    # Where a graph has other operators, equal numbers soon mean different ones.
    enough = telling * 10 >= fewer * 9 if target.numbered else telling * _MEETING >= fewer
    if target.numbered != golden.numbered or not common or not enough:
        return []
    return [(node, golden_nodes[node.folder]) for node in target.tree.finished() if node.folder in common]
