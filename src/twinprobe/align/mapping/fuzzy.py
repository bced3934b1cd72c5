"""Fuzzy matching (-fm): the same name whatever its call number, in order of appearance."""

from __future__ import annotations

from collections import defaultdict

from twinprobe.align.board import Board
from twinprobe.align.mapping.api_names import torch_name
from twinprobe.align.side import Head, Side, split
from twinprobe.runs.names import BACKWARD, FORWARD

RULE = "fuzzy"
_Queues = dict[tuple[str, str], list[int]]  # (the module around, the name) -> calls in order


def link_fuzzy(board: Board) -> None:
    """Link free calls of equal name in order: inside one module, or anywhere where the runs share no such module."""
    around = _Around(board.target), _Around(board.golden)
    shared = around[0].modules & around[1].modules
    directions = dict.fromkeys([FORWARD, *board.target.direction])
    # Backward calls go with their forward calls, so these come first.
    for direction in sorted(directions, key=lambda name: name == BACKWARD):
        target = _queues(board, around[0], shared, direction, golden=False)
        golden = _queues(board, around[1], shared, direction, golden=True)
        for key, ops in target.items():
            for op, other in zip(ops, golden.get(key, ()), strict=False):
                board.link(op, other, RULE)
        if direction == FORWARD:
            board.follow_forward()


class _Around:
    """The module around each call of a run, by the module's name without call number."""

    def __init__(self, side: Side) -> None:
        self.side = side
        parents = side.run.parents
        heads = {parent: split(parent)[0] if parent else "" for parent in dict.fromkeys(parents.values())}
        self.of = [heads.get(parents.get(name), "") for name in side.ops] if parents else []
        self.modules = set(self.of)


def _queues(board: Board, around: _Around, shared: set[str], direction: str, *, golden: bool) -> _Queues:
    side = around.side
    names: dict[str, str] = {}
    queues: _Queues = defaultdict(list)
    for op in board.free(list(side.heads.values()), direction, golden=golden):
        head = side.head_of[op]
        name = names.get(head.name)
        if name is None:
            name = names[head.name] = _name(board, side, head)
        place = around.of[op] if around.of else ""
        queues[place if place in shared else "", name].append(op)
    return queues


def _name(board: Board, side: Side, head: Head) -> str:
    if not board.across_frameworks:
        return head.name
    return head.whole if head.is_module else torch_name(head, is_mindspore=side.is_mindspore)
