"""Helpers: draw reference dumps, and read both generations of files without any code of the package."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from twinprobe._align.mapping import MappingOptions
from twinprobe._graph.job import GraphRequest, Outcome, run_request
from twinprobe._scale.engine import EngineOptions

JSON_COLUMNS = ("sub_nodes", "matched_node_link", "matched_distributed", "input_data", "output_data")


def draw(target: Path, golden: Path | None, output: Path, form: str = "db", **options: Any) -> Outcome:
    """Carry out a graph request in this process."""
    layer = options.pop("layer", None)
    fuzzy = options.pop("fuzzy", False)
    align = options.pop("align", "auto")
    loose = options.pop("loose", False) or layer is not None or fuzzy
    request = GraphRequest(
        target=target,
        golden=golden,
        output=output,
        form=form,
        timestamp="20260102030405",
        mapping=MappingOptions(layer=layer, fuzzy=fuzzy, align=align, pair=options.pop("pair", "place")),
        same_ancestors=not loose,
        engine=EngineOptions(workers=1),
        **options,
    )
    return run_request(request, lambda _what, _done, _total: None)


def only(folder: Path, pattern: str) -> Path:
    (found,) = sorted(folder.glob(pattern))
    return found


def reference_db(reference: Path, name: str) -> Path:
    return only(reference / "graph" / "results" / name, "*.vis.db")


def dump(reference: Path, name: str) -> Path:
    return reference / "graph" / "dumps" / name / "step0"


def table(path: Path, name: str) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(f"SELECT * FROM {name}")]


def nodes(path: Path) -> dict[str, dict[str, Any]]:
    """tb_nodes by id, with JSON columns taken apart."""
    return {row["id"]: _parsed(row) for row in table(path, "tb_nodes")}


def _parsed(row: dict[str, Any]) -> dict[str, Any]:
    return row | {name: json.loads(row[name]) if row[name] else row[name] for name in JSON_COLUMNS}


def schema(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every table's columns and every index's columns, by name."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        names = connection.execute("SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'").fetchall()
        pragma = {"table": "table_info", "index": "index_xinfo"}
        return {name: connection.execute(f"PRAGMA {pragma[kind]}({name})").fetchall() for kind, name in names}


def values(node: dict[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
    """All inputs and outputs of a node."""
    yield from node["input_data"].items()
    yield from node["output_data"].items()
