"""Which rows of two runs are compared: the user's map first, then equal names, then the automatic alignment."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from math import prod

from twinprobe._align.auto.aligner import align_sides
from twinprobe._align.auto.alignment import DOUBTFUL
from twinprobe._align.auto.row_links import aligned_pairs, link_alignment
from twinprobe._align.calls import MINDSPORE, Head, Side
from twinprobe._align.links import NONE, Board, modules_meet
from twinprobe._align.rows import pairs_of
from twinprobe._live.console import shortened
from twinprobe._live.live_run import Values
from twinprobe._live.pairing.layer_map import ApiCall, LayerMap, Paths
from twinprobe._runs.names import CONTAINERS, FORWARD, parse_op
from twinprobe._runs.table import INPUT, OUTPUT, TENSOR

_MODULES = tuple(f"{one}." for one in sorted(CONTAINERS))


MAPPED = "layer map"
EQUAL = "equal names"
ROOTS = "the models"


@dataclass
class Matches:
    """Paired rows of (raw, base) with the reason, doubtful calls, and what is alone."""

    rows: list[tuple[int, int, str]] = field(default_factory=list)
    doubtful: set[str] = field(default_factory=set)
    raw_alone: list[str] = field(default_factory=list)
    base_alone: list[str] = field(default_factory=list)
    # Names of paired forward calls: raw -> base.
    calls: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    equal: bool = False  # every row of both runs has its partner, by equal names


def match_runs(
    raw: Values, base: Values, layer_map: LayerMap, raw_paths: Paths | None, base_paths: Paths | None
) -> Matches:
    """Pair the inputs and outputs of two recorded models."""
    equal = _match_equal_runs(raw, base) if layer_map.is_empty else None
    if equal is not None:
        return equal
    board = Board(raw, base)
    found = Matches()
    _link_mapped(board, layer_map, raw_paths, base_paths, found)
    # The two models themselves belong together, whatever they are called.
    roots = [_head(side.modules, "") for side in (board.target, board.golden)]
    if roots[0] is not None and roots[1] is not None:
        board.link_heads(roots[0], roots[1], ROOTS)
    if raw.ops == base.ops:
        for name, op in board.target.number_of.items():
            board.link(op, board.golden.number_of[name], EQUAL)
        pairs = pairs_of(board)
    else:
        _link_equal_modules(board)
        if _is_complete(board):
            _follow(board)
            pairs = pairs_of(board)
        else:
            raw.measure()
            base.measure()
            for side in (board.target, board.golden):  # what was derived from tables without statistics
                for cached in ("names", "roles", "shapes", "starts"):
                    side.__dict__.pop(cached, None)
            known = [(raw.ops[op], base.ops[other]) for op, other in enumerate(board.partner) if other != NONE]
            alignment = align_sides(board.target, board.golden, known)
            links = link_alignment(board, alignment)
            found.doubtful = {
                name for relation in alignment.relations if relation.confidence < DOUBTFUL for name in relation.target
            }
            _follow(board)
            pairs = aligned_pairs(board, links)
    found.notes += [note for note in board.notes if "construct.json" not in note]
    for row, other, rule in zip(pairs.target.tolist(), pairs.golden.tolist(), pairs.rule, strict=True):
        if NONE not in (row, other):
            found.rows.append((row, other, rule))
    _pair_left(board, found)
    _leave_joined(raw, base, layer_map, raw_paths, found)
    _tell_alone(board, found)
    return found


def _match_equal_runs(raw: Values, base: Values) -> Matches | None:
    """Two runs in memory whose calls all have their like by name, and take and give the same: nothing to align.

    The usual case, and told without the tables that the general way needs. It finds exactly what that would find;
    None where something asks for a closer look.
    """
    if raw.live is None or base.live is None or len(raw.ops) != len(base.ops):
        return None
    is_root = [name.count(".") == 3 and name.startswith(_MODULES) and not parse_op(name).body for name in raw.ops]
    partners: list[int] | None = list(range(len(raw.ops)))
    if raw.ops != base.ops:
        partners = _by_names(raw, base, is_root)
    layouts = base.live.layouts  # the same rows, by the names within a call
    if partners is None or not all(
        own[1] == layouts[other][1] for own, other in zip(raw.live.layouts, partners, strict=True)
    ):
        return None
    starts, golden_starts = raw.live.starts, base.live.starts
    found = Matches(equal=True)
    for op, (other, root) in enumerate(zip(partners, is_root, strict=True)):
        shift, rule = golden_starts[other] - starts[op], ROOTS if root else EQUAL
        found.rows += [(row, row + shift, rule) for row in range(starts[op], starts[op + 1])]
        if _is_forward(raw.ops[op]):
            found.calls[raw.ops[op]] = base.ops[other]
    return found


def _by_names(raw: Values, base: Values, is_root: list[bool]) -> list[int] | None:
    """By equal names, but that the two models themselves may be called otherwise. Functions need the aligner."""
    if MINDSPORE in (raw.framework, base.framework) or not all(name.startswith(_MODULES) for name in raw.ops):
        return None
    numbers = {name: number for number, name in enumerate(base.ops)}
    short = (parse_op(name) for name in base.ops if name.count(".") == 3 and name.startswith(_MODULES))
    model = next((op.cls for op in short if not op.body and op.direction == FORWARD), "")
    partners = []
    for name, root in zip(raw.ops, is_root, strict=True):
        known = numbers.get(name)
        if known is None and root:
            op = parse_op(name)
            known = numbers.get(f"{op.prefix}.{model}.{op.direction}.{op.call}")
        if known is None:
            return None
        partners.append(known)
    return partners if len(set(partners)) == len(partners) and modules_meet(raw.ops, base.ops) else None


def _is_forward(name: str) -> bool:
    return f".{FORWARD}" in name and parse_op(name).direction == FORWARD


def _is_complete(board: Board) -> bool:
    """Whether every forward call has its partner, so that there is nothing left to align."""
    sides = (board.target, board.partner), (board.golden, board.back)
    return not any(
        other == NONE and side.direction[op] == FORWARD for side, partner in sides for op, other in enumerate(partner)
    )


def _link_mapped(
    board: Board, layer_map: LayerMap, raw_paths: Paths | None, base_paths: Paths | None, found: Matches
) -> None:
    if raw_paths is None or base_paths is None:
        return
    for one, other in [*layer_map.pairs, *((group.one[-1], group.other[-1]) for group in layer_map.groups)]:
        mine, theirs = (one, other) if id(one) in raw_paths.of else (other, one)
        if id(mine) not in raw_paths.of or id(theirs) not in base_paths.of:
            continue
        head = _head(board.target.modules, raw_paths.of[id(mine)])
        partner = _head(board.golden.modules, base_paths.of[id(theirs)])
        if head is None or partner is None:
            found.notes.append(f"the mapped {type(mine).__name__} and {type(theirs).__name__} did not both run")
        else:
            board.link_heads(head, partner, MAPPED)
    taken: set[int] = set()
    for api in layer_map.apis:
        _link_api(board, api, raw_paths, base_paths, taken, found)


def _link_api(board: Board, api: ApiCall, raw_paths: Paths, base_paths: Paths, taken: set[int], found: Matches) -> None:
    mine = id(api.layer) in raw_paths.of
    side, other, paths = (
        (board.target, board.golden, raw_paths) if mine else (board.golden, board.target, base_paths)
    )  # fmt: skip
    head = _head(side.modules, paths.of.get(id(api.layer), "?"))
    calls = sorted(
        op
        for one in other.apis
        if one.body.rpartition(".")[2].strip("_") == api.function.strip("_")
        for op in one.calls.get(FORWARD, {}).values()
    )
    if api.call is not None:
        calls = calls[api.call : api.call + 1]
    free = [op for op in calls if op not in taken]
    modules = list(head.calls.get(FORWARD, {}).values()) if head is not None else []
    if not modules or not free:
        found.notes.append(f"map_api: no call of {api.function!r} is left for {type(api.layer).__name__}")
        return
    for module, call in zip(modules, free, strict=False):
        taken.add(call)
        if mine:
            board.link(module, call, MAPPED)
        else:
            board.link(call, module, MAPPED)


def _head(heads: list[Head], path: str) -> Head | None:
    return next((head for head in heads if head.body == path and FORWARD in head.calls), None)


def _link_equal_modules(board: Board) -> None:
    """Modules of the same path and class, where nearly all have their like."""
    frameworks = {board.target.run.framework, board.golden.run.framework}
    if MINDSPORE in frameworks and len(frameworks) > 1:
        return
    if not modules_meet(board.target.ops, board.golden.ops):
        return
    for head in board.target.modules:
        other = board.golden.heads.get(head.name)
        if other is not None:
            board.link_heads(head, other, EQUAL, by_order=False)


def _follow(board: Board) -> None:
    """Backward calls and parameter gradients of modules that were linked before the alignment."""
    board.follow_forward()
    for op, other in enumerate(list(board.partner)):
        if other == NONE or board.target.direction[op] != FORWARD:
            continue
        head, partner = board.target.head_of[op], board.golden.head_of[other]
        if head.is_module and partner.is_module:
            for direction in head.calls.keys() & partner.calls.keys() - {FORWARD}:
                ones, others = head.calls[direction], partner.calls[direction]
                for call in ones.keys() & others.keys():
                    board.link(ones[call], others[call], board.rule[op])


def _pair_left(board: Board, found: Matches) -> None:
    """Results that linked modules give under other names (a dataclass here, a tuple there): in their order."""
    left = (
        _unpaired(board.target, {row for row, _, _ in found.rows}),
        _unpaired(board.golden, {row for _, row, _ in found.rows}),
    )
    for op in sorted(left[0].keys() | {board.back[other] for other in left[1] if board.back[other] != NONE}):
        other = board.partner[op]
        if other == NONE or not board.target.head_of[op].is_module:
            continue
        for role in (OUTPUT, INPUT):
            mine, theirs = (
                [row for row in rows.get(at, ()) if side.roles[row] == role]
                for rows, at, side in zip(left, (op, other), (board.target, board.golden), strict=True)
            )
            if role == INPUT and [board.target.shapes[row] for row in mine] != [
                board.golden.shapes[row] for row in theirs
            ]:
                continue
            found.rows += [
                (row, partner, f"{board.rule[op]}, in order") for row, partner in zip(mine, theirs, strict=False)
            ]
            if role == OUTPUT and len(mine) != len(theirs) and board.target.direction[op] == FORWARD:
                names = board.target.ops[op], board.golden.ops[other]
                found.notes.append(
                    f"{names[0]} and {names[1]} give different numbers of tensors; what both have is compared"
                )
    found.rows.sort()


def _leave_joined(raw: Values, base: Values, layer_map: LayerMap, raw_paths: Paths | None, found: Matches) -> None:
    """Layers side by side that are one layer in the other model (q, k and v): only what goes in can be compared."""
    if raw_paths is None or not layer_map.groups:
        return
    ops, roles = raw.columns["op"], raw.columns["role"]
    shapes = raw.columns["shape"], base.columns["shape"]
    for group in layer_map.groups:
        counts = len(group.one), len(group.other)
        if 1 not in counts or counts[0] == counts[1]:
            continue
        last = next(
            (raw_paths.of[id(side[-1])] for side in (group.one, group.other) if id(side[-1]) in raw_paths.of), ""
        )
        calls = {at for at, op in enumerate(map(parse_op, raw.ops)) if op.is_module and op.body == last}
        forward = {at for at in calls if _is_forward(raw.ops[at])}
        if not any(
            ops[row] in forward and roles[row] == OUTPUT and _sizes(shapes[0][row], shapes[1][other]) == max(counts)
            for row, other, _ in found.rows
        ):
            continue
        found.rows = [
            pair
            for pair in found.rows
            if ops[pair[0]] not in calls or (ops[pair[0]] in forward and roles[pair[0]] == INPUT)
        ]
        names = (" + ".join(type(layer).__name__ for layer in side) for side in (group.one, group.other))
        found.notes.append(
            f"the group {' and '.join(names)} is one layer here and several there: its outputs are not compared, "
            "what follows is"
        )


def _sizes(one: str, other: str) -> float:
    """How many times the larger of two shapes holds the smaller one."""
    small, large = sorted(prod(json.loads(shape)) for shape in (one, other))
    return large / small if small else 0


def _unpaired(side: Side, paired: set[int]) -> dict[int, list[int]]:
    """The tensors that have no partner, by call."""
    table = side.run.table
    found: dict[int, list[int]] = {}
    for row, (kind, op) in enumerate(zip(table["kind"].to_list(), table["op"].to_list(), strict=True)):
        if kind == TENSOR and row not in paired:
            found.setdefault(op, []).append(row)
    return found


def _tell_alone(board: Board, found: Matches) -> None:
    for who, side, partner, alone in (
        ("raw", board.target, board.partner, found.raw_alone),
        ("base", board.golden, board.back, found.base_alone),
    ):
        for op, other in enumerate(partner):
            if side.direction[op] == FORWARD:
                if other == NONE:
                    alone.append(side.ops[op])
                elif side is board.target:
                    found.calls[side.ops[op]] = board.golden.ops[other]
        modules = [name for name in alone if name.startswith(_MODULES)]
        if modules:
            found.notes.append(f"only in the {who} model, not compared: {shortened(modules)}")
