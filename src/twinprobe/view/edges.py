"""Data flow between siblings: a tensor that one gives and a later one takes, told by what was recorded of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twinprobe.graph.read_db import parsed

_STATISTICS = ("dtype", "shape", "Max", "Min", "Mean", "Norm")


def sibling_edges(tensors: Sequence[tuple[int, str, str]]) -> list[list[int]]:
    """Pairs of places in the order, giver first; of several nodes that gave the same tensor the latest counts."""
    givers: dict[tuple[str, ...], int] = {}
    edges: dict[tuple[int, int], None] = {}
    for order, inputs, outputs in tensors:
        for mark in _marks(inputs):
            if mark in givers:
                edges[givers[mark], order] = None
        for mark in _marks(outputs):
            givers[mark] = order
    return [list(edge) for edge in edges]


def _marks(text: str) -> list[tuple[str, ...]]:
    found = (_mark(entry) for name, entry in parsed(text, dict).items() if ".parameters." not in name)
    return [mark for mark in found if mark is not None]


def _mark(entry: Any) -> tuple[str, ...] | None:
    """What identifies a tensor; constants and scalars are too common to tell anything."""
    if not isinstance(entry, dict) or entry.get("shape") in (None, "[]", "()"):
        return None
    if entry.get("md5") not in (None, "", "00000000"):
        return (str(entry["shape"]), str(entry["md5"]))
    values = tuple(str(entry.get(key)) for key in _STATISTICS)
    return None if entry.get("Max") in (None, "null", "nan", entry.get("Min")) else values
