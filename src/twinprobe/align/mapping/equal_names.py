"""Equal names belong together: the last rule of every mapping."""

from __future__ import annotations

from twinprobe.align.board import NONE, Board
from twinprobe.runs.names import BACKWARD, FORWARD, GRADIENTS

RULE = "name"


def link_equal_names(board: Board) -> None:
    """Link what is still free and has the same name on both sides, unless the modules around it lie elsewhere."""
    if NONE not in board.partner or NONE not in board.back:
        return
    golden = board.golden.heads
    free = {id(head): head for head, link in zip(board.target.head_of, board.partner, strict=True) if link == NONE}
    common = [(head, golden[head.name]) for head in free.values() if head.name in golden]
    for head, other in common:
        if head.is_module or not {FORWARD, BACKWARD, GRADIENTS}.intersection(head.calls):
            board.link_heads(head, other, RULE, by_order=False)
    apis = [(head, other) for head, other in common if not head.is_module]
    for head, other in apis:
        calls = other.calls.get(FORWARD, {})
        for call, op in head.calls.get(FORWARD, {}).items():
            if call in calls and board.same_place(op, calls[call]):
                board.link(op, calls[call], RULE)
    board.follow_forward()
    for head, other in apis:
        board.link_in_order(board.free([head], BACKWARD), board.free([other], BACKWARD, golden=True), RULE)
