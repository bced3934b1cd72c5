"""What two linked API calls take, where their arguments stand in another order: ``x * w`` and ``w * x``."""

from __future__ import annotations

from itertools import permutations

from twinprobe.align.auto.prints import Prints, row_values_agree
from twinprobe.align.auto.row_links import RULE, RowLinks, backward_call
from twinprobe.align.board import NONE, Board
from twinprobe.align.turns import fits_shape
from twinprobe.runs.names import FORWARD
from twinprobe.runs.table import INPUT, OUTPUT

_MOST = 4
_VALUES, _SHAPE = 2, 1


def link_operands(board: Board, links: RowLinks, prints: tuple[Prints, Prints]) -> None:
    """Pair inputs anew, and their gradients, where values and shapes fit better in another order."""
    for op, other in enumerate(board.partner):
        if other == NONE or board.target.direction[op] != FORWARD or not board.rule[op].startswith(f"{RULE}:"):
            continue
        if board.target.head_of[op].is_module or board.golden.head_of[other].is_module:
            continue
        mine, theirs = prints[0].rows(op, INPUT), prints[1].rows(other, INPUT)
        if len(mine) == len(theirs) and 2 <= len(mine) <= _MOST:
            order = _order(prints, mine, theirs)
            _link(links, mine, theirs, order, board.rule[op])
            back = backward_call(board.target, op), backward_call(board.golden, other)
            if order and NONE not in back:
                gradients = prints[0].rows(back[0], OUTPUT), prints[1].rows(back[1], OUTPUT)
                if len(gradients[0]) == len(gradients[1]) == len(mine):
                    _link(links, *gradients, order, board.rule[op])


def _link(links: RowLinks, mine: list[int], theirs: list[int], order: tuple[int, ...], rule: str) -> None:
    for at, to in enumerate(order):
        links.alone.add(mine[at])
        links.pairs[mine[at]] = theirs[to], f"{rule}, argument order"


def _order(prints: tuple[Prints, Prints], mine: list[int], theirs: list[int]) -> tuple[int, ...]:
    """The place among ``theirs`` of each of ``mine``; nothing where they stand in the same order."""
    fits = [[_fit(prints, row, other) for other in theirs] for row in mine]
    direct = tuple(range(len(mine)))
    best = max(permutations(direct), key=lambda order: (_total(fits, order), order == direct))
    # Each must fit: an order that suits one and spoils another is no order.
    if best == direct or _total(fits, best) == _total(fits, direct) or not all(fits[a][b] for a, b in enumerate(best)):
        return ()
    return best


def _total(fits: list[list[int]], order: tuple[int, ...]) -> int:
    return sum(fits[at][to] for at, to in enumerate(order))


def _fit(prints: tuple[Prints, Prints], row: int, other: int) -> int:
    shapes = prints[0].shape(row), prints[1].shape(other)
    if shapes[0] is None or shapes[1] is None or not fits_shape(shapes[0], shapes[1]):
        return 0
    return _SHAPE + (_VALUES if row_values_agree(prints[0], row, prints[1], other) else 0)
