"""A run as a graph for Model Explorer, with the errors of a comparison as node data.

Dumps do not say which tensor goes where, so edges follow the order of execution.
"""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twinprobe._report.console import json_bytes
from twinprobe._runs.names import FORWARD, parse_op
from twinprobe._runs.run import Run
from twinprobe._runs.table import OUTPUT
from twinprobe._runs.whole_files import write_whole

if TYPE_CHECKING:
    from twinprobe._compare.one import Comparison

GRAPH, NODE_DATA = "model_explorer.json", "model_explorer_node_data.json"
_ID = "run"
_COLOURS = {"pass": "#d9f0d3", "warning": "#fee08b", "error": "#f4a582"}


def write_model_explorer(run: Run, folder: Path, comparison: Comparison | None = None) -> list[Path]:
    """Write the graph of a run and, where it was compared, its node data; returns the files."""
    nodes = graph_nodes(run)
    documents: dict[str, Any] = {GRAPH: {"label": run.path.name, "graphs": [{"id": _ID, "nodes": nodes}]}}
    if comparison is not None:
        documents[NODE_DATA] = {_ID: {"results": _results(run, comparison, {node["id"] for node in nodes})}}
    folder.mkdir(parents=True, exist_ok=True)
    for name, document in documents.items():
        blob = json_bytes(document)
        write_whole(folder / name, lambda path, blob=blob: path.write_bytes(blob))  # type: ignore[misc]
    return [folder / name for name in documents]


def graph_nodes(run: Run) -> list[dict[str, Any]]:
    """One node for each forward call that holds no others; the modules around it are its layers."""
    holding = {run.parents.get(name) for name in run.ops}  # what it lists beyond that was not recorded
    shapes: dict[int, list[tuple[str, str]]] = defaultdict(list)
    table = run.table
    for op, role, dtype, shape in zip(table["op"], table["role"], table["dtype"], table["shape"], strict=True):
        if role == OUTPUT:
            shapes[op].append((dtype or "", shape or ""))
    nodes: list[dict[str, Any]] = []
    for index, name in enumerate(run.ops):
        op = parse_op(name)
        if name in holding or (op.direction and op.direction != FORWARD):
            continue
        path = op.body if op.is_module else parse_op(run.parents.get(name) or "").body
        parts = path.split(".") if path else []
        label = parts.pop() if op.is_module and parts else op.body.rpartition(".")[2] or name
        outputs = [
            {"id": str(number), "attrs": [{"key": "dtype", "value": dtype}, {"key": "shape", "value": shape}]}
            for number, (dtype, shape) in enumerate(shapes[index])
        ]
        edges = [{"sourceNodeId": node["id"], "sourceNodeOutputId": "0", "targetNodeInputId": "0"}
                 for node in nodes[-1:]]  # fmt: skip
        nodes.append({"id": name, "label": label, "namespace": "/".join(parts), "incomingEdges": edges,
                      "attrs": [{"key": "call", "value": name}], "outputsMetadata": outputs})  # fmt: skip
    return nodes


def _results(run: Run, comparison: Comparison, known: set[str]) -> dict[str, Any]:
    """The largest error of each call's outputs and its worst verdict."""
    pairs, judged = comparison.evidence.pairs, comparison.judged
    worst: dict[str, tuple[float, str]] = {}
    order = list(_COLOURS)
    for op, error, verdict in zip(pairs["t_op"], np.asarray(judged.error).tolist(), judged.verdict, strict=True):
        if op is None or run.ops[op] not in known:
            continue
        before = worst.get(run.ops[op], (0.0, "pass"))
        value = error if isinstance(error, float) and math.isfinite(error) else 0.0
        worst[run.ops[op]] = max(before[0], value), max(before[1], verdict, key=order.index)
    return {name: {"value": error, "bgColor": _COLOURS[verdict]} for name, (error, verdict) in worst.items()}
