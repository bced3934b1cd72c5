"""Questions about files, trees and single nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from twinprobe.errors import BadInput
from twinprobe.graph.open_graph import find_graphs
from twinprobe.graph.read_db import GOLDEN, SOURCES, TARGET
from twinprobe.report.text import visible
from twinprobe.view.edges import sibling_edges
from twinprobe.view.first import facts, first_known, first_of
from twinprobe.view.levels import bands
from twinprobe.view.nodes import PAGE, Scene, metrics_of
from twinprobe.view.questions import Desk, Question, named

Answer = dict[str, Any]


def files(desk: Desk, _: Question) -> Answer:
    """The files that can be opened, newest first."""
    found = [{"id": s.id, "size": s.size, "modified": s.modified, "db": s.is_db} for s in find_graphs(desk.place)]
    return {"files": found, "place": visible(desk.place.resolve().name)}


def open_file(desk: Desk, asked: Question) -> Answer:
    """What a file is, the roots of its graphs and, if the file tells it, where the runs part."""
    with desk.scene(asked) as plain:
        config = plain.config
        metrics = metrics_of(config, plain.graph)
        scene = replace(plain, metric=plain.metric or "".join(metrics[:1]))
        roots = {side: root for side in sides(scene) if (root := scene.graph.root(side))}
        if TARGET not in roots:
            raise BadInput("holds no node for this step and rank", hint="it may still be being written: reload")
        return {
            "file": scene.source.id, "step": scene.step, "rank": scene.rank, "steps": config.steps,
            "ranks": config.ranks, "compared": config.compared, "task": config.task, "microSteps": config.micro_steps,
            "overflow": config.overflow, "tooltips": config.tooltips,
            "bands": [vars(band) for band in bands(config.colors)],
            "metrics": metrics, "knowsMore": config.knows_more,
            "roots": {side: scene.brief(side, [root])[0] for side, root in roots.items()},
            "pages": {side: [scene.children(side, root["node_name"], 0)] for side, root in roots.items()},
            "first": first_known(scene),
        }  # fmt: skip


def first(desk: Desk, asked: Question) -> Answer:
    """Where the runs part, found by looking if the file does not tell it."""
    with desk.scene(asked) as scene:
        if not scene.config.compared:
            return {"first": None}
        known = first_known(scene) if asked.limit("above") is None else None
        if known is None:
            known = first_of(scene, desk.overview(scene, TARGET).order[desk.suspicious(scene, asked)])
        return {"first": known}


def children(desk: Desk, asked: Question) -> Answer:
    """A page of a node's children."""
    with desk.scene(asked) as scene:
        limit = asked.number("limit", PAGE, 1000)
        return scene.children(asked.side(), asked.text("parent"), asked.number("offset", 0), limit)


def unfold(desk: Desk, asked: Question) -> Answer:
    """The pages of children that lead to a node and to its partner."""
    with desk.scene(asked) as scene:
        side, inside = asked.side(), asked.flag("inside")
        row = named(scene, asked)
        other = GOLDEN if side == TARGET else TARGET
        partner = scene.partner(side, row)
        return {
            "node": scene.brief(side, [row])[0],
            side: scene.pages_to(side, row["node_name"], inside=inside),
            other: scene.pages_to(other, partner, inside=inside) if partner else [],
        }


def restore(desk: Desk, asked: Question) -> Answer:
    """The first pages of the nodes that were open when a link was made, given by their places in the order."""
    with desk.scene(asked) as scene:
        found: Answer = {}
        for side in SOURCES:
            rows = scene.graph.by_order(side, asked.numbers(side)[:500])
            rows.sort(key=lambda row: -int(row["node_order"]))  # a parent comes after its children in the order
            found[side] = [scene.children(side, row["node_name"], 0) for row in rows if not row["leaf"]]
        return found


def node(desk: Desk, asked: Question) -> Answer:
    """Everything about a node and its partner."""
    with desk.scene(asked) as scene:
        detail = scene.detail(asked.side(), named(scene, asked)["node_name"])
        target = detail.get(TARGET)
        return {**detail, "facts": facts(target, detail.get(GOLDEN)) if target and scene.config.compared else None}


def edges(desk: Desk, asked: Question) -> Answer:
    """Data flow between the children of a node."""
    with desk.scene(asked) as scene:
        side, parent = asked.side(), asked.text("parent")
        offset, limit = asked.number("offset", 0), asked.number("limit", PAGE, 1000)
        tensors = scene.graph.tensors(side, parent, offset, limit, scene.micro_under(side, parent))
        return {"parent": parent, "edges": sibling_edges(tensors)}


def search(desk: Desk, asked: Question) -> Answer:
    """Nodes whose names contain a text."""
    text = asked.text("text").strip()[:500]
    with desk.scene(asked) as scene:
        found: Answer = {}
        for side in sides(scene):
            hits = scene.graph.search(side, text, 300) if text else []
            found[side] = scene.brief(side, scene.graph.by_order(side, [order for _, order in hits]))
        return found


def sides(scene: Scene) -> tuple[str, ...]:
    """The graphs that there are."""
    return (TARGET, GOLDEN) if scene.config.compared else (TARGET,)
