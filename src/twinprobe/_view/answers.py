"""What the page asks, and the answers: files, trees, single nodes, the whole run, matches made by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from twinprobe._graph.read.db import GOLDEN, SOURCES, TARGET, file_key, last_link
from twinprobe._graph.read.open import Source, find_graph, find_graphs, open_graph
from twinprobe._measure.blocks import checked_cut
from twinprobe._report.console import visible
from twinprobe._report.inside import picture
from twinprobe._runs.tensors.tensor_files import open_named
from twinprobe._view import pairing
from twinprobe._view.nodes import (
    METRICS,
    PAGE,
    GraphView,
    bands,
    change_matches,
    load_matches,
    metrics_of,
    sibling_edges,
)
from twinprobe._view.overview import (
    Cache,
    Floats,
    Overview,
    facts,
    first_known,
    first_of,
    growth,
    read_metric,
    read_overview,
    strip,
)
from twinprobe.errors import BadInput, TwinProbeError

_LARGEST = 1 << 40
_SCREEN = (64, 96)


class RequestArguments:
    """The arguments of a request."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def text(self, key: str, default: str = "") -> str:
        """A text of reasonable length."""
        return self._values.get(key, default)[:10_000]

    def flag(self, key: str) -> bool:
        """Whether something is switched on."""
        return self._values.get(key) == "1"

    def number(self, key: str, default: int, most: int = _LARGEST) -> int:
        """A whole number from 0 on."""
        found = self.optional(key)
        return default if found is None else min(found, most)

    def optional(self, key: str) -> int | None:
        """A whole number from 0 on, or None if it is not given."""
        text = self._values.get(key, "")
        if not text:
            return None
        if not text.isdecimal() or len(text) > 15:
            raise BadInput(f"{key} must be a number")
        return int(text)

    def limit(self, key: str) -> float | None:
        """A number that is not negative, or None if it is not given."""
        try:
            found = float(self._values[key]) if self._values.get(key) else None
        except ValueError:
            raise BadInput(f"{key} must be a number") from None
        return found if found is not None and found >= 0 else None

    def numbers(self, key: str) -> list[int]:
        """A comma list of whole numbers."""
        parts = [part for part in self._values.get(key, "").split(",") if part]
        if not all(part.isdecimal() and len(part) < 16 for part in parts):
            raise BadInput(f"{key} must be a list of numbers")
        return [int(part) for part in parts][:5000]

    def side(self) -> str:
        """Which graph: that of the run under test or that of the reference."""
        side = self._values.get("side") or TARGET
        if side not in SOURCES:
            raise BadInput(f"side must be {TARGET} or {GOLDEN}")
        return side


@dataclass(frozen=True)
class Workspace:
    """The folder that is shown, and what was computed for earlier requests and can be computed again."""

    place: Path
    _overviews: Cache = field(default_factory=lambda: Cache(64))
    _metrics: Cache = field(default_factory=lambda: Cache(32))
    cells: dict[Any, dict[str, Any]] = field(default_factory=dict)

    def source(self, arguments: RequestArguments) -> Source:
        """The file that a request names, which must be one of those in the folder; by default the newest."""
        if wanted := arguments.text("file"):
            source = find_graph(self.place, wanted)
            if source is None:
                raise BadInput("there is no such file in the folder", where=wanted)
            return source
        found = find_graphs(self.place)
        if not found:
            raise BadInput("no .vis or .vis.db file is in this folder", hint="make one with twinprobe graph")
        return found[0]

    @contextmanager
    def view(self, arguments: RequestArguments) -> Iterator[GraphView]:
        """The graph that a request means."""
        source = self.source(arguments)
        with open_graph(source, arguments.optional("step"), arguments.optional("rank")) as (config, graph):
            step, rank = arguments.number("step", config.steps[0]), arguments.number("rank", config.ranks[0])
            made = load_matches(source.path, f"{step}/{rank}")
            metric = arguments.text("metric") if arguments.text("metric") in METRICS else ""
            yield GraphView(source, step, rank, config, graph, made, arguments.optional("micro"), metric)

    def overview(self, view: GraphView, side: str) -> Overview:
        """The arrays of one side, computed once for each version of the file."""
        key = (self.version(view.source, view.step, view.rank), side)
        return self._overviews.get(key, lambda: read_overview(view.config, view.graph, side))

    def metric(self, view: GraphView) -> Floats | None:
        """The metric in use for every node, if one is."""
        if not view.metric:
            return None
        overview = self.overview(view, TARGET)
        key = (self.version(view.source, view.step, view.rank), view.metric)
        return self._metrics.get(key, lambda: read_metric(view.graph, view.metric, overview))

    def suspicious(self, view: GraphView, arguments: RequestArguments) -> npt.NDArray[np.bool_]:
        """Which nodes of the run under test count as suspicious: by the file's marks or by the user's own limit."""
        above = arguments.limit("above")
        return self.overview(view, TARGET).suspicious(self.metric(view) if above is not None else None, above)

    @staticmethod
    def version(source: Source, step: int, rank: int) -> tuple[str, int, int]:
        """A key that changes when the file does."""
        path = source.path if source.is_db else source.paths[step, rank]
        log = path.with_name(path.name + "-wal")
        return (file_key(path, log) if log.exists() else file_key(path), step, rank)


def named(view: GraphView, arguments: RequestArguments) -> dict[str, Any]:
    """The node that a request names by name or by its place in the order."""
    order, name, side = arguments.optional("order"), arguments.text("name"), arguments.side()
    row = view.graph.node(side, name) if order is None else next(iter(view.graph.by_order(side, [order])), None)
    if row is None:
        raise BadInput(f"there is no node {name!r} in this graph" if name else "there is no such node in this graph")
    return row


Answer = dict[str, Any]


def files(workspace: Workspace) -> Answer:
    """The files that can be opened, newest first."""
    found = [{"id": s.id, "size": s.size, "modified": s.modified, "db": s.is_db} for s in find_graphs(workspace.place)]
    return {"files": found, "place": visible(workspace.place.resolve().name)}


def open_file(_workspace: Workspace, view: GraphView, _arguments: RequestArguments) -> Answer:
    """What a file is, the roots of its graphs and, if the file tells it, where the runs part."""
    config = view.config
    metrics = metrics_of(config, view.graph)
    view = replace(view, metric=view.metric or "".join(metrics[:1]))
    roots = {side: root for side in view.sides if (root := view.graph.root(side))}
    if TARGET not in roots:
        raise BadInput("holds no node for this step and rank", hint="it may still be written to: reload")
    return {
        "file": view.source.id, "step": view.step, "rank": view.rank, "steps": config.steps,
        "ranks": config.ranks, "compared": config.compared, "task": config.task, "microSteps": config.micro_steps,
        "overflow": config.overflow, "tooltips": config.tooltips,
        "bands": [vars(band) for band in bands(config.colors)],
        "metrics": metrics, "knowsMore": config.knows_more,
        "roots": {side: view.brief(side, [root])[0] for side, root in roots.items()},
        "pages": {side: [view.children(side, root["node_name"], 0)] for side, root in roots.items()},
        "first": first_known(view),
    }  # fmt: skip


def first(workspace: Workspace, view: GraphView, arguments: RequestArguments) -> Answer:
    """Where the runs part, found by looking if the file does not tell it."""
    if not view.config.compared:
        return {"first": None}
    known = first_known(view) if arguments.limit("above") is None else None
    if known is None:
        known = first_of(view, workspace.overview(view, TARGET).order[workspace.suspicious(view, arguments)])
    return {"first": known}


def children(_workspace: Workspace, view: GraphView, arguments: RequestArguments) -> Answer:
    """A page of a node's children."""
    limit = arguments.number("limit", PAGE, 1000)
    return view.children(arguments.side(), arguments.text("parent"), arguments.number("offset", 0), limit)


def unfold(_workspace: Workspace, view: GraphView, arguments: RequestArguments) -> Answer:
    """The pages of children that lead to a node and to its partner."""
    side, inside = arguments.side(), arguments.flag("inside")
    row = named(view, arguments)
    other = GOLDEN if side == TARGET else TARGET
    partner = view.partner(side, row)
    return {
        "node": view.brief(side, [row])[0],
        side: view.pages_to(side, row["node_name"], inside=inside),
        other: view.pages_to(other, partner, inside=inside) if partner else [],
    }


def restore(_workspace: Workspace, view: GraphView, arguments: RequestArguments) -> Answer:
    """The first pages of the nodes that were open when a link was made, given by their places in the order."""
    found: Answer = {}
    for side in SOURCES:
        rows = view.graph.by_order(side, arguments.numbers(side)[:500])
        rows.sort(key=lambda row: -int(row["node_order"]))  # a parent comes after its children in the order
        found[side] = [view.children(side, row["node_name"], 0) for row in rows if not row["leaf"]]
    return found


def node(_workspace: Workspace, view: GraphView, arguments: RequestArguments) -> Answer:
    """Everything about a node and its partner."""
    detail = view.detail(arguments.side(), named(view, arguments)["node_name"])
    target = detail.get(TARGET)
    if not target or not view.config.compared:
        return {**detail, "facts": None, "drawn": []}
    names = [tensor["name"] for tensor in (*target["outputs"], *target["inputs"])]
    drawn = [name.removeprefix(f"{target['name']}.") for name in names if view.graph.summary(f"inside:{name}")]
    return {**detail, "facts": facts(target, detail.get(GOLDEN)), "drawn": drawn}


def inside(_workspace: Workspace, view: GraphView, arguments: RequestArguments) -> Answer:
    """A picture of what is inside an argument's tensors: as the graph has it, or read from the files."""
    argument = arguments.text("argument")
    detail = view.detail(TARGET, named(view, arguments)["node_name"])
    known = view.graph.summary(f"inside:{detail[TARGET]['name']}.{argument}") if not arguments.text("ranges") else {}
    if known:
        return known
    folders, names = [], []
    for side in SOURCES:
        node = detail[side]
        tensors = (*node["inputs"], *node["outputs"]) if node else ()
        found = next((tensor for tensor in tensors if tensor["name"] == f"{node['name']}.{argument}"), None)
        if found is None or found.get("data_name", "-1") == "-1" or not node["folder"]:
            raise BadInput(f"{argument}: its tensors were not kept")
        folders.append(Path(node["folder"]))
        names.append(found["data_name"])
    if not arguments.text("ranges"):
        return picture(folders, names, most=_SCREEN)
    spans = [span.partition("-") for span in arguments.text("ranges").split(",")]
    if not all(a.isdecimal() and b.isdecimal() and len(a + b) < 30 for a, _, b in spans):
        raise BadInput("ranges must be a list of ranges, e.g. 0-4,0-16")
    ranges = [(int(a), int(b)) for a, _, b in spans]
    shape = open_named(folders[0], names[0]).shape or (1,)
    rows = arguments.optional("rows")
    cut = checked_cut(shape, -1 if rows is None else rows, arguments.number("columns", 0), ranges)
    return picture(folders, names, cut, most=_SCREEN)


def edges(_workspace: Workspace, view: GraphView, arguments: RequestArguments) -> Answer:
    """Data flow between the children of a node."""
    side, parent = arguments.side(), arguments.text("parent")
    offset, limit = arguments.number("offset", 0), arguments.number("limit", PAGE, 1000)
    tensors = view.graph.tensors(side, parent, offset, limit, view.micro_under(side, parent))
    return {"parent": parent, "edges": sibling_edges(tensors)}


def search(_workspace: Workspace, view: GraphView, arguments: RequestArguments) -> Answer:
    """Nodes whose names contain a text."""
    text = arguments.text("text").strip()[:500]
    found: Answer = {}
    for side in view.sides:
        hits = view.graph.search(side, text, 300) if text else []
        found[side] = view.brief(side, view.graph.by_order(side, [order for _, order in hits]))
    return found


_MOST_STEPS, _MOST_RANKS, _CELLS_AT_ONCE = 200, 1024, 8


def nodes(workspace: Workspace, view: GraphView, arguments: RequestArguments) -> Answer:
    """A page of the nodes that pass some filters, in execution order."""
    side, kind = arguments.side(), arguments.text("kind", "suspicious")
    injected = arguments.flag("injected") and side == TARGET
    marked = kind == "suspicious" and side == TARGET and not injected
    orders = workspace.overview(view, side).chosen(
        unmatched={"unmatched": True, "matched": False}.get(kind),
        suspicious=workspace.suspicious(view, arguments) if marked else None,
        levels=arguments.numbers("levels"),
        overflow=[name for name in arguments.text("overflow").split(",") if name],
        what=arguments.text("what"), micro=view.micro,
    ).tolist()  # fmt: skip
    if injected:  # whatever its level: a small difference that arose here may be all that matters
        places = set(view.graph.injected(side))
        orders = [order for order in orders if order in places]
    orders = _with_manual(view, side, kind, orders)
    offset = arguments.number("offset", 0)
    page = orders[offset : offset + arguments.number("limit", PAGE, 1000)]
    found = view.brief(side, view.graph.by_order(side, page))
    return {"total": len(orders), "offset": offset, "nodes": found}


def counts(workspace: Workspace, view: GraphView, arguments: RequestArguments) -> Answer:
    """How many nodes there are of each sort, on each side."""
    levels = len(bands(view.config.colors))
    found: Answer = {side: workspace.overview(view, side).counts(levels) for side in view.sides}
    found[TARGET]["suspicious"] = int(workspace.suspicious(view, arguments).sum())
    found[TARGET]["injected"] = len(view.graph.injected(TARGET))
    return found


def error_strip(workspace: Workspace, view: GraphView, arguments: RequestArguments) -> Answer:
    """The error over the whole execution, in pieces."""
    return strip(workspace.overview(view, TARGET), workspace.metric(view), arguments.number("bins", 800, 4000))


def error_growth(_workspace: Workspace, view: GraphView, _arguments: RequestArguments) -> Answer:
    """How the error grows along the run, with what noise explains."""
    return growth(view.graph)


def step(workspace: Workspace, view: GraphView, arguments: RequestArguments) -> Answer:
    """The next or previous suspicious node in execution order, and which of how many it is."""
    places = workspace.overview(view, TARGET).order[workspace.suspicious(view, arguments)]
    if not len(places):
        return {"node": None, "at": 0, "of": 0}
    start = arguments.optional("from")
    if start is None:
        index = 0
    elif arguments.flag("back"):
        index = int(places.searchsorted(start, "left")) - 1
    else:
        index = int(places.searchsorted(start, "right"))
    index = index % len(places)
    rows = view.graph.by_order(TARGET, [int(places[index])])
    return {"node": view.brief(TARGET, rows)[0], "at": index + 1, "of": len(places)}


def heat(workspace: Workspace, view: GraphView, _arguments: RequestArguments) -> Answer:
    """The worst level and the count of suspicious nodes for every rank and step; a few more on each call."""
    source, config = view.source, view.config
    wanted = [(s, r) for s in config.steps[:_MOST_STEPS] for r in config.ranks[:_MOST_RANKS]]
    cells, made = [], 0
    for one_step, rank in wanted:
        if not source.is_db and (one_step, rank) not in source.paths:
            cells.append({"step": one_step, "rank": rank, "missing": True})
            continue
        key = workspace.version(source, one_step, rank)
        if key not in workspace.cells:
            if made == _CELLS_AT_ONCE:
                continue
            made += 1
            workspace.cells[key] = _cell(source, one_step, rank)
        cells.append({"step": one_step, "rank": rank, **workspace.cells[key]})
    return {"cells": cells, "complete": len(cells) == len(wanted)}


def _cell(source: Source, one_step: int, rank: int) -> dict[str, Any]:
    try:
        with open_graph(source, one_step, rank) as (config, graph):
            known = bands(config.colors)
            verdicts = graph.verdicts(TARGET)
            if verdicts and [band.label for band in known] == ["pass", "warning", "error"]:
                per_level = [verdicts.get(band.label, 0) for band in known]
            else:
                per_level = read_overview(config, graph, TARGET).counts(len(known))["levels"]
    except TwinProbeError:
        return {"missing": True}
    worst = max((level for level, count in enumerate(per_level) if count), default=None)
    return {"level": worst, "suspicious": sum(per_level[1:]), "levels": per_level}


def _with_manual(view: GraphView, side: str, kind: str, orders: list[int]) -> list[int]:
    """Lists of matched and unmatched nodes as they are after matching by hand."""
    made = view.matches
    if kind not in ("matched", "unmatched") or not (made.added or made.removed):
        return orders
    names = set(made.added if side == TARGET else made.added.values())
    for target in made.removed | set(made.added):
        row = view.graph.node(TARGET, target)
        partner = last_link(row["matched_node_link"]) if row else None
        names |= {target} if side == TARGET else {partner} if partner else set()
    touched = {row["node_order"]: row for name in names if (row := view.graph.node(side, name))}
    keep = {order for order in orders if order not in touched}
    return sorted(
        keep | {o for o, row in touched.items() if (view.partner(side, row) is None) == (kind == "unmatched")}
    )


def made_by_hand(_workspace: Workspace, view: GraphView, _arguments: RequestArguments) -> Answer:
    """The matches made by hand, by name of the run under test, as JSON and as layer_mapping.yaml."""
    made = view.matches
    return {"matches": made.added, "removed": sorted(made.removed), "yaml": pairing.layer_mapping(view)}


QUESTIONS: dict[str, Callable[[Workspace, GraphView, RequestArguments], Answer]] = {
    "open": open_file, "first": first, "children": children, "unfold": unfold, "restore": restore,
    "node": node, "edges": edges, "search": search, "list": nodes, "counts": counts, "strip": error_strip, "step": step,
    "heat": heat, "matches": made_by_hand, "inside": inside, "growth": error_growth,
}  # fmt: skip


def change(workspace: Workspace, values: Mapping[str, Any]) -> Answer:
    """Match, part or import: written to a file beside the graph, never into it."""
    arguments = RequestArguments({key: str(value) for key, value in values.items() if key != "pairs"})
    with workspace.view(arguments) as view:
        if not view.config.compared:
            raise BadInput("there is only one graph in this file")
        action, branch, fitting = arguments.text("action"), arguments.flag("branch"), 1
        target, golden = arguments.text("target"), arguments.text("golden")
        if action == "add":
            for side, name in ((TARGET, target), (GOLDEN, golden)):
                if view.graph.node(side, name) is None:
                    raise BadInput(f"there is no node {name!r} in the {side} graph")
            edit = pairing.add_pair(view, target, golden, branch=branch)
        elif action == "remove":
            edit = pairing.remove_pair(view, target, branch=branch)
        elif action == "import" and isinstance(values.get("pairs"), dict):
            edit, fitting = pairing.add_all(view, {str(k): str(v) for k, v in values["pairs"].items()})
        else:
            raise BadInput("action must be add, remove, or import with pairs")
        now = change_matches(view.source.path, f"{view.step}/{view.rank}", edit)
        return {"matches": now.added, "removed": sorted(now.removed), "fitting": fitting}
