"""Which rows of two runs are compared: the user's map first, then equal names, then the automatic alignment."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from math import prod

from twinprobe._align.auto.fingerprints import Fingerprints
from twinprobe._align.auto.row_links import aligned_pairs, link_automatically, link_equal_modules
from twinprobe._align.calls import MINDSPORE, Callee, RunCalls, dims
from twinprobe._align.flow import OTHER_WAY, Flow, other_ways
from twinprobe._align.links import NONE, CallGroup, CallLinks, Pairs, modules_meet, needs_help
from twinprobe._align.place import link_places
from twinprobe._align.rows import fit_shapes, pairs_of
from twinprobe._align.turns import REORDERED
from twinprobe._live.live_run import LiveRun
from twinprobe._live.pairing.layer_map import Group, LayerMap, Paths
from twinprobe._runs.names import CONTAINERS, FORWARD, listed, parse_op
from twinprobe._runs.table import INPUT, OUTPUT, TENSOR

_MODULES = tuple(f"{container}." for container in sorted(CONTAINERS))


MAPPED = "layer map"
EQUAL = "equal names"
ROOTS = "the models"
# Notes that are about dumps; unmatched calls are listed separately.
_DUMP_NOTES = ("construct.json", "names do not meet", "in one run only", "paired by place")


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
    # By the raw row of a pair: all rows of both sides that are one tensor when put together (q, k and v; qkv).
    groups: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    call_groups: list[CallGroup] = field(default_factory=list)  # calls that do the same in other steps
    equal: bool = False  # every row of both runs has its partner, by equal names


def match_runs(
    raw: LiveRun, base: LiveRun, layer_map: LayerMap, raw_paths: Paths | None, base_paths: Paths | None, *,
    apart: set[int] | None = None,
) -> Matches:  # fmt: skip
    """Pair the inputs and outputs of two recorded models. ``apart``: calls whose weights differ."""
    equal = _match_equal_runs(raw, base) if layer_map.is_empty else None
    if equal is not None and not apart:
        return equal
    matches, links = Matches(), None
    call_links = _known_links(raw, base, layer_map, raw_paths, base_paths, matches.notes)
    if raw.ops == base.ops:
        for name, op in call_links.target.number_of.items():
            call_links.link(op, call_links.golden.number_of[name], EQUAL)
    elif not needs_help(raw, base, by_place=False):
        link_equal_modules(call_links)
    if _is_complete(call_links):
        _follow(call_links)
        pairs = pairs_of(call_links)
    else:
        raw.measure()
        base.measure()
        # From scratch: equal call numbers do not mean equal places.
        call_links = _known_links(raw, base, layer_map, raw_paths, base_paths, [])
        links = link_automatically(call_links) if needs_help(raw, base) else link_places(call_links)
        link_equal_modules(call_links)
        _follow(call_links)
        matches.doubtful = links.doubtful if links is not None else set()
        pairs = fit_shapes(raw, base, pairs_of(call_links) if links is None else aligned_pairs(call_links, links))
    if apart and (links is None or (links.by_place and not links.replaced)):
        _mark_reordered(call_links, pairs, raw, base, apart)
    matches.notes += [note for note in call_links.notes if not any(word in note for word in _DUMP_NOTES)]
    rows = list(zip(pairs.target.tolist(), pairs.golden.tolist(), pairs.rule, strict=True))
    matches.rows = [row for row in rows if NONE not in row[:2]]
    matches.call_groups = pairs.call_groups
    matches.groups = {int(pairs.target[place]): rows for place, rows in pairs.groups.items()}
    _pair_left(call_links, matches, [row for row in rows if row[2] == OTHER_WAY])
    if raw_paths is not None:
        for group in layer_map.groups:
            _leave_joined(raw, base, group, raw_paths, matches)
    _note_alone(call_links, matches)
    return matches


def _mark_reordered(call_links: CallLinks, pairs: Pairs, raw: LiveRun, base: LiveRun, apart: set[int]) -> None:
    """Weights whose elements are in another order, where names have paired the layers and later results agree again."""
    raw.measure()
    base.measure()
    target, golden = (Flow(side, Fingerprints(side)) for side in (call_links.target, call_links.golden))
    for place in other_ways((target, golden), pairs, sorted(apart))[1]:
        pairs.rule[place] += REORDERED


def _known_links(
    raw: LiveRun,
    base: LiveRun,
    layer_map: LayerMap,
    raw_paths: Paths | None,
    base_paths: Paths | None,
    notes: list[str],
) -> CallLinks:
    """The links that the user has mapped; the two models themselves belong together, whatever they are called."""
    call_links = CallLinks(raw, base)
    if raw_paths is not None and base_paths is not None:
        _link_mapped(call_links, layer_map, raw_paths, base_paths, notes)
    roots = [_callee(side.modules, "") for side in (call_links.target, call_links.golden)]
    if roots[0] is not None and roots[1] is not None:
        call_links.link_callees(roots[0], roots[1], ROOTS)
    return call_links


def _match_equal_runs(raw: LiveRun, base: LiveRun) -> Matches | None:
    """Two runs in memory whose calls all have a partner by name, with the same inputs and outputs: nothing to align.

    The usual case, recognised without the tables that the general way needs, and with the same result; None where
    the general way is needed.
    """
    if raw.live is None or base.live is None or len(raw.ops) != len(base.ops):
        return None
    is_root = [name.count(".") == 3 and name.startswith(_MODULES) and not parse_op(name).body for name in raw.ops]
    partners: list[int] | None = list(range(len(raw.ops)))
    if raw.ops != base.ops:
        partners = _by_names(raw, base, is_root)
    layouts = base.live.layouts  # the same rows, by the names within a call
    if partners is None or not all(
        own[1] == layouts[golden_op][1] for own, golden_op in zip(raw.live.layouts, partners, strict=True)
    ):
        return None
    starts, golden_starts = raw.live.starts, base.live.starts
    matches = Matches(equal=True)
    for op, (golden_op, root) in enumerate(zip(partners, is_root, strict=True)):
        shift, rule = golden_starts[golden_op] - starts[op], ROOTS if root else EQUAL
        matches.rows += [(row, row + shift, rule) for row in range(starts[op], starts[op + 1])]
        if _is_forward(raw.ops[op]):
            matches.calls[raw.ops[op]] = base.ops[golden_op]
    return matches


def _by_names(raw: LiveRun, base: LiveRun, is_root: list[bool]) -> list[int] | None:
    """By equal names, but that the two models themselves may be called otherwise. Functions need the aligner."""
    if MINDSPORE in (raw.framework, base.framework) or not all(name.startswith(_MODULES) for name in raw.ops):
        return None
    numbers = {name: number for number, name in enumerate(base.ops)}
    short = (parse_op(name) for name in base.ops if name.count(".") == 3 and name.startswith(_MODULES))
    model = next((op.cls for op in short if not op.body and op.direction == FORWARD), "")
    partners = []
    for name, root in zip(raw.ops, is_root, strict=True):
        partner = numbers.get(name)
        if partner is None and root:
            op = parse_op(name)
            partner = numbers.get(f"{op.prefix}.{model}.{op.direction}.{op.call}")
        if partner is None:
            return None
        partners.append(partner)
    return partners if len(set(partners)) == len(partners) and modules_meet(raw.ops, base.ops) else None


def _is_forward(name: str) -> bool:
    return f".{FORWARD}" in name and parse_op(name).direction == FORWARD


def _is_complete(call_links: CallLinks) -> bool:
    """Whether every forward call has its partner, so that there is nothing left to align."""
    sides = (call_links.target, call_links.partner), (call_links.golden, call_links.back)
    return not any(
        linked == NONE and side.direction[op] == FORWARD for side, partner in sides for op, linked in enumerate(partner)
    )


def _link_mapped(
    call_links: CallLinks, layer_map: LayerMap, raw_paths: Paths, base_paths: Paths, notes: list[str]
) -> None:  # fmt: skip
    for pair in [*layer_map.pairs, *((group.first[-1], group.second[-1]) for group in layer_map.groups)]:
        layer, partner = pair if id(pair[0]) in raw_paths.of else pair[::-1]
        if id(layer) not in raw_paths.of or id(partner) not in base_paths.of:
            continue
        callee = _callee(call_links.target.modules, raw_paths.of[id(layer)])
        golden_callee = _callee(call_links.golden.modules, base_paths.of[id(partner)])
        if callee is None or golden_callee is None:
            notes.append(f"the mapped {type(layer).__name__} and {type(partner).__name__} did not both run")
        else:
            call_links.link_callees(callee, golden_callee, MAPPED)
    taken: set[int] = set()
    for api in layer_map.apis:
        in_raw = id(api.layer) in raw_paths.of
        side, functions_of, paths = (
            (call_links.target, call_links.golden, raw_paths)
            if in_raw
            else (call_links.golden, call_links.target, base_paths)
        )  # fmt: skip
        callee = _callee(side.modules, paths.of.get(id(api.layer), "?"))
        calls = sorted(
            op
            for function in functions_of.apis
            if function.body.rpartition(".")[2].strip("_") == api.function.strip("_")
            for op in function.calls.get(FORWARD, {}).values()
        )
        calls = calls if api.call is None else calls[api.call : api.call + 1]
        free = [op for op in calls if op not in taken]
        modules = list(callee.calls.get(FORWARD, {}).values()) if callee is not None else []
        if not modules or not free:
            notes.append(f"map_api: no call of {api.function!r} is left for {type(api.layer).__name__}")
        for module, call in zip(modules, free, strict=False):
            taken.add(call)
            call_links.link(*((module, call) if in_raw else (call, module)), MAPPED)


def _callee(callees: list[Callee], path: str) -> Callee | None:
    return next((callee for callee in callees if callee.body == path and FORWARD in callee.calls), None)


def _follow(call_links: CallLinks) -> None:
    """Backward calls and parameter gradients of modules that were linked before the alignment."""
    call_links.follow_forward()
    for op, golden_op in enumerate(list(call_links.partner)):
        if golden_op == NONE or call_links.target.direction[op] != FORWARD:
            continue
        callee, partner = call_links.target.callee_of[op], call_links.golden.callee_of[golden_op]
        if callee.is_module and partner.is_module:
            for direction in callee.calls.keys() & partner.calls.keys() - {FORWARD}:
                target_calls, golden_calls = callee.calls[direction], partner.calls[direction]
                for call in target_calls.keys() & golden_calls.keys():
                    call_links.link(target_calls[call], golden_calls[call], call_links.rule[op])


def _pair_left(call_links: CallLinks, matches: Matches, other_way: list[tuple[int, int, str]]) -> None:
    """Results that linked modules give under other names (a dataclass here, a tuple there): in their order."""
    sides = call_links.target, call_links.golden
    grouped = [{row for rows in matches.groups.values() for row in rows[index]} for index in (0, 1)]
    left = (
        _unpaired(call_links.target, grouped[0].union(row for row, _, _ in (*matches.rows, *other_way))),
        _unpaired(call_links.golden, grouped[1].union(row for _, row, _ in (*matches.rows, *other_way))),
    )
    for op in sorted(
        left[0].keys() | {call_links.back[golden_op] for golden_op in left[1] if call_links.back[golden_op] != NONE}
    ):
        golden_op = call_links.partner[op]
        if golden_op == NONE or not call_links.target.callee_of[op].is_module:
            continue
        for role in (OUTPUT, INPUT):
            targets, goldens = (
                [row for row in rows.get(call, ()) if side.roles[row] == role]
                for rows, call, side in zip(left, (op, golden_op), sides, strict=True)
            )
            shapes = (
                [call_links.target.shapes[row] for row in targets],
                [call_links.golden.shapes[row] for row in goldens],
            )
            if role == INPUT and shapes[0] != shapes[1]:
                continue
            rule = f"{call_links.rule[op]}, in order"
            # What layers of two classes give in other sizes is not the same thing: a table's rows, and a bag's sums.
            classes = {parse_op(side.ops[call]).cls.lower() for side, call in zip(sides, (op, golden_op), strict=True)}
            sizes = [[prod(dims(shape) or ()) for shape in side] for side in shapes]
            both = zip(targets, goldens, *sizes, strict=False)
            matches.rows += [
                (row, partner, rule) for row, partner, *size in both if len(classes) == 1 or len({*size}) == 1
            ]
            if role == OUTPUT and len(targets) != len(goldens) and call_links.target.direction[op] == FORWARD:
                matches.notes.append(
                    f"{call_links.target.ops[op]} and {call_links.golden.ops[golden_op]} return different numbers of "
                    "tensors; those that both return are compared"
                )
    matches.rows.sort()


def _unpaired(side: RunCalls, paired: set[int]) -> dict[int, list[int]]:
    """The tensors that have no partner, by call."""
    table = side.run.table
    rows: dict[int, list[int]] = {}
    for row, (kind, op) in enumerate(zip(table["kind"].to_list(), table["op"].to_list(), strict=True)):
        if kind == TENSOR and row not in paired:
            rows.setdefault(op, []).append(row)
    return rows


def _leave_joined(raw: LiveRun, base: LiveRun, group: Group, raw_paths: Paths, matches: Matches) -> None:
    """Layers side by side that are one layer in the other model (q, k and v): only what goes in can be compared."""
    members = group.first, group.second
    counts = len(group.first), len(group.second)
    if 1 not in counts or counts[0] == counts[1]:
        return
    ops, roles = raw.columns["op"], raw.columns["role"]
    shapes = raw.columns["shape"], base.columns["shape"]
    last = group.last_in(raw_paths)
    calls = {number for number, op in enumerate(map(parse_op, raw.ops)) if op.is_module and op.body == last}
    forward = {call for call in calls if _is_forward(raw.ops[call])}

    def parts(target: str, golden: str) -> bool:
        """Whether one result is part of the other: as large a one as there are layers, or weights, to make it up."""
        small, large = sorted(prod(json.loads(shape)) for shape in (target, golden))
        held = [[getattr(getattr(layer, "weight", None), "shape", ()) for layer in side] for side in members]
        counted = [sum(prod(shape) if shape else 0 for shape in side) for side in held]
        as_many = counted[0] == counted[1] > 0
        return 0 < small < large and (as_many or large == max(counts) * small)

    if any(
        ops[row] in forward and roles[row] == OUTPUT and parts(shapes[0][row], shapes[1][golden_row])
        for row, golden_row, _ in matches.rows
    ):
        kept = {row for row, op in enumerate(ops) if op not in calls or (op in forward and roles[row] == INPUT)}
        matches.rows = [pair for pair in matches.rows if pair[0] in kept]
        names = (" + ".join(type(layer).__name__ for layer in side) for side in members)
        matches.notes.append(
            f"the group {' and '.join(names)} is one layer here and several there: its outputs are not compared, "
            "what follows is"
        )


def _note_alone(call_links: CallLinks, matches: Matches) -> None:
    """Tell which calls are paired, and which only one model makes."""
    raw = "raw", call_links.target, call_links.partner, matches.raw_alone
    base = "base", call_links.golden, call_links.back, matches.base_alone
    for index, (who, side, partner, alone) in enumerate((raw, base)):
        ops = side.run.table["op"]
        fused = {ops[row] for rows in matches.groups.values() for row in rows[index]}
        for op, linked in enumerate(partner):
            if side.direction[op] == FORWARD and op not in fused:
                if linked == NONE:
                    alone.append(side.ops[op])
                elif side is call_links.target:
                    matches.calls[side.ops[op]] = call_links.golden.ops[linked]
        modules = [name for name in alone if name.startswith(_MODULES)]
        if modules:
            matches.notes.append(f"only in the {who} model, not compared: {listed(modules)}")
