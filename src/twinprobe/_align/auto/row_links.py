"""From an alignment to links: linked calls, and the single rows that belong together where calls do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import permutations, product

import numpy as np

from twinprobe._align.auto.aligner import align_sides
from twinprobe._align.auto.alignment import FUSED, RESIDUAL, Alignment, Relation
from twinprobe._align.auto.fingerprints import Fingerprints, row_values_agree, same_values
from twinprobe._align.auto.rule_calls import RULE as RESULTS
from twinprobe._align.auto.rule_calls import WHOLE
from twinprobe._align.auto.rule_layers import STACK_RULE, stacked_rows
from twinprobe._align.calls import Callee, RunCalls, dims
from twinprobe._align.flow import OTHER_WAY, PART, Flow, backward_rows, group_rows, other_ways, same_but_rounding
from twinprobe._align.links import MEANING, MERGED, NONE, CallGroup, CallLinks, Groups, Pairs, from_partners
from twinprobe._align.links import RULE as NAME
from twinprobe._align.rows import pairs_of, part_rows
from twinprobe._align.turns import REORDERED, fits_shape
from twinprobe._runs.names import BACKWARD, FORWARD, GRADIENTS
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER
from twinprobe.errors import BadInput

# Rows that belong together although their calls do not pair one to one.

Rows = tuple[int, ...]
RULE = "auto"  # how the rules of an alignment begin
_MOST_LEVELS = 12
# What of split layers is what of the fused one when put together.
_TOGETHER = ((FORWARD, INPUT), (FORWARD, PARAMETER), (FORWARD, OUTPUT), (BACKWARD, INPUT), (GRADIENTS, GRADIENT))


@dataclass
class RowLinks:
    """Target row -> (golden row, rule); rows that must stay unmatched; and groups of rows against one another.

    ``only_fitting``: values of modules are paired only where shapes fit, as those of API calls always are; otherwise
    one size may differ.
    """

    pairs: dict[int, tuple[int, str]] = field(default_factory=dict)
    alone: set[int] = field(default_factory=set)
    groups: list[tuple[Rows, Rows, str]] = field(default_factory=list)
    call_groups: list[CallGroup] = field(default_factory=list)
    only_fitting: bool = False
    by_place: bool = False  # names have paired the rest
    replaced: list[int] = field(default_factory=list)  # module calls whose golden partner is of another class
    doubtful: set[str] = field(default_factory=set)  # target calls of relations that a person should look at


def apply_rows(call_links: CallLinks, pairs: Pairs, links: RowLinks) -> Pairs:
    """Add single rows to pairs that the linked calls made, and remove what must stay unmatched or does not fit."""
    height = call_links.target.run.table.height
    partners, rules = [NONE] * height, [""] * height
    ops, others = call_links.target.run.table["op"].to_list(), call_links.golden.run.table["op"].to_list()

    def fits(row: int, other: int, rule: str) -> bool:
        if not rule.startswith(RULE):
            return True
        one, two = dims(call_links.target.shapes[row]), dims(call_links.golden.shapes[other])
        if one is None or two is None or fits_shape(one, two):
            return True
        # Layers that differ in one size (a padded vocabulary, a sequence cut short) are a finding, others no pair.
        callees = call_links.target.callee_of[ops[row]], call_links.golden.callee_of[others[other]]
        is_module = callees[0].is_module and callees[1].is_module and not links.only_fitting
        return is_module and len(one) == len(two) and sum(a != b for a, b in zip(one, two, strict=True)) == 1

    for row, other, rule in zip(pairs.target.tolist(), pairs.golden.tolist(), pairs.rule, strict=True):
        if NONE not in (row, other) and row not in links.alone and fits(row, other, rule):
            partners[row], rules[row] = other, rule
    taken = set(partners)
    for row, (other, rule) in links.pairs.items():
        if partners[row] == NONE and other not in taken and fits(row, other, rule):
            partners[row], rules[row] = other, rule
            taken.add(other)
    groups: Groups = {}
    hidden: set[int] = set()
    for target, golden, rule in links.groups:
        if all(partners[row] == NONE for row in target) and taken.isdisjoint(golden):
            partners[target[0]], rules[target[0]] = golden[0], f"{rule}, {MERGED}"
            groups[target[0]] = target, golden
            taken.update(golden)
            hidden.update(golden[1:])
            for row in target[1:]:
                rules[row] = f"{rule}, part of the row of {call_links.target.names[target[0]]}"
    found = from_partners(partners, call_links.golden.run.table.height, rules, pairs.notes)
    _name_parts(call_links, found, links.call_groups)
    shown = [
        place for place, row in enumerate(found.golden.tolist()) if row not in hidden or found.target[place] != NONE
    ]
    rules = [found.rule[place] for place in shown]
    return Pairs(found.target[shown], found.golden[shown], rules, found.notes, groups, links.call_groups)


def _name_parts(call_links: CallLinks, pairs: Pairs, groups: list[CallGroup]) -> None:
    """Say of unmatched rows of calls that are equal in meaning that they are parts."""
    if not groups:
        return
    ops = call_links.target.run.table["op"].to_list(), call_links.golden.run.table["op"].to_list()
    parts = {op for group in groups for op in group.target}, {op for group in groups for op in group.golden}
    for place, (row, other) in enumerate(zip(pairs.target.tolist(), pairs.golden.tolist(), strict=True)):
        if (other == NONE and ops[0][row] in parts[0]) or (row == NONE and ops[1][other] in parts[1]):
            pairs.rule[place] = PART


def link_left_inputs(
    call_links: CallLinks, pairs: Pairs, links: RowLinks, fingerprints: tuple[Fingerprints, Fingerprints]
) -> None:
    """Inputs that linked module calls take under other names or in another order: by values, else by shapes."""
    matched = set(pairs.target[pairs.golden != NONE].tolist()), set(pairs.golden[pairs.target != NONE].tolist())
    for op, other in enumerate(call_links.partner):
        if other == NONE or call_links.target.direction[op] != FORWARD or not call_links.target.callee_of[op].is_module:
            continue
        target = [row for row in fingerprints[0].rows(op, INPUT) if row not in matched[0]]
        golden = [row for row in fingerprints[1].rows(other, INPUT) if row not in matched[1]]
        if not target or not golden:
            continue
        for row in target:
            fitting = [at for at in golden if _fits(fingerprints, row, at)]
            rivals = [at for at in target if fitting and _fits(fingerprints, at, fitting[0])]
            if len(fitting) == 1 and len(rivals) == 1:
                links.pairs[row] = fitting[0], f"{call_links.rule[op]}, input of these values"


def link_group(
    links: RowLinks, flows: tuple[Flow, Flow], target: Sequence[int], golden: Sequence[int], rule: str
) -> None:
    """Calls that are equal in meaning: what enters them and what leaves them, there and back."""
    entering, leaving, joined = group_rows(flows, target, golden)
    if not leaving and not joined:
        return
    if len(target) == len(golden) == 1 and _one_function(flows, target[0], golden[0]):
        alike = (same_but_rounding(flows[0].fingerprints, row, flows[1].fingerprints, other) for row, other in leaving)
        if False in alike:  # not equal in meaning, then: what differs may have come in by any of the arguments
            entering, leaving = _by_suffix(flows, target[0], golden[0]), []
    if _meet_around(flows, target[-1], golden[-1]):
        # Modules around give the same: what differs is another way there, -inf in a mask and a low number.
        leaving, entering = (
            [
                pair
                for pair in rows
                if row_values_agree(flows[0].fingerprints, pair[0], flows[1].fingerprints, pair[1]) is not False
            ]
            for rows in (leaving, entering)
        )
    links.groups += [(parts, others, f"{rule}{MEANING}") for parts, others in joined]
    links.call_groups.append(CallGroup(tuple(target), tuple(golden)))
    back, gradients = backward_rows(flows, target, golden, leaving)
    if back is not None:
        links.call_groups.append(back)
    for row, other in (*entering, *leaving, *gradients):
        links.pairs[row] = other, f"{rule}{MEANING}"


def _one_function(flows: tuple[Flow, Flow], op: int, other: int) -> bool:
    callees = flows[0].side.callee_of[op], flows[1].side.callee_of[other]
    return not callees[0].is_module and callees[0].name == callees[1].name


def _by_suffix(flows: tuple[Flow, Flow], op: int, other: int) -> list[tuple[int, int]]:
    """The arguments and results of two calls of one function, by their names."""
    rows = [
        dict(zip(flow.side.suffixes(at), flow.side.rows(at), strict=True))
        for flow, at in zip(flows, (op, other), strict=True)
    ]
    return [(row, rows[1][name]) for name, row in rows[0].items() if name in rows[1]]


def _meet_around(flows: tuple[Flow, Flow], op: int, other: int) -> bool:
    """Whether a module around the one call gives the same as a module around the other."""
    around = [
        [int(flow.fingerprints.first_output[module]) for module in flow.side.around(call)[:_MOST_LEVELS]]
        for flow, call in zip(flows, (op, other), strict=True)
    ]
    return any(
        NONE not in (row, at) and same_but_rounding(flows[0].fingerprints, row, flows[1].fingerprints, at)
        for row, at in product(*around)
    )


def link_by_shape(
    call_links: CallLinks, links: RowLinks, fingerprints: tuple[Fingerprints, Fingerprints], op: int, other: int
) -> None:
    """Gradients that the backward calls of two APIs list in different orders, where a shape occurs once."""
    back = call_links.target.backward(op), call_links.golden.backward(other)
    if NONE in back:
        return
    rows = fingerprints[0].rows(back[0], OUTPUT), fingerprints[1].rows(back[1], OUTPUT)
    shapes = [fingerprints[0].shape_text[row] for row in rows[0]], [fingerprints[1].shape_text[row] for row in rows[1]]
    if len(rows[0]) < 2 or Counter(shapes[0]) != Counter(shapes[1]) or shapes[0] == shapes[1]:
        return
    for row, shape in zip(rows[0], shapes[0], strict=True):
        if shapes[0].count(shape) == 1:
            links.pairs[row] = rows[1][shapes[1].index(shape)], f"{call_links.rule[op]}, gradient of this shape"


def _fits(fingerprints: tuple[Fingerprints, Fingerprints], row: int, other: int) -> bool:
    agree = row_values_agree(fingerprints[0], row, fingerprints[1], other)
    if agree is None:
        return fingerprints[0].shape_text[row] == fingerprints[1].shape_text[other]
    return agree and bool(fingerprints[0].numel[row] == fingerprints[1].numel[other])


def link_parts(
    call_links: CallLinks,
    links: RowLinks,
    fingerprints: tuple[Fingerprints, Fingerprints],
    target: list[int],
    golden: list[int],
    rule: str,
) -> None:
    """Split layers against a fused one: outputs, parameters and their gradients side by side, the input once."""
    first = fingerprints[0].rows(target[0], INPUT), fingerprints[1].rows(golden[0], INPUT)
    for row, other in product(first[0], first[1]):
        shapes = fingerprints[0].shape(row), fingerprints[1].shape(other)
        if shapes[0] is not None and shapes[1] is not None and fits_shape(shapes[0], shapes[1]):
            links.pairs[row] = other, rule
            break
    sides = (call_links.target, target), (call_links.golden, golden)
    for direction, role in _TOGETHER:
        rows = [
            _by_name(side, print_, ops, direction, role)
            for (side, ops), print_ in zip(sides, fingerprints, strict=True)
        ]
        for name, parts in rows[0].items():
            named = [rows[1][name]] if name in rows[1] else []
            for others in [*named, *rows[1].values()]:
                if len(parts) == len(target) and len(others) == len(golden) and _add_up(fingerprints, parts, others):
                    links.groups.append((tuple(parts), tuple(others), rule))
                    break


def link_stack(
    call_links: CallLinks,
    links: RowLinks,
    fingerprints: tuple[Fingerprints, Fingerprints],
    target: list[int],
    golden: list[int],
    rule: str,
) -> None:
    """Weights of several networks, stacked in one module, against those of all their layers; so their gradients."""
    turned = len(target) > 1
    whole, several = (golden, target) if turned else (target, golden)
    sides = (call_links.golden, call_links.target) if turned else (call_links.target, call_links.golden)
    held, parted = fingerprints[turned], fingerprints[not turned]
    gradients: list[dict[tuple[str, str], int]] = [{}, {}]
    for side, print_, ops, known in zip(sides, (held, parted), (whole, several), gradients, strict=True):
        for op in ops:
            for call in side.callee_of[op].calls.get(GRADIENTS, {}).values():
                known.update({_parameter(side, op, row): row for row in print_.rows(call, GRADIENT)})
    layer_of = {row: op for op in several for row in parted.parameters(op)}
    for row, parts in stacked_rows(held, held.parameters(whole[0]), parted, list(layer_of)).items():
        links.groups.append((parts, (row,), rule) if turned else ((row,), parts, rule))
        gradient = gradients[0].get(_parameter(sides[0], whole[0], row), NONE)
        others = tuple(gradients[1].get(_parameter(sides[1], layer_of[part], part), NONE) for part in parts)
        if NONE not in (gradient, *others):
            links.groups.append((others, (gradient,), rule) if turned else ((gradient,), others, rule))


def _parameter(side: RunCalls, op: int, row: int) -> tuple[str, str]:
    return side.callee_of[op].name, side.names[row].rpartition(".")[2]


def _add_up(fingerprints: tuple[Fingerprints, Fingerprints], parts: list[int], others: list[int]) -> bool:
    """Whether both sides have as many elements in all, and axes that could be joined; unknown ones may."""
    sizes = fingerprints[0].numel[parts].sum(), fingerprints[1].numel[others].sum()
    shapes = [fingerprints[0].shape(parts[0]), fingerprints[1].shape(others[0])]
    ranks = {len(shape) > 1 for shape in shapes if shape is not None}
    return not (sizes[0] != sizes[1] and np.isfinite(sizes).all()) and len(ranks) < 2


def _by_name(
    side: RunCalls, fingerprints: Fingerprints, ops: list[int], direction: str, role: int
) -> dict[str, list[int]]:
    """The rows of several calls in one role, by what they are called inside their call."""
    found: dict[str, list[int]] = {}
    for op in ops:
        calls = side.callee_of[op].calls.get(direction, {})
        call = op if direction == FORWARD else calls.get(side.call[op], next(iter(calls.values()), NONE))
        if call == NONE:
            continue
        rows = fingerprints.rows(call, role)
        if role == OUTPUT or direction == BACKWARD:
            rows = rows[:1]
        elif role == INPUT:
            rows = rows if not side.callee_of[op].is_module else []
        for row in rows:
            name = side.names[row].rpartition(".")[2] if role != OUTPUT and direction != BACKWARD else ""
            found.setdefault(name, []).append(row)
    return found


def part_residual(call_links: CallLinks, links: RowLinks, op: int, other: int, inside: str) -> None:
    """One of two linked modules returns its result with the residual added: their outputs are different things."""
    if inside == "golden":
        around = call_links.golden.parents[other]
        module = call_links.back[around] if around != NONE else NONE
    else:
        module = call_links.target.parents[op]
    if module != NONE:
        side = call_links.target
        links.alone.update([row for row in side.rows(module) if side.roles[row] == OUTPUT][:1])


# What two linked API calls take, where their arguments stand in another order: ``x * w`` and ``w * x``.

_MOST = 4
_VALUES, _SHAPE = 2, 1


def link_operands(call_links: CallLinks, links: RowLinks, fingerprints: tuple[Fingerprints, Fingerprints]) -> None:
    """Pair inputs anew, and their gradients, where values and shapes fit better in another order."""
    for op, other in enumerate(call_links.partner):
        if (
            other == NONE
            or call_links.target.direction[op] != FORWARD
            or not call_links.rule[op].startswith(f"{RULE}:")
        ):
            continue
        if call_links.target.callee_of[op].is_module or call_links.golden.callee_of[other].is_module:
            continue
        target, golden = fingerprints[0].rows(op, INPUT), fingerprints[1].rows(other, INPUT)
        if len(target) == len(golden) and 2 <= len(target) <= _MOST:
            order = _order(fingerprints, target, golden)
            _link(links, target, golden, order, call_links.rule[op])
            back = call_links.target.backward(op), call_links.golden.backward(other)
            if order and NONE not in back:
                gradients = fingerprints[0].rows(back[0], OUTPUT), fingerprints[1].rows(back[1], OUTPUT)
                if len(gradients[0]) == len(gradients[1]) == len(target):
                    _link(links, *gradients, order, call_links.rule[op])


def _link(links: RowLinks, target: list[int], golden: list[int], order: tuple[int, ...], rule: str) -> None:
    for at, to in enumerate(order):
        links.alone.add(target[at])
        links.pairs[target[at]] = golden[to], f"{rule}, argument order"


def _order(fingerprints: tuple[Fingerprints, Fingerprints], target: list[int], golden: list[int]) -> tuple[int, ...]:
    """The place among ``golden`` of each of ``target``; nothing where they stand in the same order."""
    fits = [[_fit(fingerprints, row, other) for other in golden] for row in target]
    direct = tuple(range(len(target)))
    best = max(permutations(direct), key=lambda order: (_total(fits, order), order == direct))
    # Each must fit: an order that suits one and spoils another is no order.
    if best == direct or _total(fits, best) == _total(fits, direct) or not all(fits[a][b] for a, b in enumerate(best)):
        return ()
    return best


def _total(fits: list[list[int]], order: tuple[int, ...]) -> int:
    return sum(fits[at][to] for at, to in enumerate(order))


def _fit(fingerprints: tuple[Fingerprints, Fingerprints], row: int, other: int) -> int:
    shapes = fingerprints[0].shape(row), fingerprints[1].shape(other)
    if shapes[0] is None or shapes[1] is None or not fits_shape(shapes[0], shapes[1]):
        return 0
    # Two arguments of the same statistics are told apart by their sketches.
    return _SHAPE + int(_VALUES * same_values(fingerprints[0], [row], fingerprints[1], [other])[0, 0])


_Many = tuple[Relation[str], list[int], list[int]]  # with the numbers of its calls


def link_alignment(call_links: CallLinks, alignment: Alignment, *, where: object = None) -> RowLinks:
    """Link all calls of an alignment that are still free, with their backward calls and parameter gradients.

    What cannot be said call by call (fused layers, chains of calls, residuals) comes back as links of single rows, for
    ``aligned_pairs``. ``where`` names the file that the alignment was read from.
    """
    if where is not None:
        _check_names(call_links, alignment, where)
    numbers = call_links.target.number_of, call_links.golden.number_of
    fingerprints = Fingerprints(call_links.target), Fingerprints(call_links.golden)
    many: list[_Many] = []
    callees: dict[tuple[str, str], tuple[Callee, Callee, str]] = {}
    for relation in alignment.relations:
        target = [numbers[0][name] for name in relation.target if name in numbers[0]]
        golden = [numbers[1][name] for name in relation.golden if name in numbers[1]]
        if not target or not golden:
            continue
        if (
            not relation.one_to_one
            or relation.rule in (RESULTS, WHOLE)
            or _other_way(call_links, fingerprints, target[0], golden[0])
        ):
            many.append((relation, target, golden))
        elif call_links.link(target[0], golden[0], f"{RULE}: {relation.rule}"):
            one, other = call_links.target.callee_of[target[0]], call_links.golden.callee_of[golden[0]]
            callees.setdefault((one.name, other.name), (one, other, f"{RULE}: {relation.rule}"))
            if relation.kind == RESIDUAL:
                many.append((relation, target, golden))
    call_links.follow_forward()
    _link_gradients(call_links, callees.values())
    return _row_links(call_links, many, fingerprints)


def _other_way(call_links: CallLinks, fingerprints: tuple[Fingerprints, Fingerprints], op: int, other: int) -> bool:
    """Whether two API calls give the same, but take something else: they are compared by what holds the same."""
    if call_links.target.callee_of[op].is_module or call_links.golden.callee_of[other].is_module:
        return False
    outputs = int(fingerprints[0].first_output[op]), int(fingerprints[1].first_output[other])
    if NONE in outputs:
        return False
    agree = row_values_agree(fingerprints[0], outputs[0], fingerprints[1], outputs[1])
    if agree is None:  # of one value all over
        agree = fingerprints[0].shape_text[outputs[0]] == fingerprints[1].shape_text[outputs[1]] and bool(
            np.array_equal(fingerprints[0].stats[outputs[0]], fingerprints[1].stats[outputs[1]], equal_nan=True)
        )
    if not agree:
        return False
    inputs = fingerprints[0].rows(op, INPUT), fingerprints[1].rows(other, INPUT)
    return any(
        all(row_values_agree(fingerprints[0], row, fingerprints[1], at) is False for at in inputs[1])
        for row in inputs[0]
    ) and bool(inputs[1])


def aligned_pairs(call_links: CallLinks, links: RowLinks) -> Pairs:
    """The rows of all linked calls, and those that an alignment links one by one."""
    pairs = pairs_of(call_links)
    if links.by_place and not links.replaced:
        return apply_rows(call_links, pairs, links)
    fingerprints = Fingerprints(call_links.target), Fingerprints(call_links.golden)
    if not links.by_place:
        link_left_inputs(call_links, pairs, links, fingerprints)
    pairs = apply_rows(call_links, pairs, links)
    if links.only_fitting:  # a mapping file is the user's word
        return pairs
    flows = Flow(call_links.target, fingerprints[0]), Flow(call_links.golden, fingerprints[1])
    places, reordered = other_ways(flows, pairs, links.replaced if links.by_place else None)
    for place in reordered:
        pairs.rule[place] += REORDERED
    return part_rows(pairs, places, OTHER_WAY)


def _link_gradients(call_links: CallLinks, callees: Iterable[tuple[Callee, Callee, str]]) -> None:
    """The gradients of a module's parameters, and backward calls whose number differs from their forward call's."""
    pairs = list(callees)
    met = Counter(id(callee) for pair in pairs for callee in pair[:2])
    for callee, other, rule in pairs:
        # A module whose calls belong to two others has no one partner for its gradients.
        if not (callee.is_module and other.is_module) or met[id(callee)] > 1 or met[id(other)] > 1:
            continue
        for direction in (GRADIENTS, BACKWARD):
            target, golden = callee.calls.get(direction, {}), other.calls.get(direction, {})
            free = [op for op in target.values() if call_links.partner[op] == NONE]
            others = [op for op in golden.values() if call_links.back[op] == NONE]
            if len(free) == len(others):
                for op, partner in zip(free, others, strict=True):
                    call_links.link(op, partner, rule)


def _row_links(call_links: CallLinks, many: list[_Many], fingerprints: tuple[Fingerprints, Fingerprints]) -> RowLinks:
    links = RowLinks()
    flows = Flow(call_links.target, fingerprints[0]), Flow(call_links.golden, fingerprints[1])
    for relation, target, golden in many:
        if relation.kind == RESIDUAL:
            part_residual(call_links, links, target[0], golden[0], relation.inside)
        elif all(call_links.partner[op] == NONE for op in target) and all(call_links.back[op] == NONE for op in golden):
            rule = f"{RULE}: {relation.rule}"
            if relation.rule == STACK_RULE:
                link_stack(call_links, links, fingerprints, target, golden, rule)
            elif relation.kind == FUSED:
                link_parts(call_links, links, fingerprints, target, golden, rule)
            else:
                link_group(links, flows, target, golden, f"{RULE}: ")
    link_operands(call_links, links, fingerprints)
    if call_links.across_frameworks:
        for op, other in enumerate(call_links.partner):
            if (
                other != NONE
                and not call_links.target.callee_of[op].is_module
                and call_links.target.direction[op] == FORWARD
            ):
                link_by_shape(call_links, links, fingerprints, op, other)
    return links


def link_automatically(call_links: CallLinks, *, by_results: bool = True) -> RowLinks | None:
    """Align two runs as far as no other rule has linked them; None where they have too little in common.

    Without ``by_results`` only calls of like names are paired, and only values whose shapes fit.
    """
    known = [
        (call_links.target.ops[op], call_links.golden.ops[other])
        for op, other in enumerate(call_links.partner)
        if other != NONE
    ]
    alignment = align_sides(call_links.target, call_links.golden, known, by_results=by_results)
    found, of = alignment.matched_modules, alignment.modules
    if not alignment.relations:
        if of[0] and not found[0]:
            call_links.notes.append(
                f"the names differ, and 0 of {of[0]} modules could be aligned: are these runs of the same model?"
            )
        return None
    mapped = [
        sum(
            link != NONE and side.callee_of[op].is_module and side.direction[op] == FORWARD
            for op, link in enumerate(to)
        )
        for side, to in ((call_links.target, call_links.partner), (call_links.golden, call_links.back))
    ]
    if found[0] > mapped[0]:
        left = " that the mapping leaves" if mapped[0] else ""
        call_links.notes.append(
            f"the names differ: {found[0] - mapped[0]} of {of[0] - mapped[0]} modules{left} were aligned with "
            f"{found[1] - mapped[1]} of {of[1] - mapped[1]} by structure and values (twinprobe align shows how)"
        )
    links = link_alignment(call_links, alignment)
    links.only_fitting = not by_results
    links.doubtful = {name for relation in alignment.doubtful() for name in relation.target}
    return links


def link_equal_modules(call_links: CallLinks) -> None:
    """Modules of equal name that no rule has linked; API calls of equal name and number mean nothing elsewhere."""
    for callee in call_links.target.modules:
        other = call_links.golden.callees.get(callee.name)
        if other is not None:
            call_links.link_callees(callee, other, NAME, by_order=False)


def _check_names(call_links: CallLinks, alignment: Alignment, where: object) -> None:
    """An edited alignment may name calls that do not exist; ranks of one model may lack some, but not most."""
    strange: list[str] = []
    count = 0
    for side, taken in (("target", call_links.target), ("golden", call_links.golden)):
        inner = taken.run.parents.keys()
        names = [name for relation in alignment.relations for name in getattr(relation, side)]
        count += len(names)
        missing = [name for name in names if name not in taken.number_of and name not in inner]
        if missing:
            from twinprobe._align.mapping.yaml_files import Names

            strange += [f"{missing[0]!r} is not a call of the {side} run{Names(taken.number_of).hint(missing[0])}"]
            strange += missing[1:]
    if not strange:
        return
    if 2 * len(strange) > count:
        raise BadInput(strange[0], where=str(where), hint="use the names in dump.json, or align the runs again")
    call_links.notes.append(f"{where}: {len(strange)} names are not known in this run: {strange[0]}")
