"""Reading a `.vis.db`: what the file says about itself, and the rows of one graph of it, a page at a time.

Somebody else may have written the file: it is opened to read only, changing nothing beside it, trusting nothing in it.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import msgspec

from twinprobe._runs.whole_files import open_file, private_folder
from twinprobe.errors import BadInput

# SQLite quotes what it stumbles over, and Python cannot always decode that.
SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError, OverflowError, MemoryError)
_MAGIC = b"SQLite format 3\0"
_LONGEST_VALUE = 64 << 20
_LIMIT_LENGTH = 0  # sqlite3.SQLITE_LIMIT_LENGTH, which Python 3.10 does not name
_LIMIT_ATTACHED = 7
_SECONDS_PER_QUERY = 60.0


def connect(path: Path) -> sqlite3.Connection:
    """Open a database read-only; no -wal or -shm file is made beside it, and what it holds cannot run for ever."""
    try:
        with open_file(path) as file:
            head = file.read(len(_MAGIC))
    except OSError as error:
        raise BadInput(f"cannot be opened: {error.strerror}", where=path) from error
    if not head:
        raise BadInput("is empty", where=path, hint="it may still be written to: wait and reload")
    if head != _MAGIC:
        raise BadInput("is not a graph database (no SQLite file)", where=path, hint="make the file again")
    address = _address(path)
    try:
        connection = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        # Not mapped: who shortens a mapped file ends the process that reads it.
        for setting in ("trusted_schema=OFF", "query_only=ON", "cell_size_check=ON", "mmap_size=0", "cache_size=-8000"):
            connection.execute(f"PRAGMA {setting}")
    except SQLITE_ERRORS as error:
        raise damaged(path, error) from error
    if hasattr(connection, "setlimit"):  # from Python 3.11
        connection.setlimit(_LIMIT_LENGTH, _LONGEST_VALUE)
        connection.setlimit(_LIMIT_ATTACHED, 0)
    limit_time(connection)
    return connection


def limit_time(connection: sqlite3.Connection, seconds: float = _SECONDS_PER_QUERY) -> None:
    """Let queries from now on run for this long in all; a hostile file can make one endless."""
    deadline = time.monotonic() + seconds
    connection.set_progress_handler(lambda: int(time.monotonic() > deadline), 100_000)


def damaged(path: Path, error: Exception) -> BadInput:
    """The message for a file that SQLite cannot read."""
    text = str(error)
    if "locked" in text or "busy" in text:
        return BadInput("is being written right now", where=path, hint="wait for the writer to finish, then reload")
    return BadInput(f"cannot be read: {text}", where=path, hint="if it is still being written, wait and reload; "
                    "otherwise it is damaged: make it again")  # fmt: skip


def cache_folder(name: str) -> Path:
    """A private folder for what can be computed again."""
    folder = private_folder(name)
    if folder is None:
        hint = "set XDG_CACHE_HOME to a folder that only you may write to"
        raise BadInput("no folder for temporary files can be written", hint=hint)
    return folder


def file_key(path: Path, *also: Path) -> str:
    """A name for what was computed from a file: another one as soon as the file changes."""
    parts = [str(path.resolve())]
    for part in (path, *also):
        status = part.stat()
        parts += [str(status.st_size), str(status.st_mtime_ns), str(status.st_ino)]
    return sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _address(path: Path) -> str:
    log, shared = (path.with_name(path.name + end) for end in ("-wal", "-shm"))
    try:
        unfinished = log.stat().st_size > 0
    except OSError:
        unfinished = False
    if not unfinished:
        # Plain read-only mode would make -wal and -shm files for a database in WAL mode, or fail in a read-only folder.
        return database_uri(path, "mode=ro&immutable=1")
    if shared.exists():
        return database_uri(path, "mode=ro")  # a writer is, or was, at work: take part in its locking
    return database_uri(_copy_with_log(path, log), "mode=ro&immutable=1")


def database_uri(path: Path, options: str = "") -> str:
    """How SQLite is told a path whatever its name: one that is not UTF-8 is no text."""
    return f"file:{quote(os.fsencode(path.resolve()))}?{options}"


def _copy_with_log(path: Path, log: Path) -> Path:
    """Rows that only the write-ahead log holds: put them together in a copy, never in the user's own file."""
    folder = cache_folder("graphs")
    ready = folder / f"{file_key(path, log)}.db"
    if ready.exists():
        return ready
    if shutil.disk_usage(folder).free < 2 * (path.stat().st_size + log.stat().st_size):
        raise BadInput("has unfinished changes in its -wal file, and there is no room to copy both", where=path,
                       hint="open it once with sqlite3 to finish them")  # fmt: skip
    with tempfile.TemporaryDirectory(dir=folder) as work:
        copy = Path(work) / "copy.db"
        shutil.copyfile(path, copy)
        shutil.copyfile(log, copy.with_name("copy.db-wal"))
        try:
            connection = sqlite3.connect(copy)
            connection.execute("PRAGMA trusted_schema=OFF")
            connection.execute("PRAGMA journal_mode=DELETE")
            connection.close()
        except SQLITE_ERRORS as error:
            raise damaged(path, error) from error
        copy.replace(ready)
    return ready


SCHEMA = """
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
# What our page knows beyond the old viewers lives in tables (in ``.vis`` files: under a key) that these never look at.
OWN_SCHEMA = """
CREATE TABLE tb_twinprobe (
    data_source TEXT NOT NULL, step INTEGER NOT NULL, rank INTEGER NOT NULL, node_name TEXT NOT NULL, error REAL,
    verdict TEXT, origin TEXT, matched_by TEXT, node_order INTEGER, drift REAL,
    expected REAL, times REAL, arguments TEXT,
    PRIMARY KEY (step, rank, data_source, node_name)
) WITHOUT ROWID;
CREATE TABLE tb_twinprobe_summary (step INTEGER NOT NULL, rank INTEGER NOT NULL, key TEXT NOT NULL, value TEXT);
"""

TARGET, GOLDEN = "target", "golden"
SOURCES = {TARGET: "NPU", GOLDEN: "Bench"}
_NEEDED = {
    "tb_nodes": {"node_order", "node_name", "node_type", "up_node", "sub_nodes", "precision_index", "matched_node_link",
                 "micro_step_id", "input_data", "output_data", "data_source", "step", "rank"},
    "tb_config": {"graph_type", "node_colors", "rank_list", "step_list"},
}  # fmt: skip
_BRIEF = ("node_name", "node_order", "node_type", "up_node", "precision_index", "overflow_level", "micro_step_id",
          "matched_node_link", "matched_distributed")  # fmt: skip
_FULL = (*_BRIEF, "input_data", "output_data", "stack_id", "parallel_merge_info", "dump_data_dir")
_MOST_HITS = 5_000
_LEAF = "(sub_nodes IS NULL OR sub_nodes IN ('', '[]'))"
_UNMATCHED = "(matched_node_link IS NULL OR matched_node_link IN ('', '[]'))"


@dataclass(frozen=True)
class Config:
    """What a graph file says about itself."""

    compared: bool
    task: str
    tooltips: dict[str, str]
    micro_steps: int
    overflow: bool
    colors: dict[str, dict[str, Any]]
    ranks: list[int]
    steps: list[int]
    knows_more: bool = False
    summary: dict[tuple[int, int], dict[str, str]] = field(default_factory=dict)


class GraphFile(AbstractContextManager["GraphFile"]):
    """One open graph file; rows come back as dicts with the columns' own names."""

    def __init__(self, path: Path, *, shown: Path | None = None) -> None:
        self.path = shown or path
        with self._errors():
            self._db = connect(path)
            self._db.row_factory = sqlite3.Row
            self._columns = {name: self._table(name) for name in ("tb_nodes", "tb_config", "tb_stack")}
            self._extra = self._table("tb_twinprobe")
            self._summary = self._table("tb_twinprobe_summary")
        for table, needed in _NEEDED.items():
            missing = needed - self._columns[table]
            if missing:
                what = f"column {min(missing)} of table {table}" if self._columns[table] else f"table {table}"
                raise BadInput(f"is not a finished graph file: {what} is missing", where=self.path,
                               hint="wait until it is written, or make it again")  # fmt: skip
        self._brief = self._present(_BRIEF)
        self._full = self._present(_FULL)

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def config(self) -> Config:
        """Read the one row of tb_config."""
        rows = self._rows("SELECT * FROM tb_config LIMIT 1")
        if not rows:
            raise BadInput("has no configuration row", where=self.path, hint="it may still be written to: reload")
        row, micro_steps = rows[0], rows[0].get("micro_steps")
        summary: dict[tuple[int, int], dict[str, str]] = {}
        if {"step", "rank", "key", "value"} <= self._summary:
            for fact in self._rows(_SUMMARY):
                summary.setdefault((fact["step"], fact["rank"]), {})[str(fact["key"])] = str(fact["value"] or "")
        return Config(
            compared=row["graph_type"] == "compare",
            task=str(row.get("task") or ""),
            tooltips={str(k): str(v) for k, v in parsed(row.get("tool_tip"), dict).items()},
            micro_steps=micro_steps if isinstance(micro_steps, int) else 1,
            overflow=bool(row.get("overflow_check")),
            colors={str(k): v for k, v in parsed(row["node_colors"], dict).items() if isinstance(v, dict)},
            ranks=_numbers(row["rank_list"]),
            steps=_numbers(row["step_list"]),
            knows_more=bool(self._extra),
            summary=summary,
        )

    def graph(self, step: int, rank: int) -> Graph:
        """The graph of one rank at one step."""
        return Graph(self, step, rank)

    def _table(self, name: str) -> set[str]:
        # A view under this name could hold any query: only tables count.
        exists = self._db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)).fetchone()
        return {row[1] for row in self._db.execute(f"PRAGMA table_info({name})")} if exists else set()

    def _present(self, names: Iterable[str]) -> str:
        have = self._columns["tb_nodes"]
        shown = ", ".join(f"n.{name}" if name in have else f"NULL AS {name}" for name in names)
        return f"{shown}, {_LEAF} AS leaf"

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except SQLITE_ERRORS as error:
            raise damaged(self.path, error) from error

    def _rows(self, query: str, values: Sequence[object] = ()) -> list[dict[str, Any]]:
        with self._errors():
            return [dict(row) for row in self._db.execute(query, values)]

    def _stream(self, query: str, values: Sequence[object] = ()) -> Iterator[Sequence[Any]]:
        with self._errors():
            yield from self._db.execute(query, values)


class Graph:
    """The rows of one step and rank; a side is "target" or "golden"."""

    def __init__(self, file: GraphFile, step: int, rank: int) -> None:
        self._file = file
        self._key = (step, rank)

    def root(self, side: str) -> dict[str, Any] | None:
        """The node without a parent."""
        query = f"{self._select()} AND (up_node IS NULL OR up_node IN ('', 'None')) ORDER BY node_order DESC LIMIT 1"
        return next(iter(self._file._rows(query, self._on(side))), None)

    def children(self, side: str, parent: str, offset: int, limit: int, micro: int | None) -> list[dict[str, Any]]:
        """A page of a node's children in execution order."""
        query = f"{self._select()} AND up_node = ? {_micro(micro)} ORDER BY node_order LIMIT ? OFFSET ?"
        return self._file._rows(query, (*self._on(side), parent, limit, offset))

    def child_count(self, side: str, parent: str, micro: int | None = None, before: int | None = None) -> int:
        """How many children a node has, or how many of them come before a place in the order."""
        earlier = "" if before is None else f"AND node_order < {int(before)}"
        query = f"SELECT count(*) AS n {_NODES} AND up_node = ? {_micro(micro)} {earlier}"
        return int(self._file._rows(query, (*self._on(side), parent))[0]["n"])

    def node(self, side: str, name: str, *, full: bool = False) -> dict[str, Any] | None:
        """One node by its name, with its tensors if ``full``."""
        rows = self._file._rows(f"{self._select(full)} AND node_name = ? LIMIT 1", (*self._on(side), name))
        return rows[0] if rows else None

    def by_order(self, side: str, orders: Sequence[int]) -> list[dict[str, Any]]:
        """Nodes by their places in the order."""
        places = {order: place for place, order in enumerate(orders)}
        rows = map(dict, self._among(side, f"{self._select()} AND node_order", orders))
        return sorted(rows, key=lambda row: places.get(row["node_order"], 0))

    def search(self, side: str, text: str, limit: int) -> list[tuple[str, int]]:
        """Names that contain a text, whatever the case, in execution order."""
        pattern = "%" + text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        # Asking for the name alone lets an index answer without touching the rows.
        query = f"SELECT node_name {_NODES} AND node_name LIKE ? ESCAPE '\\' LIMIT {_MOST_HITS}"
        names = [row[0] for row in self._file._stream(query, (*self._on(side), pattern))]
        rows = self._among(side, f"SELECT node_name, node_order {_NODES} AND node_name", names)
        return sorted(((str(row[0]), int(row[1])) for row in rows), key=lambda hit: hit[1])[:limit]

    def outline(self, side: str) -> Iterator[Sequence[Any]]:
        """(order, precision, overflow, unmatched, micro step, type, leaf) of every node in execution order."""
        overflow = "overflow_level" if "overflow_level" in self._file._columns["tb_nodes"] else "NULL"
        query = (
            f"SELECT node_order, precision_index, {overflow}, {_UNMATCHED}, micro_step_id, node_type, {_LEAF} "
            f"{_NODES} ORDER BY node_order"
        )
        return self._file._stream(query, self._on(side))

    def outputs(self, side: str) -> Iterator[tuple[int, str]]:
        """(order, text of the outputs) of every node in execution order."""
        query = f"SELECT node_order, output_data {_NODES} ORDER BY node_order"
        return ((row[0], str(row[1] or "")) for row in self._file._stream(query, self._on(side)))

    def outputs_of(self, side: str, orders: Sequence[int]) -> dict[int, str]:
        """Text of the outputs by place in the order, for some nodes."""
        rows = self._among(side, f"SELECT node_order, output_data {_NODES} AND node_order", orders)
        return {row[0]: str(row[1] or "") for row in rows}

    def tensors(self, side: str, parent: str, offset: int, limit: int, micro: int | None) -> list[tuple[int, str, str]]:
        """(order, inputs, outputs) of a page of children."""
        page = f"AND up_node = ? {_micro(micro)} ORDER BY node_order LIMIT ? OFFSET ?"
        query = f"SELECT node_order, input_data, output_data {_NODES} {page}"
        rows = self._file._stream(query, (*self._on(side), parent, limit, offset))
        return [(row[0], str(row[1] or ""), str(row[2] or "")) for row in rows]

    def stack(self, row: dict[str, Any]) -> list[str]:
        """The frames of a node's call."""
        if row.get("stack_id") is None or "stack_info" not in self._file._columns["tb_stack"]:
            return []
        rows = self._file._rows("SELECT stack_info FROM tb_stack WHERE id = ? LIMIT 1", (row["stack_id"],))
        return [str(frame) for frame in parsed(rows[0]["stack_info"], list)] if rows else []

    def knowledge(self, side: str, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """What TwinProbe's own files know besides, by node name: error, verdict, origin, rule, noise, arguments."""
        columns = [name for name in _KNOWN if name in self._file._extra]
        if not columns:
            return {}
        query = f"SELECT node_name, {', '.join(columns)} FROM tb_twinprobe n {_WHERE} AND node_name"
        return {str(row[0]): dict(zip(columns, row[1:], strict=True)) for row in self._among(side, query, names)}

    def errors(self, side: str) -> Iterator[Sequence[Any]]:
        """(order, error) of every node that TwinProbe measured."""
        return self._extras(side, ("node_order", "error"))

    def growth(self, side: str) -> Iterator[Sequence[Any]]:
        """(name, order, error, expected error) of every node that TwinProbe weighed against noise."""
        return self._extras(side, ("node_name", "node_order", "error", "expected"), "ORDER BY node_order")

    def injected(self, side: str) -> list[int]:
        """The places of the nodes in which a difference arose."""
        rows = self._extras(side, ("node_order", "origin"), "AND origin = 'injected'")
        return [row[0] for row in rows if isinstance(row[0], int)]

    def summary(self, key: str) -> dict[str, Any]:
        """One of the larger things that TwinProbe's own files tell of this step and rank; empty where they do not."""
        if not {"step", "rank", "key", "value"} <= self._file._summary:
            return {}
        query = "SELECT value FROM tb_twinprobe_summary WHERE step = ? AND rank = ? AND key = ? LIMIT 1"
        rows = self._file._rows(query, (*self._key, key))
        return cast("dict[str, Any]", parsed(rows[0]["value"], dict) if rows else {})

    def verdicts(self, side: str) -> dict[str, int]:
        """How many nodes have which verdict of TwinProbe."""
        if "verdict" not in self._file._extra:
            return {}
        query = f"SELECT verdict, count(*) FROM tb_twinprobe n {_WHERE} GROUP BY verdict"
        return {str(row[0]): int(row[1]) for row in self._file._stream(query, self._on(side))}

    def _extras(self, side: str, columns: tuple[str, ...], rest: str = "") -> Iterator[Sequence[Any]]:
        """Columns of what TwinProbe's own files know of each node; no row where a file lacks one of them."""
        if not set(columns) <= self._file._extra:
            return iter(())
        return self._file._stream(f"SELECT {', '.join(columns)} FROM tb_twinprobe n {_WHERE} {rest}", self._on(side))

    def _select(self, full: bool = False) -> str:
        return f"SELECT {self._file._full if full else self._file._brief} {_NODES}"

    def _among(self, side: str, query: str, values: Sequence[object]) -> Iterator[Any]:
        """Rows whose last column of the query is one of these values, of which SQLite takes only so many at a time."""
        for start in range(0, len(values), 500):
            part = values[start : start + 500]
            yield from self._file._stream(f"{query} IN ({','.join('?' * len(part))})", (*self._on(side), *part))

    def _on(self, side: str) -> tuple[int, int, str]:
        return (*self._key, SOURCES[side])


# Pictures of tensors are read one by one.
_SUMMARY = "SELECT step, rank, key, value FROM tb_twinprobe_summary WHERE key NOT LIKE 'inside:%' LIMIT 1000000"
_KNOWN = ("error", "verdict", "origin", "matched_by", "expected", "times", "arguments")
_WHERE = "WHERE n.step = ? AND n.rank = ? AND n.data_source = ?"
# A node without a place in the order is no node; SQLite lets any column hold anything.
_NODES = f"FROM tb_nodes n {_WHERE} AND typeof(n.node_order) = 'integer'"


def parsed(text: Any, kind: type) -> Any:
    """JSON out of a column; an empty ``kind`` where it is missing, damaged or of another shape."""
    try:
        value = msgspec.json.decode(text) if isinstance(text, str) and text else None
    except (msgspec.MsgspecError, RecursionError):
        value = None
    return value if isinstance(value, kind) else kind()


def last_link(text: Any) -> str | None:
    """The matched node: the last name of the stored path (hand-made matches store only part of the path)."""
    path = parsed(text, list)
    return str(path[-1]) if path else None


def _micro(micro: int | None) -> str:
    return "" if micro is None else f"AND micro_step_id = {int(micro)}"


def _numbers(text: Any) -> list[int]:
    return sorted({int(number) for number in parsed(text, list) if isinstance(number, int)}) or [0]
