"""The files of a first-difference search: every call of a rank, and where the difference began."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinprobe._report.files import replacing
from twinprobe._report.tables import STATISTICS
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER

if TYPE_CHECKING:
    import polars as pl

_STATES = {INPUT: "input", PARAMETER: "parameters", OUTPUT: "output", GRADIENT: "parameters_grad"}
_METRICS = ("NPU max", "NPU min", "NPU mean", "NPU l2norm", "NPU MD5")
_PARTS = 4  # a call's name has at least so many; single points have fewer

Item = dict[str, Any]


def write_calls(path: Path, ops: Sequence[str], pairs: pl.DataFrame, table: pl.DataFrame, differs: set[int]) -> None:
    """compare_result_*.json: every target call with its rows, and whether its outputs agree."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as out:
        separator = "{\n"
        for op, items in _calls(ops, pairs, table):
            if ops[op].count(".") < _PARTS - 1:
                continue
            entry = json.dumps({"is_same": op not in differs, "op_items": items}, indent=4, ensure_ascii=False)
            out.write(f"{separator}    {json.dumps(ops[op])}: " + entry.replace("\n", "\n    "))
            separator = ",\n"
        out.write("{}\n" if separator == "{\n" else "\n}\n")


def call_report(
    ops: Sequence[str], number: int, pairs: pl.DataFrame, table: pl.DataFrame, frames: Sequence[str]
) -> Item:
    """One entry of diff_analyze_*.json: a call with its inputs, outputs and call stack."""
    chosen = (pairs["t_op"] == number).fill_null(value=False)
    ((_, items),) = _calls(ops, pairs.filter(chosen), table.filter(chosen))
    info: dict[str, dict[str, Item]] = {"input": {}, "output": {}}
    for item in items:
        side = "output" if item["state"] == "output" else "input"
        metrics = {name: item[name] for name in _METRICS if name in item}
        info[side][item["NPU Name"]] = metrics | {"NPU P2POp peer": item["NPU P2POp peer"]}
    return {"op_name": ops[number], "data_info": info, "stack_info": list(frames) or None}


def write_culprits(path: Path, culprits: dict[str, list[Item]]) -> None:
    """diff_analyze_*.json: per rank the calls where the difference began."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(culprits, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _calls(ops: Sequence[str], pairs: pl.DataFrame, table: pl.DataFrame) -> Iterator[tuple[int, list[Item]]]:
    """The rows of each target call, in order; rows that only the golden run has belong to none."""
    facts = pairs.select("t_op", "t_role", "t_peer", "g_peer").iter_rows()
    current = -1
    items: list[Item] = []
    for (op, role, t_peer, g_peer), row in zip(facts, table.iter_rows(named=True), strict=True):
        if op is None:
            continue
        if op != current and items:
            yield current, items
            items = []
        current = op
        items.append(_item(row, ops[op], role, t_peer, g_peer))
    if items:
        yield current, items


def _item(row: Item, op: str, role: int, t_peer: str | None, g_peer: str | None) -> Item:
    item = {name: _plain(name, value) for name, value in row.items()}
    item["state"] = _STATES.get(role, "")
    item["api_origin_name"] = op
    for who, peer in (("NPU", t_peer), ("Bench", g_peer)):
        operation, _, other = (peer or "").partition(":")
        item[f"{who} P2POp op"] = operation or "None"
        item[f"{who} P2POp peer"] = other or "None"
    return item


def _plain(name: str, value: Any) -> Any:
    """Numbers as numbers, flags as flags, the stack as a list; what is not a number stays text."""
    if name in ("Result", "Err_message"):
        return ""
    if name in STATISTICS:
        return _number(value)
    if name == "Requires_grad Consistent":
        return value == "True"
    if name == "NPU_Stack_Info":
        return ast.literal_eval(value) if value.startswith("[") else value
    return value


def _number(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text
