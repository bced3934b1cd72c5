"""Make a large graph file as msprobe writes it, or with what TwinProbe adds: layers of blocks of calls."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from twinprobe._graph.read.db import OWN_SCHEMA, SCHEMA

WIDE = 400  # children of one module
_EXTRAS = """
INSERT INTO tb_twinprobe SELECT data_source, step, rank, node_name, precision_index * 0.06,
    CASE precision_index WHEN 0 THEN 'pass' WHEN 1 THEN 'error' ELSE 'warning' END, '', 'name', node_order,
    precision_index, 1e-6, precision_index * 6e4, '{}'
    FROM tb_nodes WHERE data_source = 'NPU' ORDER BY node_name;
"""
_FIRST = "SELECT node_name FROM tb_nodes WHERE data_source = 'NPU' AND precision_index > 0 ORDER BY node_order LIMIT 1"
_INDEXES = ("step, rank, data_source, up_node, node_order", "step, rank, data_source, node_name",
            "step, rank, data_source, node_order", "step, rank, node_order", "step, rank, micro_step_id, node_order",
            "step, rank, modified, matched_node_link", "is_distributed")  # fmt: skip
_COLORS = {color: {"value": span, "description": "", "accuracy_level": level} for color, span, level in (
    ("#FFFCF3", [0, 0.3], "pass"), ("#FFDC7F", [0.3, 0.6], "warning"), ("#FF704D", [0.6, 1], "error"),
    ("#C7C7C7", [], "unmatched node"))}  # fmt: skip


def write_graph(path: Path, nodes: int, *, ours: bool = False) -> None:
    """A compared pair of graphs with this many nodes a side; errors begin half-way through."""
    database = sqlite3.connect(path)
    database.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;" + SCHEMA)
    config = ("1", "compare", "summary", "{}", 1, 0, json.dumps(_COLORS), "[0]", "[0]")
    database.execute("INSERT INTO tb_config VALUES (?,?,?,?,?,?,?,?,?)", config)
    for source in ("NPU", "Bench"):
        frames = json.dumps(["File model.py, line 7, in forward, \n y = f(x)"] * 12)
        database.execute("INSERT INTO tb_stack VALUES (?, ?)", (f"{source}_0_0_0", frames))
        database.executemany(f"INSERT INTO tb_nodes VALUES ({','.join('?' * 22)})", _rows(source, nodes))
    if ours:
        database.executescript(OWN_SCHEMA + _EXTRAS)
        name = database.execute(_FIRST).fetchone()[0]
        said = f"{name}: input equal, output differs, relative norm error 6.0 %; injected here"
        facts = [("first_node", name), ("first_sentence", said)]
        database.executemany("INSERT INTO tb_twinprobe_summary VALUES (0, 0, ?, ?)", facts)
    for number, columns in enumerate(_INDEXES, start=1):
        database.execute(f"CREATE INDEX index{number} ON tb_nodes ({columns})")
    database.commit()
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()


def _tree(nodes: int) -> Iterator[tuple[str, str, list[str], list[str]]]:
    """(name, parent, path, children) in post-order: one module of 400 calls, then layers of 8 blocks of 24 calls."""
    root, wide = "DefaultModel", "Module.wide.Wide.forward.0"
    calls = [f"Torch.mul.{n}.forward" for n in range(WIDE)]
    yield from ((call, wide, [root, wide, call], []) for call in calls)
    yield wide, root, [root, wide], calls
    tops = [wide]
    for layer in range((nodes - WIDE - 2) // (8 * 25 + 1) + 1):
        top = f"Module.language_model.encoder.layers.{layer}.Block.forward.0"
        blocks = []
        for block in range(8):
            name = f"Module.language_model.encoder.layers.{layer}.part{block}.self_attention.Attention.forward.0"
            calls = [f"Functional.linear.{layer * 192 + block * 24 + n}.forward" for n in range(24)]
            yield from ((call, name, [root, top, name, call], []) for call in calls)
            yield name, top, [root, top, name], calls
            blocks.append(name)
        yield top, root, [root, top], blocks
        tops.append(top)
    yield root, "", [root], tops


def _rows(source: str, nodes: int) -> Iterator[tuple[Any, ...]]:
    for order, (name, parent, path, children) in enumerate(_tree(nodes)):
        index = None
        if source == "NPU":
            index = 0 if order < nodes // 2 or order % 37 else (1 if order % 2 else 0.5)
        given, made = (
            json.dumps({f"{name}.{what}.{n}": _tensor(order + n, source, index) for n in range(2)})
            for what in ("input", "output")
        )
        yield (f"{source}_0_0_{name}", f"{source}_0_0", order, name, "0" if children else "1", parent,
               json.dumps(children) if children else "", index, None, 0, json.dumps(path), f"{source}_0_0_0", "", "{}",
               0, given, made, source, None, 0, 0, 0)  # fmt: skip


def _tensor(number: int, source: str, index: float | None) -> dict[str, str]:
    value = str(number * 0.0137 + (0.001 if source == "NPU" else 0))
    tensor = {"type": "torch.Tensor", "dtype": "torch.bfloat16", "shape": "[1, 4096, 8192]", "Max": value,
              "Min": f"-{value}", "Mean": value, "Norm": value, "requires_grad": "True", "data_name": "-1"}  # fmt: skip
    if index is None:
        return tensor
    differences = dict.fromkeys(("Max diff", "Min diff", "Mean diff", "L2norm diff"), value)
    names = ("MaxRelativeErr", "MinRelativeErr", "MeanRelativeErr", "NormRelativeErr")
    verdict = {"Requires_grad Consistent": "True", "Result": "pass", "Err_message": "[]"}
    return tensor | differences | dict.fromkeys(names, f"{index * 6.0:.6f}%") | verdict
