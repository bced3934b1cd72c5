"""Nodes as the page gets them: briefly for the tree, in full for the details."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from twinprobe.errors import BadInput
from twinprobe.graph.open_graph import Source
from twinprobe.graph.read_db import GOLDEN, TARGET, Config, Graph, last_link, parsed
from twinprobe.view.levels import METRICS, OWN_ERROR, bands, level_of, worst_in
from twinprobe.view.matches import Matches

PAGE = 200
_DEEPEST = 200


@dataclass(frozen=True)
class Scene:
    """One graph as one request sees it: the file, the hand-made matches, the micro step and the metric in use."""

    source: Source
    step: int
    rank: int
    config: Config
    graph: Graph
    matches: Matches
    micro: int | None = None
    metric: str = ""

    def brief(self, side: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """What the tree shows of some nodes."""
        known = bands(self.config.colors)
        extra = self.graph.knowledge(side, [str(row["node_name"]) for row in rows])
        if self.metric not in ("", OWN_ERROR) and side == TARGET:
            texts = self.graph.outputs_of(side, [row["node_order"] for row in rows])
            for row in rows:
                row["value"] = worst_in(texts.get(row["node_order"], ""), self.metric)
        return [self._one(side, row, known, extra.get(str(row["node_name"]), {})) for row in rows]

    def children(self, side: str, parent: str, offset: int, limit: int = PAGE) -> dict[str, Any]:
        """A page of a node's children."""
        micro = self.micro_under(side, parent)
        rows = self.graph.children(side, parent, offset, limit, micro)
        total = self.graph.child_count(side, parent, micro)
        return {"parent": parent, "total": total, "offset": offset, "nodes": self.brief(side, rows)}

    def path(self, side: str, name: str) -> list[dict[str, Any]]:
        """The nodes from the root down to this one; empty if the node is not there."""
        found: list[dict[str, Any]] = []
        seen: set[str] = set()
        row = self.graph.node(side, name)
        while row is not None and row["node_name"] not in seen and len(found) < _DEEPEST:
            seen.add(row["node_name"])
            found.append(row)
            row = self.graph.node(side, str(row["up_node"])) if row["up_node"] else None
        return found[::-1]

    def pages_to(self, side: str, name: str, *, inside: bool) -> list[dict[str, Any]]:
        """The pages of children that lead to a node, and with ``inside`` its own first page."""
        path = self.path(side, name)
        pages = []
        for parent, child in pairwise(path):
            micro = self.micro_under(side, parent["node_name"])
            place = self.graph.child_count(side, parent["node_name"], micro, before=child["node_order"])
            pages.append(self.children(side, parent["node_name"], place // PAGE * PAGE))
        if inside and path and not path[-1]["leaf"]:
            pages.append(self.children(side, name, 0))
        return pages

    def partner(self, side: str, row: dict[str, Any]) -> str | None:
        """The name of the matching node on the other side."""
        return self.matches.partner(side, str(row["node_name"]), last_link(row["matched_node_link"]))

    def detail(self, side: str, name: str) -> dict[str, Any]:
        """Everything about a node and its partner."""
        row = self.graph.node(side, name, full=True)
        if row is None:
            raise BadInput(f"there is no node {name!r} in this graph")
        partner = self.partner(side, row)
        other = GOLDEN if side == TARGET else TARGET
        mate = self.graph.node(other, partner, full=True) if partner else None
        return {side: self._full(side, row), other: self._full(other, mate) if mate else None}

    def _full(self, side: str, row: dict[str, Any]) -> dict[str, Any]:
        return {
            **self.brief(side, [row])[0],
            "parent": row["up_node"] or None,
            "inputs": _tensors(row["input_data"]),
            "outputs": _tensors(row["output_data"]),
            "stack": self.graph.stack(row),
            "merge": [str(line) for line in parsed(row["parallel_merge_info"], list)],
            "peers": _peers(row["matched_distributed"]),
            "folder": row["dump_data_dir"],
        }

    def _one(self, side: str, row: dict[str, Any], known: Any, extra: dict[str, Any]) -> dict[str, Any]:
        name = str(row["node_name"])
        match = self.partner(side, row)
        node = {
            "name": name,
            "order": row["node_order"],
            "type": str(row["node_type"]),
            "kids": 0 if row["leaf"] else self.graph.child_count(side, name, self.micro_under(side, name)),
            "level": level_of(row["precision_index"], known),
            "precision": row["precision_index"] if isinstance(row["precision_index"], (int, float)) else None,
            "overflow": row["overflow_level"],
            "micro": row["micro_step_id"],
            "match": match,
            "manual": self.matches.is_manual(side, name),
            "comm": bool(row["matched_distributed"]) and row["matched_distributed"] not in ("{}", "[]"),
            "error": extra.get("error"),
            "verdict": extra.get("verdict"),
            "origin": extra.get("origin"),
            "by": extra.get("matched_by"),
            "value": row.get("value", extra.get("error")),
        }
        return {key: value for key, value in node.items() if value is not None and value is not False and value != ""}

    def micro_under(self, side: str, parent: str) -> int | None:
        """The micro step to filter by: it divides the children of the root; below, all belong to one."""
        if self.micro is None:
            return None
        root = self.graph.root(side)
        return self.micro if root is not None and root["node_name"] == parent else None


def metrics_of(config: Config, graph: Graph) -> list[str]:
    """The metrics that this file can be coloured by, the most telling one first."""
    found = [OWN_ERROR] if config.knows_more else []
    if not config.compared:
        return []
    sample = ""
    for seen, (_, text) in enumerate(graph.outputs(TARGET)):
        sample += text
        if len(sample) > 20_000 or seen > 200:
            break
    return found + [metric for metric in METRICS if f'"{metric}"' in sample]


def _tensors(text: Any) -> list[dict[str, str]]:
    found = []
    for name, values in parsed(text, dict).items():
        entry = values if isinstance(values, dict) else {}
        found.append({**{str(k): v if isinstance(v, str) else str(v) for k, v in entry.items()}, "name": str(name)})
    return found


def _peers(text: Any) -> list[dict[str, Any]]:
    """Where a collective or a send continues: rank, node and how."""
    value = parsed(text, list) or [parsed(text, dict)]
    found = []
    for entry in value:
        nodes = entry.get("nodes_info") if isinstance(entry, dict) else None
        for rank, target in (nodes or {}).items() if isinstance(nodes, dict) else ():
            if str(rank).isdecimal() and isinstance(target, list) and len(target) > 1:
                kind = str(entry.get("communications_type", ""))
                found.append({"rank": int(rank), "node": str(target[1]), "index": str(target[0]), "kind": kind})
    return found
