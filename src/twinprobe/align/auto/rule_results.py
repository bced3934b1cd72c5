"""Rule: calls at the same place that give the same result, whatever they are called; several may do what one does."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinprobe.align.auto.alignment import COMPOSITE, SAME
from twinprobe.align.auto.cells import WIDEST, ValueCells
from twinprobe.align.auto.guess import guess_by_values
from twinprobe.align.auto.layers import Facts
from twinprobe.align.auto.one_to_one import pair_by_cells, pair_by_table
from twinprobe.align.auto.prints import NONE, Prints, row_values_agree, same_values
from twinprobe.align.auto.scopes import Piece, pieces
from twinprobe.align.auto.sequence import Score, is_large
from twinprobe.align.auto.sketch import Link, Sketch

RULE, WHOLE = "equal results", "one call does it all"
_EQUAL, _SAME_SHAPE, _OTHER = 2.0, 0.5, -9.0
_CONFIDENCE, _BY_PLACE, _EDGE = 0.9, 0.7, 0.1


def link_results(sketch: Sketch) -> None:
    """Link free API calls of linked modules by their outputs' values."""
    for node, other in sketch.matched_modules():
        for piece in list(pieces(sketch, node, other, opened=True)):
            calls = Piece(_calls(sketch.target, piece.target), _calls(sketch.golden, piece.golden))
            if calls.target and calls.golden:
                _link_piece(sketch, calls)
                _link_whole(sketch, node, other, calls)


def _calls(facts: Facts, nodes: list[int]) -> list[int]:
    return [node for node in nodes if not facts.tree.is_module[node] and facts.output_row(node) != NONE]


def _link_piece(sketch: Sketch, piece: Piece) -> None:
    """Equal outputs, in order. What ran before a call and led to it belongs to it, where one side has more calls."""
    target, golden = sketch.target, sketch.golden
    rows = [target.output_row(node) for node in piece.target]
    others = [golden.output_row(node) for node in piece.golden]
    sizes = len(rows), len(others)
    scores = _Scores(target.prints, rows, golden.prints, others)
    if is_large(*sizes):
        guess = guess_by_values(target, piece.target, golden, piece.golden)
        steps = pair_by_cells(sizes, scores.cells(), _EDGE, guess, WIDEST)
    else:
        table = scores.table()
        steps = pair_by_table(table, _EDGE) if table.max() > 0 else []
    begin = (0, 0)
    for step in steps:
        at, to = _last_equal(scores, sizes, step.target[0], step.golden[0])
        mine = tuple(node for node in piece.target[begin[0] : at + 1] if sketch.partner[node] == NONE)
        theirs = tuple(node for node in piece.golden[begin[1] : to + 1] if sketch.back[node] == NONE)
        begin = at + 1, to + 1
        if len(mine) > 1 and len(theirs) > 1:
            mine, theirs = (piece.target[at],), (piece.golden[to],)
        kind = SAME if len(mine) == len(theirs) == 1 else COMPOSITE
        if mine and theirs:
            sketch.link(Link(mine, theirs, RULE, "same place, equal output", _CONFIDENCE, kind))


def _last_equal(scores: _Scores, sizes: tuple[int, int], at: int, to: int) -> tuple[int, int]:
    """Views repeat a result; the last call that has it, in the best shape, stands for the chain."""
    while at + 1 < sizes[0] and scores.at(at + 1, to) >= scores.at(at, to) > 0:
        at += 1
    while to + 1 < sizes[1] and scores.at(at, to + 1) >= scores.at(at, to) > 0:
        to += 1
    return at, to


class _Scores:
    """How well the outputs of two lists of calls fit: all at once, in the cells asked for, or one by one."""

    def __init__(self, one: Prints, rows: list[int], other: Prints, others: list[int]) -> None:
        self._one, self._rows, self._other, self._others = one, rows, other, others
        numbers: dict[str | None, int] = {}
        self._shapes = tuple(
            np.array([numbers.setdefault(prints.shape_text[row], len(numbers)) for row in chosen])
            for prints, chosen in ((one, rows), (other, others))
        )

    def table(self) -> NDArray[np.float64]:
        agree = same_values(self._one, self._rows, self._other, self._others)
        return self._scored(agree, self._shapes[0][:, None] == self._shapes[1])

    def cells(self) -> Score:
        agree = ValueCells(self._one, self._rows, self._other, self._others)
        mine, theirs = self._shapes
        return lambda rows, columns: self._scored(agree(rows, columns), mine[rows] == theirs[columns])

    def at(self, row: int, column: int) -> float:
        if not row_values_agree(self._one, self._rows[row], self._other, self._others[column]):
            return _OTHER
        return _EQUAL + _SAME_SHAPE * bool(self._shapes[0][row] == self._shapes[1][column])

    @staticmethod
    def _scored(agree: NDArray[np.bool_], same_shape: NDArray[np.bool_]) -> NDArray[np.float64]:
        return np.where(agree, _EQUAL + _SAME_SHAPE * same_shape, _OTHER)


def _link_whole(sketch: Sketch, node: int, other: int, piece: Piece) -> None:
    """A layer that is one call on one side and several on the other, where values say nothing."""
    target, golden = sketch.target, sketch.golden
    if not (target.is_layer[node] and golden.is_layer[other]):
        return
    mine = [call for call in piece.target if sketch.partner[call] == NONE]
    theirs = [call for call in piece.golden if sketch.back[call] == NONE]
    linked = any(sketch.partner[child] != NONE for child in target.tree.children[node])
    if linked or not mine or not theirs or (len(mine) > 1) == (len(theirs) > 1):
        return
    shapes = target.prints.shape(target.output_row(mine[-1])), golden.prints.shape(golden.output_row(theirs[-1]))
    if shapes[0] is not None and shapes[0] == shapes[1]:
        reason = "all that the two layers call, outputs of one shape"
        sketch.link(Link(tuple(mine), tuple(theirs), WHOLE, reason, _BY_PLACE, COMPOSITE))
