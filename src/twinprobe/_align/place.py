"""Pairing by place: the same call is the one in the same module, of the same API, at the same turn.

The number in a recorded name counts all calls of an API in a run, so one more call anywhere shifts every number behind
it. Here both call trees are walked together instead: what two paired module calls enclose are two sequences, and these
are aligned by path or API, order, shapes, dtypes and values, in that order of trust.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Iterable

import numpy as np

from twinprobe._align.auto.fingerprints import row_values_agree
from twinprobe._align.auto.row_links import RowLinks, link_group
from twinprobe._align.auto.tree import ROOT
from twinprobe._align.calls import RunCalls, bare_path, dims, renumbered, split
from twinprobe._align.flow import Flow, free_pieces, where_values_meet
from twinprobe._align.links import NONE, CallGroup, CallLinks, Pairs, link_equal_names
from twinprobe._align.links import RULE as NAME
from twinprobe._align.siblings import Calls, NodePairs, Siblings, shifted_layers
from twinprobe._measure.sketch import estimate_pairs
from twinprobe._runs.names import BACKWARD, FORWARD, GRADIENTS
from twinprobe._runs.run import Run
from twinprobe._runs.table import INPUT, OUTPUT, PARAMETER

RULE = "place"
BOUNDARY = "place: the model as a whole"
PARTS = "place: a batch in parts"
_SHARE = 5  # fewer than one layer in so many: two models, not one


def link_places(call_links: CallLinks, *, grouped: bool = True) -> RowLinks | None:
    """Link what no earlier rule has linked and what lies at the same place in both runs.

    ``grouped``: where the runs compute the same in other steps, these come back as groups of calls, for
    ``aligned_pairs``.
    """
    if not call_links.both_forward:
        link_equal_names(call_links)
        return None
    before = list(call_links.partner)
    # Where two ways are equally good, the first found wins: one order is always taken, so that swapped runs give the
    # mirrored answer.
    turned = _order(call_links.golden) < _order(call_links.target)
    given = [(other, op) if turned else (op, other) for op, other in enumerate(call_links.partner) if other != NONE]
    walk = _Walk((call_links.golden, call_links.target) if turned else (call_links.target, call_links.golden), given)
    if not given and (links := _link_boundary(call_links, walk, turned)):
        return links
    if not walk.is_one_model() and not given:
        return _link_unlike(call_links, walk, turned)
    doubt = "are these runs of the same model?"  # of what no layer could be aligned with: they are
    call_links.notes[:] = [note for note in call_links.notes if not note.endswith(doubt)]
    for pair in walk.pairs():
        _link_at_place(call_links, *(pair[::-1] if turned else pair))
    call_links.follow_forward()
    for pair in walk.way_back():
        call_links.link(*(pair[::-1] if turned else pair), RULE)
    _link_gradients(call_links, ({}, walk.shifts) if turned else (walk.shifts, {}))
    _link_the_rest(call_links)
    links = RowLinks(by_place=True)
    if grouped:
        callees = call_links.target.callee_of, call_links.golden.callee_of
        # A port may multiply before a product what the other run multiplies after it.
        ported = call_links.target.run.framework != call_links.golden.run.framework
        links.replaced = [
            op for op, other in enumerate(call_links.partner)
            if other != NONE and call_links.target.direction[op] == FORWARD
            and (ported if not callees[0][op].is_module
                 else callees[0][op].name.rpartition(".")[2] != callees[1][other].name.rpartition(".")[2])
        ]  # fmt: skip
        flows = walk.flows()
        for group in walk.groups(flows):
            link_group(links, flows[::-1] if turned else flows, *(group[::-1] if turned else group), f"{RULE}: ")
    _add_notes(call_links, before, links.call_groups)
    for path, shift in walk.shifts.items():
        first = f"{path}.0 is the other's {path}.{shift}" if shift > 0 else f"{path}.{-shift} is the other's {path}.0"
        who = "golden" if turned else "target"
        call_links.notes.append(f"by their weights the {who} run's {first}: paired so, as a stage of the model")
    return links if links.call_groups or links.replaced else None


def _link_at_place(call_links: CallLinks, op: int, other: int) -> None:
    call_links.link(op, other, NAME if call_links.target.ops[op] == call_links.golden.ops[other] else RULE)


def _link_boundary(call_links: CallLinks, walk: _Walk, turned: bool) -> RowLinks | None:
    """The model as a whole against what is inside it, and what comes after it in both runs: the loss, an optimizer."""
    rows = _at_the_boundary(walk.one, walk.other, walk.back) or [
        (other, row) for row, other in _at_the_boundary(walk.other, walk.one, walk.link)
    ]
    if not rows:
        return None
    call_links.notes[:] = [  # in place of what was said where no layer could be aligned
        "one run has the whole model as a single call (compiled, for example), the other only the calls inside: "
        "its inputs and outputs were paired; to see more, record both runs without compiling"
    ]
    for pair in walk.pairs():
        _link_at_place(call_links, *(pair[::-1] if turned else pair))
    call_links.follow_forward()
    pairs = dict(pair[::-1] if turned else pair for pair in rows)
    return RowLinks({row: (other, BOUNDARY) for row, other in pairs.items()}, by_place=True)


def _link_unlike(call_links: CallLinks, walk: _Walk, turned: bool) -> RowLinks | None:
    """Two runs that share no layer: parts of a batch?"""
    sides = walk.one, walk.other
    parts = _in_parts(*sides) or [pair[::-1] for pair in _in_parts(*sides[::-1])]
    if parts:
        call_links.notes.append(
            "one run computes in parts what the other computes at once (micro batches): modules were compared by "
            "their concatenated parts; gradients were not compared, since they depend on how losses are scaled"
        )
        return RowLinks(groups=[(*(pair[::-1] if turned else pair), PARTS) for pair in parts], by_place=True)
    call_links.notes.append(
        "the two runs share no layer of the same path and weights: are these runs of the same model?"
    )
    return None


def _at_the_boundary(whole: Calls, parts: Calls, linked: Container[int]) -> list[tuple[int, int]]:
    """Rows of a call of the whole model, and of the outermost calls of a run that did not record the model itself, but
    for those with a partner (``linked``), which come after it.

    What goes in by name, shape and value; what comes out by shape and value, and the model's first result by its shape
    alone, the last of that shape. Without an input and a result in common there is nothing: any two models may give
    tensors of one shape.
    """
    if len(whole.models) != 1 or parts.models or whole.tree.children[whole.models[0]]:
        return []
    op = whole.tree.op[whole.models[0]]
    outside = [node for node in parts.children[ROOT] if node not in linked]
    outermost = [parts.tree.op[node] for node in outside if parts.tree.op[node] != NONE]
    found: dict[int, list[tuple[int, int]]] = {}
    for role, calls in ((INPUT, outermost), (OUTPUT, outermost[::-1])):
        rows = [row for call in calls for row in parts.fingerprints.rows(call, role)]
        pairs = found[role] = []
        for row in whole.fingerprints.rows(op, role):
            look = whole.fingerprints.shape_text[row], whole.fingerprints.dtype[row]
            like = [
                other
                for other in rows
                if (parts.fingerprints.shape_text[other], parts.fingerprints.dtype[other]) == look
            ]
            same = [other for other in like if _hold_the_same(whole, row, parts, other)]
            if role == INPUT or same or (pairs and len(like) > 1):
                like = same
            if like:
                rows.remove(like[0])
                pairs.append((row, like[0]))
    return found[INPUT] + found[OUTPUT] if found[INPUT] and found[OUTPUT] else []


def _in_parts(many: Calls, few: Calls) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Rows of modules that one run calls several times as often, each time for a part of the batch."""
    queues: list[dict[Hashable, list[int]]] = [defaultdict(list), defaultdict(list)]
    for calls, queue in zip((many, few), queues, strict=True):
        for node in calls.tree.modules:
            if calls.tree.op[node] != NONE:
                queue[calls.key[node]].append(calls.tree.op[node])
    shared = [(queues[0][key], queues[1][key]) for key in queues[0] if key in queues[1]]
    times = {len(ops) / len(others) for ops, others in shared}
    if len(times) != 1 or (count := times.pop()) < 2 or not count.is_integer():
        return []
    found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    # Of the run with fewer: what is called least is called once each.
    batches = min(len(others) for _, others in shared)
    for ops, others in shared:
        each = len(others) // batches if len(others) % batches == 0 else len(others)
        for at, other in enumerate(others):
            begin = at // each * int(count) * each
            # The last part stands for all: what comes after it comes after the whole.
            parts = ops[begin + at % each : begin + int(count) * each : each][::-1]
            for role in (INPUT, PARAMETER, OUTPUT):
                whole = few.fingerprints.rows(other, role)
                rows = [many.fingerprints.rows(op, role) for op in parts]
                if {len(one) for one in rows} != {len(whole)}:
                    continue
                for place, row in enumerate(whole):
                    shapes = [dims(many.fingerprints.shape_text[one[place]]) for one in rows]
                    shape = dims(few.fingerprints.shape_text[row])
                    if role == PARAMETER and shapes[0] == shape:
                        found.append(((rows[0][place],), (row,)))
                    elif shape and all(shapes) and [sum(one[0] for one in shapes if one), *shape[1:]] == [
                        shape[0], *(shapes[0] or ())[1:]
                    ]:  # fmt: skip
                        found.append((tuple(one[place] for one in rows), (row,)))
    return found


def _hold_the_same(one: Calls, row: int, other: Calls, partner: int) -> bool:
    """Whether nothing speaks against two rows holding the same; of integers only sketches tell."""
    sketches = one.side.run.sketches, other.side.run.sketches
    found = estimate_pairs(*sketches, np.array([row]), np.array([partner]))
    differ = found is not None and bool(found.lower[0] > 0)
    return not differ and row_values_agree(one.fingerprints, row, other.fingerprints, partner) is not False


def note_of_other_places(target: Run, golden: Run, pairs: Pairs) -> list[str]:
    """A warning where equal numbers have paired calls that lie in different modules."""
    if target.ops == golden.ops or not (target.parents and golden.parents):
        return []
    ops = target.table["op"].to_list(), golden.table["op"].to_list()
    together = {
        (ops[0][row], ops[1][other])
        for row, other in zip(pairs.target.tolist(), pairs.golden.tolist(), strict=True)
        if row >= 0 and other >= 0
    }
    apart = [
        target.ops[one]
        for one, other in sorted(together)
        if _module_around(target, one) != _module_around(golden, other)
    ]
    if not apart:
        return []
    calls = "1 call was" if len(apart) == 1 else f"{len(apart):,} calls were"
    return [f"{calls} paired by number with a call of another module, {apart[0]} first; --pair place goes by the place"]


def _module_around(run: Run, op: int) -> str:
    callee, direction, _ = split(run.parents.get(run.ops[op]) or "")
    return bare_path(callee.partition(".")[2].rpartition(".")[0]) if direction else ""


def _order(side: RunCalls) -> tuple[int, list[str], str]:
    return len(side.ops), side.ops, str(side.run.path)


def _link_gradients(call_links: CallLinks, shifts: tuple[dict[str, int], dict[str, int]]) -> None:
    """Gradients of parameters belong to the module's path, and where each has its backward call, to that one.

    Otherwise, where one run has fewer of them, they are its last. But those of a module that is never called, a table
    that others read, are parts of a sum where one run has more: no pair.
    """
    queues: list[dict[str, list[int]]] = [defaultdict(list), defaultdict(list)]
    owners = _gradients_of_backward(call_links.target), _gradients_of_backward(call_links.golden)
    for backward, op in owners[0].items():
        other = owners[1].get(call_links.partner[backward], NONE)
        if other != NONE and Counter(CallLinks.shapes(call_links.target, op)) == Counter(
            CallLinks.shapes(call_links.golden, other)
        ):
            _link_at_place(call_links, op, other)
    sides = (
        (call_links.target, call_links.partner, queues[0], shifts[0]),
        (call_links.golden, call_links.back, queues[1], shifts[1]),
    )
    for side, taken, queue, shift in sides:
        for callee in side.callees.values():
            if GRADIENTS in callee.calls:
                path = renumbered(bare_path(callee.body), shift)
                queue[path] += [op for op in callee.calls[GRADIENTS].values() if taken[op] == NONE]
    for path, ops in queues[0].items():
        others = queues[1].get(path, [])
        called = call_links.target.callee_of[ops[0]].calls.keys() > {GRADIENTS} if ops else True
        for op, other in (
            zip(reversed(ops), reversed(others), strict=False) if called or len(ops) == len(others) else ()
        ):
            # Their order is that of the backward pass: a bias may be done before its weight.
            shapes = (
                Counter(CallLinks.shapes(call_links.target, op)),
                Counter(CallLinks.shapes(call_links.golden, other)),
            )
            if shapes[0] == shapes[1]:
                _link_at_place(call_links, op, other)


def _gradients_of_backward(side: RunCalls) -> dict[int, int]:
    """The gradients that each backward call has left, where a module has as many of the one as of the other."""
    found: dict[int, int] = {}
    for callee in side.callees.values():
        backward, gradients = callee.calls.get(BACKWARD, {}), callee.calls.get(GRADIENTS, {})
        if len(backward) == len(gradients):
            found.update(zip(sorted(backward.values()), sorted(gradients.values()), strict=True))
    return found


def _link_the_rest(call_links: CallLinks) -> None:
    """What is no call (saved values, names outside the grammar) goes by name, a lone backward call by its order."""
    for callee in call_links.target.callees.values():
        other = call_links.golden.callees.get(callee.name)
        if other is None:
            continue
        for direction, calls in callee.calls.items():
            if direction not in (FORWARD, BACKWARD, GRADIENTS):
                for call, op in calls.items():
                    if call in other.calls.get(direction, {}):
                        call_links.link(op, other.calls[direction][call], NAME)
        call_links.link_in_order(
            call_links.free([callee], BACKWARD), call_links.free([other], BACKWARD, golden=True), NAME
        )


def _add_notes(call_links: CallLinks, before: list[int], groups: list[CallGroup]) -> None:
    parts = {op for group in groups for op in group.target}, {op for group in groups for op in group.golden}
    alone = sum(
        link == NONE and side.direction[op] == FORWARD and op not in inside
        for side, links, inside in zip(
            (call_links.target, call_links.golden), (call_links.partner, call_links.back), parts, strict=True
        )
        for op, link in enumerate(links)
    )
    moved = any(
        rule == RULE and call_links.target.direction[op] == FORWARD and old == NONE
        for op, (rule, old) in enumerate(zip(call_links.rule, before, strict=True))
    )
    calls = "1 call exists" if alone == 1 else f"{alone:,} calls exist"
    if groups:
        call_links.notes += _note_of_groups(groups, call_links)
    if alone and any(link != NONE for link in call_links.partner):
        call_links.notes.append(f"{calls} in one run only; the rest was paired by place")
    elif moved:
        call_links.notes.append(
            "both runs make the same calls under different names or numbers; they were paired by place"
        )


def _note_of_groups(groups: list[CallGroup], call_links: CallLinks) -> list[str]:
    callees = call_links.target.callee_of, call_links.golden.callee_of
    forward = [
        group for group in groups if call_links.target.direction[group.target[0]] == FORWARD
        and [callees[0][op].name for op in group.target] != [callees[1][op].name for op in group.golden]
    ]  # fmt: skip
    if not forward:
        return []
    one, other = sum(len(group.target) for group in forward), sum(len(group.golden) for group in forward)
    where = "1 place" if len(forward) == 1 else f"{len(forward):,} places"
    return [
        f"in {where} the runs compute the same in different steps ({one:,} calls against {other:,}), compared as one"
    ]


class _Walk:
    """Two call trees, walked together from the top."""

    def __init__(self, sides: tuple[RunCalls, RunCalls], given: NodePairs) -> None:
        nested = all(side.has_hierarchy for side in sides)
        self.one, self.other = (Calls(side, nested=nested) for side in sides)
        self.shifts = shifted_layers(self.one, self.other)
        if self.shifts:
            self.one.renumber(self.shifts)
        self._siblings = Siblings(self.one, self.other)
        self.link: dict[int, int] = {ROOT: ROOT}
        self.back: dict[int, int] = {ROOT: ROOT}
        nodes = self.one.node_of, self.other.node_of
        known = [(nodes[0][op], nodes[1][other]) for op, other in given if op in nodes[0] and other in nodes[1]]
        for one, other in known:
            self._join(one, other)
        self._descend([(ROOT, ROOT), *known])
        self._join_by_path()
        models = self.one.models, self.other.models
        if len(models[0]) == len(models[1]):
            for one, other in zip(*models, strict=True):
                if one not in self.link and other not in self.back:
                    self._join(one, other)

    def pairs(self) -> Iterable[tuple[int, int]]:
        """Pairs of recorded calls."""
        for one, other in self.link.items():
            ops = self.one.tree.op[one], self.other.tree.op[other]
            if NONE not in ops:
                yield ops

    def way_back(self) -> Iterable[tuple[int, int]]:
        """Pairs of backward calls where one run computed a module again, and only that second time has a way back."""
        for turned in (False, True):
            scopes = self._computed_again(turned=turned)
            while scopes:
                scope = scopes.pop()
                ops = self.one.backward(scope[0]), self.other.backward(scope[1])
                if NONE not in ops:
                    yield ops
                scopes += self._siblings.aligned(self.one.children[scope[0]], self.other.children[scope[1]], scope)

    def _computed_again(self, *, turned: bool) -> list[tuple[int, int]]:
        """Calls that a backward pass of one run (the other if ``turned``) made again, with their partners."""
        calls, others, link = (self.other, self.one, self.back) if turned else (self.one, self.other, self.link)
        modules: dict[Hashable, list[int]] = defaultdict(list)
        inside: dict[int, list[int]] = defaultdict(list)  # by the module whose backward call encloses them
        for node in calls.children[ROOT]:
            if node not in link and calls.backward(node) != NONE:
                if calls.tree.is_module[node]:
                    modules[calls.key[node]].append(node)
                inside[calls.recomputed_in(node)].append(node)
        first = sorted(node for node in link if calls.key[node] in modules and calls.backward(node) == NONE)
        found = [(modules[calls.key[node]].pop(0), link[node]) for node in first if modules[calls.key[node]]]
        # Checkpoints inside a module's forward repeat its calls but not the call of the module itself.
        for node, again in inside.items():
            if node in link:
                sides, scope = (again, others.children[link[node]]), (node, link[node])
                if turned:
                    twins = self._siblings.aligned(sides[1], sides[0], (scope[1], scope[0]))
                    found += [(node, partner) for partner, node in twins if not calls.tree.is_module[node]]
                else:
                    twins = self._siblings.aligned(*sides, scope)
                    found += [pair for pair in twins if not calls.tree.is_module[pair[0]]]
        return [(other, one) for one, other in found] if turned else found

    def flows(self) -> tuple[Flow, Flow]:
        """How values flow through both runs."""
        return Flow(self.one.side, self.one.fingerprints), Flow(self.other.side, self.other.fingerprints)

    def groups(self, flows: tuple[Flow, Flow]) -> Iterable[tuple[list[int], list[int]]]:
        """Calls that only one run makes, beside others that only the other makes at the same place."""
        trees = self.one.tree, self.other.tree
        layers = [{node for node in calls.tree.modules if calls.weights(node)} for calls in (self.one, self.other)]
        for piece in free_pieces(trees, (self.link, self.back), (layers[0], layers[1])):
            mine, theirs = (
                [tree.op[node] for node in nodes if tree.op[node] != NONE]
                for tree, nodes in zip(trees, piece, strict=True)
            )
            for one, other, _ in where_values_meet(flows, mine, theirs):
                yield one, other

    def is_one_model(self) -> bool:
        """Whether more than a chance few of the layers (or else the calls) belong together."""
        sizes = [sum(bool(calls.weights(node)) for node in calls.tree.modules) for calls in (self.one, self.other)]
        if all(sizes):
            paired = 0
            for node, other in self.link.items():
                held = self.one.weights(node), self.other.weights(other)
                both = held[0].keys() & held[1].keys()  # a norm folded into a layer leaves it a bias
                alike = both and all(held[0][name] == held[1][name] for name in both)
                paired += bool(self.one.tree.is_module[node] and alike)
            return paired * _SHARE >= min(sizes) or self._has_levels_in_common()
        return (len(self.link) - 1) * _SHARE >= min(len(self.one.tree), len(self.other.tree)) - 1

    def _has_levels_in_common(self) -> bool:
        """Whether most of what has modules inside gives tensors of equal shapes: branches folded into one layer."""
        sides = (self.one, self.other)
        levels = [
            {node for node in calls.tree.modules if any(calls.tree.is_module[inner] for inner in calls.children[node])}
            for calls in sides
        ]
        shapes = [calls.fingerprints.shape_text for calls in sides]
        alike = 0
        for node in levels[0] & self.link.keys():
            given = [
                [text[row] for row in calls.fingerprints.rows(calls.tree.op[place], OUTPUT)]
                for calls, text, place in zip(sides, shapes, (node, self.link[node]), strict=True)
            ]
            alike += self.link[node] in levels[1] and given[0] == given[1]
        return alike > 1 and 2 * alike > min(map(len, levels))

    def _join(self, one: int, other: int) -> None:
        self.link[one] = other
        self.back[other] = one
        wrappers = self.one.wrapper.get(one), self.other.wrapper.get(other)
        if None not in wrappers and wrappers[0] not in self.link and wrappers[1] not in self.back:
            self._join(*wrappers)  # type: ignore[arg-type]

    def _descend(self, scopes: NodePairs) -> None:
        while scopes:
            scope = scopes.pop()
            mine = [node for node in self.one.children[scope[0]] if node not in self.link]
            theirs = [node for node in self.other.children[scope[1]] if node not in self.back]
            for one, other in self._siblings.aligned(mine, theirs, scope):
                self._join(one, other)
                if self.one.tree.is_module[one]:
                    scopes.append((one, other))

    def _join_by_path(self) -> None:
        """Modules whose surroundings exist in one run only: the path is their name, wherever they were called from."""
        queues: list[dict[Hashable, list[int]]] = [defaultdict(list), defaultdict(list)]
        sides = (self.one, self.link, queues[0]), (self.other, self.back, queues[1])
        for calls, link, queue in sides:
            for node in calls.tree.modules:
                if node not in link:
                    queue[calls.key[node]].append(node)
        for key, mine in queues[0].items():
            theirs = queues[1].get(key)
            if not theirs:
                continue
            if len(mine) == len(theirs) == 1 and self.one.weights(mine[0]) == self.other.weights(theirs[0]) != {}:
                self._join(mine[0], theirs[0])  # called once in each run: other shapes are a finding
                self._descend([(mine[0], theirs[0])])
                continue
            around: list[dict[int, list[int]]] = [defaultdict(list), defaultdict(list)]
            for (calls, link, _), nodes, found in zip(sides, (mine, theirs), around, strict=True):
                for node in nodes:
                    if node not in link:
                        found[self._linked_above(calls, link, node)].append(node)
            for above, nodes in around[0].items():
                for one, other in self._siblings.by_score(nodes, around[1].get(self.link[above], [])):
                    self._join(one, other)
                    self._descend([(one, other)])

    @staticmethod
    def _linked_above(calls: Calls, link: dict[int, int], node: int) -> int:
        node = calls.around[node]
        while node not in link:
            node = calls.around[node]
        return node
