"""Graph files: ``.vis.db`` (SQLite, all steps and ranks in one) and ``.vis`` (JSON, one for each step and rank).

And the graph of a run for Model Explorer.
"""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from twinprobe._graph.node_values import TASKS, TOOL_TIPS, drift_colours, drift_index, verdict_colours
from twinprobe._graph.picture import DrawnRun, Picture, node_extras, node_facts, summary_facts, summary_rows
from twinprobe._graph.read.db import OWN_SCHEMA, SCHEMA, database_uri
from twinprobe._graph.tree import API, COLLECTION, MODULE, ROOT, is_gradient
from twinprobe._graph.values import DB, VIS, CallTexts, Style, json_list, quoted
from twinprobe._report.console import json_bytes
from twinprobe._runs.names import FORWARD, parse_op
from twinprobe._runs.run import DIGESTS, TENSORS, Run
from twinprobe._runs.table import OUTPUT
from twinprobe._runs.whole_files import write_whole

if TYPE_CHECKING:
    from twinprobe._compare.one import Comparison


_INDEX = """
CREATE INDEX index1 ON tb_nodes (step, rank, data_source, up_node, node_order);
CREATE INDEX index2 ON tb_nodes (step, rank, data_source, node_name);
CREATE INDEX index3 ON tb_nodes (step, rank, data_source, node_order);
CREATE INDEX index4 ON tb_nodes (step, rank, node_order);
CREATE INDEX index5 ON tb_nodes (step, rank, micro_step_id, node_order);
CREATE INDEX index6 ON tb_nodes (step, rank, modified, matched_node_link);
CREATE INDEX index7 ON tb_nodes (is_distributed);
"""
_SMALL_PAGE, _LARGE_PAGE = 4096, 32768
_MANY_NODES = 8192
Row = tuple[object, ...]
Indices = list[float | int | None]
_KIND_TEXTS = {kind: str(kind) for kind in (MODULE, API, COLLECTION)}


class GraphDb:
    """A graph database in the making, without a journal: write it under a temporary name.

    Large pages waste less on rows of one to three kilobytes; a small graph would only have many half-empty ones.
    """

    def __init__(self, path: Path, *, nodes: int | None) -> None:
        """Create a file for about so many nodes; None opens one that ``close`` has left."""
        self._connection = sqlite3.connect(database_uri(path), uri=True, isolation_level=None)
        page = _LARGE_PAGE if (nodes or 0) >= _MANY_NODES else _SMALL_PAGE
        for pragma in (f"page_size={page}", "journal_mode=OFF", "synchronous=OFF", "locking_mode=EXCLUSIVE",
                       "cache_size=-4096", "temp_store=MEMORY"):  # fmt: skip
            self._connection.execute(f"PRAGMA {pragma}")
        if nodes is not None:
            self._connection.executescript(SCHEMA + OWN_SCHEMA)
        self._connection.execute("BEGIN")

    def absorb(self, part: Path) -> None:
        """Take over all rows of another file that was closed without ``finish``."""
        self._connection.execute("COMMIT")  # SQLite attaches nothing inside of a transaction
        self._connection.execute("ATTACH ? AS part", (database_uri(part),))
        self._connection.execute("BEGIN")
        for table in ("tb_nodes", "tb_stack", "tb_twinprobe", "tb_twinprobe_summary"):
            self._connection.execute(f"INSERT INTO main.{table} SELECT * FROM part.{table}")
        self._connection.execute("COMMIT")
        self._connection.execute("DETACH part")
        self._connection.execute("BEGIN")

    def add(self, picture: Picture) -> None:
        """Write one step and rank: the trusted run first, since in large graphs it is ready first."""
        for side, other in reversed(picture.sides):
            indices = node_indices(picture, DB) if side is picture.target else None
            texts = picture.texts(side, DB)
            self.add_side(side, other, picture.step, picture.rank, texts, indices, tensor_folder(side.run))
        self.add_extras(node_extras(picture), summary_rows(picture))

    def add_side(
        self, side: DrawnRun, other: DrawnRun | None, step: int, rank: int, texts: Iterable[CallTexts],
        indices: Indices | None = None, folder: str | None = None,
    ) -> None:  # fmt: skip
        """Write the nodes of one side: ``texts`` are its values, ``indices`` the numbers of its nodes."""
        graph, tree = f"{side.source}_{step}_{rank}", side.tree
        stacks = ((f"{graph}_{number}", json_list(frames)) for number, frames in enumerate(side.sites.frames))
        self._insert("tb_stack", 2, stacks)
        place = {node: position for position, node in enumerate(tree.order)}

        def links(nodes: list[int]) -> Iterable[str]:
            if other is None:
                return repeat("[]")
            return [other.path_text(partner) if (partner := side.link[node]) >= 0 else "[]" for node in nodes]

        def rows(nodes: list[int], inputs: Iterable[str], outputs: Iterable[str]) -> Iterator[Row]:
            """Rows of tb_nodes, made column by column."""
            names = [tree.names[node] for node in nodes]
            merged = [side.merge_info.get(node) for node in nodes] if side.merge_info else []
            return zip(
                [f"{graph}_{name}" for name in names],
                repeat(graph),
                [place[node] for node in nodes],
                names,
                [_KIND_TEXTS[tree.kinds[node]] for node in nodes],
                [tree.names[above] if (above := tree.parents[node]) >= 0 else "" for node in nodes],
                [side.children_text(node) if tree.children[node] else "" for node in nodes],
                [indices[node] for node in nodes] if indices else repeat(None),
                [side.overflow[node] for node in nodes] if side.overflow else repeat(None),
                [tree.micro_steps[node] for node in nodes],
                links(nodes),
                [f"{graph}_{side.sites.of_node[node]}" for node in nodes],
                [json_list(info) if info else "" for info in merged] if merged else repeat(""),
                repeat("{}"),
                repeat(0),
                inputs,
                outputs,
                repeat(side.source),
                repeat(folder),
                repeat(step),
                repeat(rank),
                [int(name.startswith("Distributed")) for name in names],
                strict=False,
            )

        # The calls in their order, a piece at a time, then the nodes without values.
        node_of_op = {op: node for node, op in enumerate(tree.ops)}
        for piece in texts:
            nodes = [node_of_op[op] for op in range(piece.first, piece.first + len(piece.inputs))]
            self._insert("tb_nodes", 22, rows(nodes, piece.inputs, piece.outputs))
        silent = [node for node, op in enumerate(tree.ops) if op < 0]
        self._insert("tb_nodes", 22, rows(silent, repeat("{}"), repeat("{}")))

    def add_extras(self, extras: Iterable[Row], summary: Iterable[Row]) -> None:
        """Write what only our page knows."""
        self._insert("tb_twinprobe", 13, extras)
        self._insert("tb_twinprobe_summary", 4, summary)

    def _insert(self, table: str, columns: int, rows: Iterable[Row]) -> None:
        self._connection.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * columns)})", rows)

    def link_ranks(self, links: Iterable[tuple[str, int, int, str, str]]) -> None:
        """Note which calls of other ranks a call talks to: (source, step, rank, node, JSON)."""
        rows = ((text, f"{source}_{step}_{rank}_{node}") for source, step, rank, node, text in links)
        self._connection.executemany("UPDATE tb_nodes SET matched_distributed=? WHERE id=?", rows)

    def finish(
        self, *, mode: str | None, micro_steps: int, overflow_check: bool, ranks: list[int], steps: list[int]
    ) -> None:
        """Write the configuration (``mode`` is None for single graphs) and the indexes, and close the file."""
        row = (
            "1",
            "build" if mode is None else "compare",
            "" if mode is None else TASKS[mode],
            None if mode is None else json.dumps(TOOL_TIPS[mode], ensure_ascii=False),
            micro_steps,
            int(overflow_check),
            "null" if mode is None else json.dumps(verdict_colours(), ensure_ascii=False),
            json.dumps(ranks),
            json.dumps(steps),
        )
        self._connection.execute("INSERT INTO tb_config VALUES (?,?,?,?,?,?,?,?,?)", row)
        self._connection.execute("COMMIT")
        self._connection.executescript(_INDEX)
        self._connection.close()

    def close(self) -> None:
        """Close the file as it is, without configuration and indexes."""
        self._connection.execute("COMMIT")
        self._connection.close()


def node_indices(picture: Picture, style: Style) -> Indices:
    """The number that colours each node of the run under test; a collection takes its worst child's."""
    side, values = picture.target, picture.values
    if values is None:
        return [None] * len(side.tree)
    worst: Callable[..., float | int | None] = max
    if style is DB:
        levels = [(0, 0.5, 1)[severity] for severity in values.severity.tolist()]
    else:
        assert picture.comparison is not None
        mode = picture.comparison.evidence.mode
        levels = [drift_index(drift, mode) for drift in values.drift.tolist()]
        if mode == DIGESTS:
            worst = min  # 0 is different, 1 is equal
    compared = values.severity >= 0
    indices: Indices = [
        levels[op] if op >= 0 and side.link[node] >= 0 and compared[op] else None
        for node, op in enumerate(side.tree.ops)
    ]
    for node, kind in enumerate(side.tree.kinds):
        if kind == COLLECTION and side.link[node] >= 0:
            inside = [index for child in side.tree.children[node] if (index := indices[child]) is not None]
            indices[node] = worst(inside, default=None)
    return indices


def tensor_folder(run: Run) -> str | None:
    """Where the viewer finds a run's tensors."""
    return str(run.tensor_folder) if run.task == TENSORS else None


# Where in a ``.vis`` file the calls that communicate end, by source and node.
Ends = dict[tuple[str, str], int]


def write_vis(picture: Picture, path: Path, *, overflow_check: bool, complete_stack: bool) -> Ends:
    """Write one picture as the first generation of viewers reads it."""
    writer = _VisWriter(picture, complete_stack)
    with path.open("wb") as out:
        if picture.golden is None:
            out.write(b"{")
            writer.side(out, picture.target, None)
        else:
            for start, (side, other) in zip((b'{"NPU":{', b'},\n"Bench":{'), picture.sides, strict=True):
                out.write(start)
                writer.side(out, side, other)
            out.write(b"}")
        for key, value in _tail(picture, overflow_check).items():
            out.write(b",\n" + quoted(key).encode() + b":" + json_bytes(value))
        out.write(b"}\n")
    return writer.ends


def _tail(picture: Picture, overflow_check: bool) -> dict[str, object]:
    if picture.comparison is None:
        return {"MicroSteps": picture.micro_steps, "OverflowCheck": overflow_check}
    mode = picture.comparison.evidence.mode
    return {
        "ToolTip": json.dumps(TOOL_TIPS[mode], ensure_ascii=False),
        "Colors": drift_colours(mode),
        "MicroSteps": picture.micro_steps,
        "task": TASKS[mode],
        "OverflowCheck": overflow_check,
        "TwinProbe": {**summary_facts(picture), "nodes": node_facts(picture)},
    }


class _VisWriter:
    def __init__(self, picture: Picture, complete_stack: bool) -> None:
        self._picture = picture
        self._complete_stack = complete_stack
        self._indices = node_indices(picture, VIS)
        self.ends: Ends = {}

    def side(self, out: BinaryIO, side: DrawnRun, other: DrawnRun | None) -> None:
        """Write the members of a graph's object."""
        folder = json.dumps(tensor_folder(side.run))
        out.write(f'"root":"{ROOT}","dump_data_dir":{folder},"node":{{\n'.encode())
        between = b""
        for node, inputs, outputs in self._texts(side):
            name = side.tree.names[node]
            out.write(between + self._node(side, other, node, inputs, outputs).encode("utf-8", "backslashreplace"))
            if name in side.communication.calls:
                self.ends[side.source, name] = out.tell()
            out.write(b"}")
            between = b",\n"
        out.write(b"}")

    def _texts(self, side: DrawnRun) -> Iterator[tuple[int, str, str]]:
        """Nodes in the order of their calls; those without values stand before the next one named after them."""
        silent = [node for node, op in enumerate(side.tree.ops) if op < 0]
        node_of_op = {op: node for node, op in enumerate(side.tree.ops) if op >= 0}
        shown = 0
        for texts in self._picture.texts(side, VIS):
            for index, (inputs, outputs) in enumerate(zip(texts.inputs, texts.outputs, strict=True), start=texts.first):
                node = node_of_op[index]
                while shown < len(silent) and silent[shown] < node:
                    yield silent[shown], "{}", "{}"
                    shown += 1
                if not is_gradient(side.tree.names[node]):
                    yield node, inputs, outputs
        for node in silent[shown:]:
            yield node, "{}", "{}"

    def _node(self, side: DrawnRun, other: DrawnRun | None, node: int, inputs: str, outputs: str) -> str:
        tree = side.tree
        name, above, partner = tree.names[node], tree.parents[node], side.link[node] if other is not None else -1
        children = [tree.names[child] for child in tree.children[node] if not is_gradient(tree.names[child])]
        link = other.path_text(partner) if other is not None and partner >= 0 else "[]"
        upper = quoted(tree.names[above]) if above >= 0 else '"None"'
        micro_step = f'"micro_step_id":{tree.micro_steps[node]},' if above == 0 else ""
        key = quoted(name)
        return (
            f'{key}:{{"id":{key},"node_type":{tree.kinds[node]},"output_data":{outputs},"input_data":{inputs},'
            f'"upnode":{upper},"subnodes":{json_list(children)},"matched_node_link":{link},"suggestions":{{}},'
            f'"stack_info":{json_list(self._stack(side, node))},{micro_step}"data":{self._data(side, node)}'
        )

    def _stack(self, side: DrawnRun, node: int) -> list[str]:
        """A module's stack is the line that calls it by its name, where there is one."""
        frames = side.sites.frames[side.sites.of_node[node]]
        if self._complete_stack or side.tree.kinds[node] != MODULE:
            return frames
        attribute = side.tree.names[node].rsplit(".", 3)[0].rpartition(".")[2]
        return next(([frame] for frame in frames if f".{attribute}(" in frame), frames)

    def _data(self, side: DrawnRun, node: int) -> str:
        data: dict[str, object] = {}
        if side is self._picture.target and self._indices[node] is not None:
            data["precision_index"] = self._indices[node]
            comparison = self._picture.comparison
            if comparison is not None and comparison.evidence.mode == DIGESTS and side.tree.kinds[node] != COLLECTION:
                data["Result"] = "pass" if self._indices[node] else "Different"
        if side.overflow and side.overflow[node] is not None:
            data["overflow_level"] = side.overflow[node]
        return json.dumps(data)


def add_rank_links(source: Path, target: Path, ends: dict[int, str]) -> None:
    """Copy a file and add to the nodes that end at these offsets which calls of other ranks they talk to."""
    with source.open("rb") as old, target.open("wb") as new:
        copied = 0
        for end in sorted(ends):
            while block := old.read(min(end - copied, 1 << 20)):
                new.write(block)
                copied += len(block)
            new.write(f',"matched_distributed":{ends[end]}'.encode())
        shutil.copyfileobj(old, new)


# A run as a graph for Model Explorer, with the errors of a comparison as node data.

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
