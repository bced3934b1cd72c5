"""From an alignment to the board: linked calls, and the single rows that belong together where calls do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from twinprobe.align.auto.aligner import align_sides
from twinprobe.align.auto.alignment import FUSED, RESIDUAL, Alignment, Relation
from twinprobe.align.auto.operands import link_operands
from twinprobe.align.auto.prints import Prints
from twinprobe.align.auto.row_links import (
    RULE,
    RowLinks,
    apply_rows,
    link_by_shape,
    link_chain,
    link_left_inputs,
    link_parts,
    part_residual,
)  # fmt: skip
from twinprobe.align.auto.rule_results import RULE as RESULTS
from twinprobe.align.board import NONE, Board
from twinprobe.align.mapping.equal_names import RULE as NAME
from twinprobe.align.pairs import Pairs
from twinprobe.align.rows import pairs_of
from twinprobe.align.side import Head
from twinprobe.errors import BadInput
from twinprobe.runs.names import BACKWARD, FORWARD, GRADIENTS

_Many = tuple[Relation, list[int], list[int]]  # with the numbers of its calls


def link_alignment(board: Board, alignment: Alignment, *, where: object = None) -> RowLinks:
    """Link all calls of an alignment that are still free, with their backward calls and parameter gradients.

    What cannot be said call by call (fused layers, chains of calls, residuals) comes back as links of single rows, for
    ``aligned_pairs``. ``where`` names the file that the alignment was read from.
    """
    if where is not None:
        _check_names(board, alignment, where)
    numbers = board.target.number_of, board.golden.number_of
    many: list[_Many] = []
    heads: dict[tuple[str, str], tuple[Head, Head, str]] = {}
    for relation in alignment.relations:
        mine = [numbers[0][name] for name in relation.target if name in numbers[0]]
        theirs = [numbers[1][name] for name in relation.golden if name in numbers[1]]
        if not mine or not theirs:
            continue
        if not relation.one_to_one or relation.rule == RESULTS:
            many.append((relation, mine, theirs))
        elif board.link(mine[0], theirs[0], f"{RULE}: {relation.rule}"):
            one, other = board.target.head_of[mine[0]], board.golden.head_of[theirs[0]]
            heads.setdefault((one.name, other.name), (one, other, f"{RULE}: {relation.rule}"))
            if relation.kind == RESIDUAL:
                many.append((relation, mine, theirs))
    board.follow_forward()
    _link_gradients(board, heads.values())
    return _row_links(board, many)


def aligned_pairs(board: Board, links: RowLinks) -> Pairs:
    """The rows of all linked calls, and those that an alignment links one by one."""
    pairs = pairs_of(board)
    link_left_inputs(board, pairs, links, (Prints(board.target), Prints(board.golden)))
    return apply_rows(board, pairs, links)


def _link_gradients(board: Board, heads: Iterable[tuple[Head, Head, str]]) -> None:
    """The gradients of a module's parameters, and backward calls whose number differs from their forward call's."""
    pairs = list(heads)
    met = Counter(id(head) for pair in pairs for head in pair[:2])
    for head, other, rule in pairs:
        # A module whose calls belong to two others has no one partner for its gradients.
        if not (head.is_module and other.is_module) or met[id(head)] > 1 or met[id(other)] > 1:
            continue
        for direction in (GRADIENTS, BACKWARD):
            mine, theirs = head.calls.get(direction, {}), other.calls.get(direction, {})
            free = [op for op in mine.values() if board.partner[op] == NONE]
            others = [op for op in theirs.values() if board.back[op] == NONE]
            if len(free) == len(others):
                for op, partner in zip(free, others, strict=True):
                    board.link(op, partner, rule)


def _row_links(board: Board, many: list[_Many]) -> RowLinks:
    links = RowLinks()
    prints = Prints(board.target), Prints(board.golden)
    for relation, mine, theirs in many:
        if relation.kind == RESIDUAL:
            part_residual(board, links, mine[0], theirs[0], relation.inside)
        elif all(board.partner[op] == NONE for op in mine) and all(board.back[op] == NONE for op in theirs):
            rule = f"{RULE}: {relation.rule}"
            (link_parts if relation.kind == FUSED else link_chain)(board, links, prints, mine, theirs, rule)
    link_operands(board, links, prints)
    if board.across_frameworks:
        for op, other in enumerate(board.partner):
            if other != NONE and not board.target.head_of[op].is_module and board.target.direction[op] == FORWARD:
                link_by_shape(board, links, prints, op, other)
    return links


def link_automatically(board: Board, *, by_results: bool = True) -> RowLinks | None:
    """Align two runs as far as no other rule has linked them; None where they have too little in common.

    Without ``by_results`` only calls of like names are paired, and only values whose shapes fit.
    """
    known = [(board.target.ops[op], board.golden.ops[other]) for op, other in enumerate(board.partner) if other != NONE]
    alignment = align_sides(board.target, board.golden, known, by_results=by_results)
    found, of = alignment.matched_modules, alignment.modules
    if not alignment.relations:
        if of[0] and not found[0]:
            board.notes.append(f"names do not meet, and 0 of {of[0]} modules could be aligned: is this one model?")
        return None
    mapped = [
        sum(link != NONE and side.head_of[op].is_module and side.direction[op] == FORWARD for op, link in enumerate(to))
        for side, to in ((board.target, board.partner), (board.golden, board.back))
    ]
    if found[0] > mapped[0]:
        left = " that the mapping leaves" if mapped[0] else ""
        board.notes.append(
            f"names do not meet: {found[0] - mapped[0]} of {of[0] - mapped[0]} modules{left} were aligned with "
            f"{found[1] - mapped[1]} of {of[1] - mapped[1]} by structure and values (twinprobe align shows how)"
        )
    links = link_alignment(board, alignment)
    links.only_fitting = not by_results
    return links


def link_equal_modules(board: Board) -> None:
    """Modules of equal name that no rule has linked; API calls of equal name and number mean nothing elsewhere."""
    for head in board.target.modules:
        other = board.golden.heads.get(head.name)
        if other is not None:
            board.link_heads(head, other, NAME, by_order=False)


def _check_names(board: Board, alignment: Alignment, where: object) -> None:
    """An edited alignment may name calls that do not exist; ranks of one model may lack some, but not most."""
    strange: list[str] = []
    count = 0
    for side, taken in (("target", board.target), ("golden", board.golden)):
        inner = taken.run.parents.keys()
        names = [name for relation in alignment.relations for name in getattr(relation, side)]
        count += len(names)
        missing = [name for name in names if name not in taken.number_of and name not in inner]
        if missing:
            from twinprobe.align.mapping.suggest import Names

            strange += [f"{missing[0]!r} is no call of the {side} run{Names(taken.number_of).hint(missing[0])}"]
            strange += missing[1:]
    if not strange:
        return
    if 2 * len(strange) > count:
        raise BadInput(strange[0], where=str(where), hint="write names as dump.json has them, or align the runs anew")
    board.notes.append(f"{where}: {len(strange)} names are unknown here: {strange[0]}")
