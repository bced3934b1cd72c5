"""``.vis.db`` files: SQLite, all steps and ranks in one file."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from itertools import repeat
from pathlib import Path

from twinprobe.graph.bands import TASKS, tool_tips, verdict_colours, verdict_index
from twinprobe.graph.extras import CREATE_EXTRAS, node_extras, summary_rows
from twinprobe.graph.picture import Paths, Picture, Side
from twinprobe.graph.safe_sqlite import database_uri
from twinprobe.graph.texts import json_list
from twinprobe.graph.tree import API, COLLECTION, MODULE
from twinprobe.graph.values import DB, CallTexts
from twinprobe.runs.run import TENSORS, Run

_CREATE = """
CREATE TABLE tb_nodes (
    id TEXT PRIMARY KEY, graph_id TEXT NOT NULL, node_order INTEGER NOT NULL, node_name TEXT NOT NULL,
    node_type TEXT NOT NULL, up_node TEXT, sub_nodes TEXT, precision_index INTEGER, overflow_level TEXT,
    micro_step_id INTEGER NOT NULL, matched_node_link TEXT, stack_id TEXT, parallel_merge_info TEXT,
    matched_distributed TEXT, modified INTEGER NOT NULL, input_data TEXT, output_data TEXT, data_source TEXT,
    dump_data_dir TEXT, step INTEGER NOT NULL, rank INTEGER NOT NULL, is_distributed INTEGER
);
CREATE TABLE tb_stack (id TEXT PRIMARY KEY, stack_info TEXT);
CREATE TABLE tb_config (
    id TEXT PRIMARY KEY, graph_type TEXT NOT NULL, task TEXT, tool_tip TEXT, micro_steps INTEGER,
    overflow_check INTEGER, node_colors TEXT NOT NULL, rank_list TEXT NOT NULL, step_list TEXT NOT NULL
);
"""
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
            self._connection.executescript(_CREATE + CREATE_EXTRAS)
        self._connection.execute("BEGIN")

    def absorb(self, part: Path) -> None:
        """Take over all rows of another file that was closed without ``finish``."""
        self._connection.execute("COMMIT")
        self._connection.execute("ATTACH ? AS part", (database_uri(part),))
        self._connection.execute("BEGIN")
        for table in ("tb_nodes", "tb_stack", "tb_twinprobe", "tb_twinprobe_summary"):
            self._connection.execute(f"INSERT INTO main.{table} SELECT * FROM part.{table}")
        self._connection.execute("COMMIT")
        self._connection.execute("DETACH part")
        self._connection.execute("BEGIN")

    def add(self, picture: Picture) -> None:
        """Write one step and rank: the trusted run first, since in large graphs it is ready first."""
        if picture.golden is not None:
            self.add_side(picture.golden, picture.target.paths, picture.step, picture.rank, picture.golden.texts(DB),
                          folder=tensor_folder(picture.golden.run))  # fmt: skip
        side, other = picture.target, picture.golden.paths if picture.golden is not None else None
        texts, indices, folder = picture.texts(side, DB), new_indices(picture), tensor_folder(side.run)
        self.add_side(side, other, picture.step, picture.rank, texts, indices, folder)
        self.add_extras(node_extras(picture), summary_rows(picture))

    def add_side(
        self,
        side: Side,
        other: Paths | None,
        step: int,
        rank: int,
        texts: Iterable[CallTexts],
        indices: Indices | None = None,
        folder: str | None = None,
    ) -> None:
        """Write the nodes of one side: ``texts`` are its values, ``indices`` the numbers of its nodes."""
        graph = f"{side.source}_{step}_{rank}"
        self._insert("tb_stack", 2, ((f"{graph}_{at}", json_list(one)) for at, one in enumerate(side.sites.frames)))
        columns = _Columns(side, other, step, rank, indices or [None] * len(side.tree), folder)
        self._insert("tb_nodes", 22, _rows(columns, texts))

    def add_extras(self, extras: Iterable[Row], summary: Iterable[Row]) -> None:
        """Write what only our page knows."""
        self._insert("tb_twinprobe", 10, extras)
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
            None if mode is None else json.dumps(tool_tips(mode), ensure_ascii=False),
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


def _rows(columns: _Columns, texts: Iterable[CallTexts]) -> Iterator[Row]:
    """The rows of one side: the calls in their order, a piece at a time, then the nodes without values."""
    ops = columns.side.tree.ops
    node_of_op = [0] * (max(ops) + 1)
    silent = []
    for node, op in enumerate(ops):
        if op >= 0:
            node_of_op[op] = node
        else:
            silent.append(node)
    for piece in texts:
        nodes = node_of_op[piece.first : piece.first + len(piece.inputs)]
        yield from columns.rows(nodes, piece.inputs, piece.outputs)
    nothing = ["{}"] * len(silent)
    yield from columns.rows(silent, nothing, nothing)


class _Columns:
    """Everything but the values of a side's nodes, made column by column."""

    def __init__(
        self, side: Side, other: Paths | None, step: int, rank: int, indices: Indices, folder: str | None
    ) -> None:
        self.side = side
        self._other = other
        self._step, self._rank = step, rank
        self._graph = f"{side.source}_{step}_{rank}"
        self._place = [0] * len(side.tree)
        for at, node in enumerate(side.order):
            self._place[node] = at
        self._index = indices
        self._folder = folder

    def rows(self, nodes: list[int], inputs: list[str], outputs: list[str]) -> Iterator[Row]:
        """Rows of tb_nodes for these nodes."""
        side, tree, graph = self.side, self.side.tree, self._graph
        names = [tree.names[node] for node in nodes]
        merged = [side.merge_info.get(node) for node in nodes] if side.merge_info else []
        return zip(
            [f"{graph}_{name}" for name in names],
            repeat(graph),
            [self._place[node] for node in nodes],
            names,
            [_KIND_TEXTS[tree.kinds[node]] for node in nodes],
            [tree.names[above] if (above := tree.parents[node]) >= 0 else "" for node in nodes],
            [side.children_text(node) if tree.children[node] else "" for node in nodes],
            [self._index[node] for node in nodes],
            [side.overflow[node] for node in nodes] if side.overflow else repeat(None),
            [tree.micro_steps[node] for node in nodes],
            self._links(nodes),
            [f"{graph}_{side.sites.of_node[node]}" for node in nodes],
            [json_list(info) if info else "" for info in merged] if merged else repeat(""),
            repeat("{}"),
            repeat(0),
            inputs,
            outputs,
            repeat(side.source),
            repeat(self._folder),
            repeat(self._step),
            repeat(self._rank),
            [int(name.startswith("Distributed")) for name in names],
            strict=False,
        )

    def _links(self, nodes: list[int]) -> list[str]:
        other, link = self._other, self.side.link
        if other is None:
            return ["[]"] * len(nodes)
        return [f"[{other[partner]}]" if (partner := link[node]) >= 0 else "[]" for node in nodes]


def new_indices(picture: Picture) -> Indices:
    """The number of each node of the run under test; a collection takes its worst child's."""
    side = picture.target
    tree = side.tree
    if picture.values is None:
        return [None] * len(tree)
    severity = picture.values.severity
    of_node = [int(severity[op]) if op >= 0 and side.link[node] >= 0 else -1 for node, op in enumerate(tree.ops)]
    for node, kind in enumerate(tree.kinds):
        if kind == COLLECTION and side.link[node] >= 0:
            of_node[node] = max((of_node[child] for child in tree.children[node]), default=-1)
    return [verdict_index(level) for level in of_node]


def tensor_folder(run: Run) -> str | None:
    """Where the viewer finds a run's tensors."""
    return str(run.tensor_folder) if run.task == TENSORS else None
