"""Questions about the whole run: lists, counts, the strip, the next suspicious node, ranks by steps."""

from __future__ import annotations

from typing import Any

from twinprobe.errors import TwinProbeError
from twinprobe.graph.open_graph import Source, open_graph
from twinprobe.graph.read_db import TARGET, last_link
from twinprobe.view.ask_tree import Answer, sides
from twinprobe.view.levels import bands
from twinprobe.view.nodes import PAGE, Scene
from twinprobe.view.overview import read_overview, strip
from twinprobe.view.questions import Desk, Question

_MOST_STEPS, _MOST_RANKS, _CELLS_AT_ONCE = 200, 1024, 8


def nodes(desk: Desk, asked: Question) -> Answer:
    """A page of the nodes that pass some filters, in execution order."""
    with desk.scene(asked) as scene:
        side, kind = asked.side(), asked.text("kind", "suspicious")
        orders = desk.overview(scene, side).chosen(
            unmatched={"unmatched": True, "matched": False}.get(kind),
            suspicious=desk.suspicious(scene, asked) if kind == "suspicious" and side == TARGET else None,
            levels=asked.numbers("levels"),
            overflow=[name for name in asked.text("overflow").split(",") if name],
            what=asked.text("what"), micro=scene.micro,
        ).tolist()  # fmt: skip
        orders = _with_manual(scene, side, kind, orders)
        offset = asked.number("offset", 0)
        page = orders[offset : offset + asked.number("limit", PAGE, 1000)]
        found = scene.brief(side, scene.graph.by_order(side, page))
        return {"total": len(orders), "offset": offset, "nodes": found}


def counts(desk: Desk, asked: Question) -> Answer:
    """How many nodes there are of each sort, on each side."""
    with desk.scene(asked) as scene:
        levels = len(bands(scene.config.colors))
        found: Answer = {side: desk.overview(scene, side).counts(levels) for side in sides(scene)}
        found[TARGET]["suspicious"] = int(desk.suspicious(scene, asked).sum())
        return found


def error_strip(desk: Desk, asked: Question) -> Answer:
    """The error over the whole execution, in pieces."""
    with desk.scene(asked) as scene:
        return strip(desk.overview(scene, TARGET), desk.metric(scene), asked.number("bins", 800, 4000))


def step(desk: Desk, asked: Question) -> Answer:
    """The next or previous suspicious node in execution order, and which of how many it is."""
    with desk.scene(asked) as scene:
        places = desk.overview(scene, TARGET).order[desk.suspicious(scene, asked)]
        if not len(places):
            return {"node": None, "at": 0, "of": 0}
        start = asked.optional("from")
        if start is None:
            at = 0
        elif asked.flag("back"):
            at = int(places.searchsorted(start, "left")) - 1
        else:
            at = int(places.searchsorted(start, "right"))
        at = at % len(places)
        rows = scene.graph.by_order(TARGET, [int(places[at])])
        return {"node": scene.brief(TARGET, rows)[0], "at": at + 1, "of": len(places)}


def heat(desk: Desk, asked: Question) -> Answer:
    """The worst level and the count of suspicious nodes for every rank and step; a few more on each call."""
    with desk.scene(asked) as scene:
        source, config = scene.source, scene.config
    wanted = [(s, r) for s in config.steps[:_MOST_STEPS] for r in config.ranks[:_MOST_RANKS]]
    cells, made = [], 0
    for one_step, rank in wanted:
        if not source.is_db and (one_step, rank) not in source.paths:
            cells.append({"step": one_step, "rank": rank, "missing": True})
            continue
        key = desk.version(source, one_step, rank)
        if key not in desk.cells:
            if made == _CELLS_AT_ONCE:
                continue
            made += 1
            desk.cells[key] = _cell(source, one_step, rank)
        cells.append({"step": one_step, "rank": rank, **desk.cells[key]})
    return {"cells": cells, "complete": len(cells) == len(wanted)}


def _cell(source: Source, one_step: int, rank: int) -> dict[str, Any]:
    try:
        with open_graph(source, one_step, rank) as (config, graph):
            known = bands(config.colors)
            told = graph.verdicts(TARGET)
            if told and [band.label for band in known] == ["pass", "warning", "error"]:
                per_level = [told.get(band.label, 0) for band in known]
            else:
                per_level = read_overview(config, graph, TARGET).counts(len(known))["levels"]
    except TwinProbeError:
        return {"missing": True}
    worst = max((level for level, count in enumerate(per_level) if count), default=None)
    return {"level": worst, "suspicious": sum(per_level[1:]), "levels": per_level}


def _with_manual(scene: Scene, side: str, kind: str, orders: list[int]) -> list[int]:
    """Lists of matched and unmatched nodes as they are after matching by hand."""
    made = scene.matches
    if kind not in ("matched", "unmatched") or not (made.added or made.removed):
        return orders
    names = set(made.added if side == TARGET else made.added.values())
    for target in made.removed | set(made.added):
        row = scene.graph.node(TARGET, target)
        partner = last_link(row["matched_node_link"]) if row else None
        names |= {target} if side == TARGET else {partner} if partner else set()
    touched = {row["node_order"]: row for name in names if (row := scene.graph.node(side, name))}
    keep = {order for order in orders if order not in touched}
    return sorted(
        keep | {o for o, row in touched.items() if (scene.partner(side, row) is None) == (kind == "unmatched")}
    )
