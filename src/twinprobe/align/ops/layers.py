"""The links of a whole model, layer by layer: layers that are built alike are matched once."""

from __future__ import annotations

from twinprobe.align.ops.links import Link, Region, Spot
from twinprobe.align.ops.regions import ShapesOf
from twinprobe.align.ops.sequence import Scores
from twinprobe.align.ops.table import OperatorTable
from twinprobe.runs.llm.tree import OpNode

Template = list[tuple[tuple[tuple[int, str, int], ...], tuple[tuple[int, str, int], ...], str]]


class Linker:
    """Collects links, region by region. Layers that are built alike are matched once."""

    def __init__(self, my_shapes: ShapesOf, golden_shapes: ShapesOf, scores: Scores, table: OperatorTable) -> None:
        self._shapes = (my_shapes, golden_shapes)
        self._scores = scores
        self._table = table
        self._templates: dict[object, Template] = {}
        self.links: list[Link] = []

    def region(self, my: list[OpNode], golden: list[OpNode], around: tuple[list[OpNode], list[OpNode]]) -> None:
        """Match what lies before or after the layers; ``around``: the whole model and what else encloses the layers."""
        region = Region(self._shapes, self._scores, self._table)
        links = region.match(my, golden, None)
        for side in (0, 1):
            region.chains(around[side], side)
        self.links += links

    def layer(self, my: OpNode, golden: OpNode) -> None:
        """Match one layer with its counterpart."""
        nodes, others = list(my.walk()), list(golden.walk())
        kind = (_build(my), _build(golden))
        template = self._templates.get(kind)
        if template is None:
            links = Region(self._shapes, self._scores, self._table).match(my.children, golden.children, (my, golden))
            self.links += links
            if links:
                self._templates[kind] = _template(links, nodes, others)
            return
        for mine, theirs, rule in template:
            self.links.append(
                Link(
                    tuple(Spot(nodes[node], io, at) for node, io, at in mine),
                    tuple(Spot(others[node], io, at) for node, io, at in theirs),
                    rule,
                )
            )


def _build(layer: OpNode) -> tuple[object, ...]:
    """What a layer is made of; which of its operators were called counts too."""
    return tuple((node.op_type, len(node.children), node.called) for node in layer.walk())


def _template(links: list[Link], nodes: list[OpNode], others: list[OpNode]) -> Template:
    mine = {id(node): at for at, node in enumerate(nodes)}
    theirs = {id(node): at for at, node in enumerate(others)}
    return [
        (
            tuple((mine[id(spot.node)], spot.io, spot.at) for spot in link.my),
            tuple((theirs[id(spot.node)], spot.io, spot.at) for spot in link.golden),
            link.rule,
        )
        for link in links
    ]
