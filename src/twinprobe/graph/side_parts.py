"""A side of a graph as bytes, for another process: its tree, call sites and links, without the run's values."""

from __future__ import annotations

import msgspec

from twinprobe.graph.call_sites import CallSites
from twinprobe.graph.communication import Communication
from twinprobe.graph.picture import Side
from twinprobe.graph.tree import Tree
from twinprobe.runs.run import Run


class _Parts(msgspec.Struct):
    source: str
    names: list[str]
    kinds: list[int]
    parents: list[int]
    children: list[list[int]]
    ops: list[int]
    micro_steps: list[int]
    order: list[int]
    frames: list[list[str]]
    of_node: list[int]
    overflow: list[str | None]
    link: list[int]


def pack_side(side: Side) -> bytes:
    """All but the run, what it communicates, and what merging has told."""
    tree = side.tree
    return msgspec.msgpack.encode(
        _Parts(
            side.source, tree.names, tree.kinds, tree.parents, tree.children, tree.ops, tree.micro_steps,
            side.order, side.sites.frames, side.sites.of_node, side.overflow, side.link,
        )
    )  # fmt: skip


def unpack_side(packed: bytes, run: Run) -> Side:
    """The side of this run, made in another process."""
    parts = msgspec.msgpack.decode(packed, type=_Parts)
    index = {name: at for at, name in enumerate(parts.names)}
    tree = Tree(parts.names, parts.kinds, parts.parents, parts.children, parts.ops, parts.micro_steps, index)
    sites = CallSites(run, tree, [])
    sites.frames, sites.of_node = parts.frames, parts.of_node
    return Side(parts.source, run, tree, parts.order, sites, Communication(), parts.link, parts.overflow)
