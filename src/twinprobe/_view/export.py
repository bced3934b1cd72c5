"""One page that needs no server: the front end and the part of the graphs that matters, in a single file."""

from __future__ import annotations

import base64
import gzip
import re
from dataclasses import dataclass
from html import escape
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import msgspec

from twinprobe._graph.read.db import GOLDEN, TARGET
from twinprobe._graph.read.open import IndexingError
from twinprobe._report.files import replacing
from twinprobe._report.reports import SHARED, digest
from twinprobe._view.answers import RequestArguments, Workspace, first, open_file
from twinprobe._view.app import STATIC
from twinprobe._view.nodes import GraphView, sibling_edges
from twinprobe._view.overview import facts, growth
from twinprobe.errors import BadInput

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w.]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function|class|const|let) (\w+)", re.MULTILINE)


def bundle(folders: tuple[Path, ...], entry: str) -> str:
    """The modules in dependency order, each in its own function; ``entry`` is run last.

    This understands the one way in which our modules import and export: by name, from "./file.js", at the line's start.
    """
    parts: dict[str, str] = {}

    def add(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            raise ValueError(f"modules import each other in a circle: {' -> '.join((*above, name))}")
        source = next(path for folder in folders if (path := folder / name).exists()).read_text(encoding="utf-8")
        for match in _IMPORT.finditer(source):
            if match[2] not in parts:
                add(match[2], (*above, name))
        exported = ", ".join(match[2] for match in _EXPORT.finditer(source))
        body = _IMPORT.sub(lambda m: f'const {{{m[1].replace(" as ", ": ")}}} = modules["{m[2]}"];\n', source)
        body = _EXPORT.sub(r"\1 \2", body).replace("import.meta.url", "document.baseURI")
        parts[name] = f'modules["{name}"] = (() => {{\n{body}\nreturn {{ {exported} }};\n}})();\n'

    add(entry, ())
    return '"use strict";\nconst modules = {};\n' + "".join(parts.values())


_MOST_PER_SIDE, _MOST_IN_ALL = 4_000, 16_000
_FINDINGS, _BESIDE, _AT_TOP = 200, 40, 400
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src '{script_hash}'; \
style-src '{style_hash}'; img-src data:; base-uri 'none'; form-action 'none'">
<title>{title}</title><style>{style}</style></head><body>
<script type="application/gzip+base64" id="twinprobe-data">{data}</script>
<script type="module">{script}</script></body></html>
"""


@dataclass(frozen=True)
class Exported:
    """What went into a page."""

    file: str
    nodes: int
    left_out: int
    size: int


def export_page(place: Path, target: Path, *, step: int | None = None, rank: int | None = None) -> Exported:
    """Write the newest graph file of a folder (or the file given) as one page."""
    workspace = Workspace(place)
    start = {key: str(value) for key, value in (("step", step), ("rank", rank)) if value is not None}
    opened = _open(workspace, start)
    graphs: list[dict[str, Any]] = []
    nodes = left_out = 0
    chosen = (opened["step"], opened["rank"])
    others = [key for key in product(opened["steps"], opened["ranks"]) if key != chosen]
    for one_step, one_rank in [chosen, *others]:
        if graphs and nodes >= _MOST_IN_ALL:
            break
        key = {"file": opened["file"], "step": str(one_step), "rank": str(one_rank)}
        graph, kept, all_nodes = _graph(workspace, key)
        graphs.append(graph)
        nodes, left_out = nodes + kept, left_out + all_nodes - kept
    known = {key: opened[key] for key in opened if key not in ("roots", "pages", "first", "step", "rank")}
    data = msgspec.json.encode({"opened": known, "graphs": graphs})
    page = _page(data, title=f"TwinProbe: {Path(opened['file']).name}")
    with replacing(target) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return Exported(opened["file"], nodes, left_out, len(page))


def _open(workspace: Workspace, start: dict[str, str]) -> dict[str, Any]:
    while True:
        arguments = RequestArguments(start)
        try:
            with workspace.view(arguments) as view:
                return open_file(workspace, view, arguments)
        except IndexingError:
            continue  # opening waits a second each time


def _graph(workspace: Workspace, key: dict[str, str]) -> tuple[dict[str, Any], int, int]:
    arguments = RequestArguments(key)
    try:
        with workspace.view(arguments) as view:
            wanted = _wanted(workspace, view, arguments)
            stacks: dict[str, int] = {}
            found = {side: _side(view, side, wanted[side], stacks) for side in view.sides}
            total = sum(len(workspace.overview(view, side).order) for side in view.sides)
            graph = {"step": view.step, "rank": view.rank, **first(workspace, view, arguments),
                     "growth": growth(view.graph), "stacks": list(stacks), **found}  # fmt: skip
            return graph, sum(len(part["nodes"]) for part in found.values()), total
    except IndexingError:
        return _graph(workspace, key)
    except BadInput:  # a rank that has no file
        return {"step": int(key["step"]), "rank": int(key["rank"]), "missing": True}, 0, 0


def _wanted(workspace: Workspace, view: GraphView, arguments: RequestArguments) -> dict[str, set[int] | None]:
    """Places in the order to keep, None for all: what is near a finding or near the top."""
    overviews = {side: workspace.overview(view, side) for side in view.sides}
    wanted: dict[str, set[int] | None] = {
        side: None if len(overview.order) <= _MOST_PER_SIDE else set() for side, overview in overviews.items()
    }
    marked = overviews[TARGET].order[workspace.suspicious(view, arguments)][:_FINDINGS].tolist()
    known = first(workspace, view, arguments)["first"]
    names = [known["name"]] if known else []
    names += [row["node_name"] for row in view.graph.by_order(TARGET, marked)]
    for side, kept in wanted.items():
        if kept is None:
            continue
        root = view.graph.root(side)
        if root:
            kept |= {root["node_order"]}
            kept |= {row["node_order"] for row in view.graph.children(side, root["node_name"], 0, _AT_TOP, None)}
        for name in names:
            row = view.graph.node(TARGET, name)
            here = name if side == TARGET else view.partner(TARGET, row) if row else None
            if here and len(kept) < _MOST_PER_SIDE:
                _around(view, side, here, kept)
    return wanted


def _around(view: GraphView, side: str, name: str, kept: set[int]) -> None:
    path = view.path(side, name)
    kept |= {row["node_order"] for row in path}
    for parent, child in pairwise(path):
        place = view.graph.child_count(side, parent["node_name"], before=child["node_order"])
        beside = view.graph.children(side, parent["node_name"], max(0, place - _BESIDE // 2), _BESIDE, None)
        kept |= {row["node_order"] for row in beside}


def _side(view: GraphView, side: str, wanted: set[int] | None, stacks: dict[str, int]) -> dict[str, Any]:
    root = view.graph.root(side)
    if root is None:
        return {"nodes": [], "edges": {}}
    nodes, edges = [_packed(view, side, root["node_name"], stacks)], {}
    waiting = [root["node_name"]]
    while waiting:
        parent = waiting.pop()
        rows = view.graph.children(side, parent, 0, 1 << 30, None)
        kept = [row for row in rows if wanted is None or row["node_order"] in wanted]
        nodes += [_packed(view, side, row["node_name"], stacks) for row in kept]
        flow = sibling_edges(view.graph.tensors(side, parent, 0, 1000, None)) if kept else []
        if flow:
            edges[parent] = flow
        waiting += [row["node_name"] for row in kept if not row["leaf"]]
    return {"nodes": nodes, "edges": edges}


def _packed(view: GraphView, side: str, name: str, stacks: dict[str, int]) -> dict[str, Any]:
    detail = view.detail(side, name)
    node: dict[str, Any] = detail[side]
    node["stack"] = stacks.setdefault("\n\0".join(node["stack"]), len(stacks))
    if side == TARGET and view.config.compared:
        node["facts"] = facts(node, detail[GOLDEN])
    return node


def _page(data: bytes, *, title: str) -> str:
    script = "\n" + bundle((STATIC, SHARED), "start.js")
    style = "".join(file.read_text(encoding="utf-8") for file in (STATIC / "style.css", SHARED / "tensor.css"))
    packed = base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()
    hashes = {"script_hash": digest(script), "style_hash": digest(style)}
    return _PAGE.format(title=escape(title), data=packed, script=script, style=style, **hashes)
