"""Reading a JSON `.vis`: put into a database once, in the user's cache, so that the page never holds it in memory."""

from __future__ import annotations

import json
import mmap
import secrets
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from twinprobe._graph.read.db import OWN_SCHEMA, SCHEMA, SQLITE_ERRORS, cache_folder, file_key
from twinprobe._runs.whole_files import open_file
from twinprobe.errors import BadInput

Progress = Callable[[float], None]
_FORMAT = "2"  # raise it when the layout of the index changes
_LARGEST_LENIENT = 512 << 20
_LARGEST_READ = 1 << 30
_BLOCK = 8 << 20
_BATCH = 500
_KEPT_SECONDS = 30 * 24 * 3600  # an index that nobody opened for so long can be made again
_INDEXES = """
CREATE INDEX index1 ON tb_nodes (step, rank, data_source, up_node, node_order);
CREATE INDEX index2 ON tb_nodes (step, rank, data_source, node_name, node_order);
CREATE INDEX index3 ON tb_nodes (step, rank, data_source, node_order);
"""


class _Links(msgspec.Struct):
    """The part of a node that makes the tree."""

    subnodes: list[str] = []
    micro_step_id: int | None = None


def index_of(path: Path) -> Path:
    """Where the database made of this file is, or will be."""
    return cache_folder("graphs") / f"{file_key(path)}-{_FORMAT}.vis.db"


def write_index(path: Path, progress: Progress = lambda _: None) -> Path:
    """Make the database, unless it is there; ``progress`` gets the share that is done."""
    index = index_of(path)
    if index.exists():
        return index
    for unused in index.parent.glob("*.db"):
        with suppress(OSError):
            if unused.stat().st_mtime < time.time() - _KEPT_SECONDS:
                unused.unlink()
    temporary = index.with_name(f".{index.name}.{secrets.token_hex(4)}.part")
    try:
        document = _document(path, progress)
        _write(temporary, document, progress)
        temporary.replace(index)
    except (*SQLITE_ERRORS, msgspec.MsgspecError, RecursionError, ValueError, TypeError, AttributeError) as error:
        hint = "if it is still being written, wait and reload; otherwise make it again"
        raise BadInput(f"is not a graph file that can be read: {error}", where=path, hint=hint) from error
    finally:
        temporary.unlink(missing_ok=True)
    return index


def _document(path: Path, progress: Progress) -> dict[str, Any]:
    """The top level of the file; the parts of a strict file stay undecoded views of its bytes."""
    try:
        with open_file(path) as file:
            size = file.seek(0, 2)
            if not size:
                raise BadInput("is empty", where=path, hint="it may still be written to: wait and reload")
            file.seek(0)
            content = _mapped_copy(path, file, size, progress) if size > _LARGEST_READ else file.read()
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=path) from error
    try:
        return dict(msgspec.json.decode(content, type=dict[str, msgspec.Raw]))
    except msgspec.DecodeError:
        # Python's json writes NaN and Infinity, which are no JSON; its reader takes them, at the cost of memory.
        if len(content) > _LARGEST_LENIENT or max(content.find(b"NaN"), content.find(b"Infinity")) < 0:
            raise
        document = json.loads(content[:])
    if not isinstance(document, dict):
        raise ValueError("the top level is not an object")
    return {key: msgspec.Raw(msgspec.json.encode(value)) for key, value in document.items()}


def _mapped_copy(path: Path, file: BinaryIO, size: int, progress: Progress) -> mmap.mmap:
    """A large file without memory for all of it. It is copied before: who shortens a mapped file ends the process."""
    with tempfile.TemporaryFile(dir=cache_folder("graphs")) as copy:  # nobody else has a name for it
        done = 0
        while block := file.read(min(_BLOCK, size - done)):
            copy.write(block)
            done += len(block)
            progress(0.0)
        if done < size:
            raise BadInput("became shorter while it was read", where=path, hint="wait until it is written, and reload")
        copy.flush()
        return mmap.mmap(copy.fileno(), size, access=mmap.ACCESS_READ)


def _write(target: Path, document: dict[str, Any], progress: Progress) -> None:
    database = sqlite3.connect(target, isolation_level=None)
    try:
        database.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-16000;" + SCHEMA)
        database.execute("BEGIN")
        compared = "NPU" in document
        if not compared and "node" not in document:
            raise ValueError("neither a graph nor a pair of graphs is in it")
        sources = ("NPU", "Bench") if compared else ("NPU",)
        for number, source in enumerate(sources):
            part = _plain(document, source, dict[str, msgspec.Raw], {}) if compared else document
            _write_side(database, source, part, _share(progress, 0.95 * number / len(sources), 0.95 / len(sources)))
        _write_config(database, document, compared)
        database.execute("COMMIT")
        database.executescript(_INDEXES)
        _write_knowledge(database, document)
        database.execute("ANALYZE")
        progress(1.0)
    finally:
        database.close()


def _share(progress: Progress, start: float, width: float) -> Progress:
    return lambda done: progress(start + width * done)


def _write_side(database: sqlite3.Connection, source: str, part: dict[str, Any], progress: Progress) -> None:
    nodes = _plain(part, "node", dict[str, msgspec.Raw], {})
    folder = _plain(part, "dump_data_dir", Any, None)
    links = {name: msgspec.json.decode(raw, type=_Links) for name, raw in nodes.items()}
    root = str(_plain(part, "root", Any, ""))
    micro_steps = _micro_steps(root, links)
    stacks: dict[str, str] = {}
    rows = []
    for order, name in enumerate(_post_order(root, links)):
        node = msgspec.json.decode(nodes[name])
        node["micro_step_id"] = micro_steps.get(name, node.get("micro_step_id"))
        rows.append(_row(source, order, name, node, folder, stacks, database))
        if len(rows) == _BATCH:
            _insert(database, "tb_nodes", rows)
            rows = []
            progress(order / len(nodes))
    _insert(database, "tb_nodes", rows)


def _row(source: str, order: int, name: str, node: dict[str, Any], folder: Any, stacks: dict[str, str],
         database: sqlite3.Connection) -> tuple[Any, ...]:  # fmt: skip
    data = node.get("data") or {}
    parent = node.get("upnode")
    frames = _text(node.get("stack_info") or [])
    if frames not in stacks:
        stacks[frames] = f"{source}_{len(stacks)}"
        database.execute("INSERT INTO tb_stack VALUES (?, ?)", (stacks[frames], frames))
    return (
        f"{source}_0_0_{name}", f"{source}_0_0", order, name, str(node.get("node_type", "0")),
        "" if parent in (None, "None") else parent, _text(node["subnodes"]) if node.get("subnodes") else "",
        _number(data.get("precision_index")), data.get("overflow_level"), node.get("micro_step_id") or 0,
        _text(node.get("matched_node_link") or []), stacks[frames], _text(node.get("parallel_merge_info") or []),
        _text(node.get("matched_distributed") or {}), 0, _text(node.get("input_data") or {}),
        _text(node.get("output_data") or {}), source, folder, 0, 0, 0,
    )  # fmt: skip


def _post_order(root: str, links: dict[str, _Links]) -> Iterator[str]:
    """Children before parents, in the order of execution; what the root does not reach comes last."""
    seen: set[str] = set()
    for start in (root, *links):
        if start in seen or start not in links:
            continue
        seen.add(start)
        waiting = [(start, iter(links[start].subnodes))]
        while waiting:
            name, children = waiting[-1]
            child = next(children, None)
            if child is None:
                waiting.pop()
                yield name
            elif child in links and child not in seen:
                seen.add(child)
                waiting.append((child, iter(links[child].subnodes)))


def _micro_steps(root: str, links: dict[str, _Links]) -> dict[str, int]:
    """Only the root's children say their micro step: what is under them belongs to the same one."""
    steps: dict[str, int] = {}
    for top in links[root].subnodes if root in links else []:
        step = links[top].micro_step_id if top in links else None
        waiting = [top]
        while step and waiting:
            name = waiting.pop()
            if name in links and name not in steps and name != root:
                steps[name] = step
                waiting += links[name].subnodes
    return steps


def _write_config(database: sqlite3.Connection, document: dict[str, Any], compared: bool) -> None:
    tooltips = _plain(document, "ToolTip", Any, None)
    database.execute("INSERT INTO tb_config VALUES ('1', ?, ?, ?, ?, ?, ?, '[0]', '[0]')", (
        "compare" if compared else "build", str(_plain(document, "task", Any, "") or ""),
        tooltips if isinstance(tooltips, str) else _text(tooltips), _plain(document, "MicroSteps", Any, 1),
        int(bool(_plain(document, "OverflowCheck", Any, False))), _text(_plain(document, "Colors", Any, None)),
    ))  # fmt: skip


def _write_knowledge(database: sqlite3.Connection, document: dict[str, Any]) -> None:
    extra = _plain(document, "TwinProbe", Any, None)
    if not isinstance(extra, dict):
        return
    database.executescript(OWN_SCHEMA)
    database.execute("BEGIN")
    nodes = extra.pop("nodes", None)
    for key, value in extra.items():
        text = value if isinstance(value, str) else _text(value)
        database.execute("INSERT INTO tb_twinprobe_summary VALUES (0, 0, ?, ?)", (key, text))
    for name, known in (nodes or {}).items():
        texts = (known.get(key) for key in ("verdict", "origin", "matched_by"))
        numbers = (_number(known.get(key)) for key in ("expected", "times"))
        database.execute(
            "INSERT INTO tb_twinprobe SELECT 'NPU', 0, 0, ?, ?, ?, ?, ?, max(node_order), NULL, ?, ?, ? FROM tb_nodes "
            "WHERE node_name = ? AND data_source = 'NPU'",
            (name, _number(known.get("error")), *texts, *numbers, known.get("arguments"), name),
        )
    database.execute("COMMIT")


def _insert(database: sqlite3.Connection, table: str, rows: list[tuple[Any, ...]]) -> None:
    if rows:
        database.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(rows[0]))})", rows)


def _plain(document: dict[str, Any], key: str, kind: Any, default: Any) -> Any:
    return msgspec.json.decode(document[key], type=kind) if key in document else default


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
