"""Where two implementations go another way and meet again: values that are no pair although their calls are.

A scale inside or outside of an embedding, a norm inside the layer that follows it, a residual added one call later: the
two calls belong together, but what one of them takes or gives is another thing. It is told from a fault by what comes
after: a fault is carried on, another way ends where both runs hold the same again. So it is with the rows of a weight
in another order (rotary positions by halves or by neighbours, heads side by side or interleaved): such values are a
pair, but for the order of their elements.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from twinprobe._align.auto.fingerprints import APART, Prints, reordered
from twinprobe._align.groups import Flow
from twinprobe._align.links import NONE, Pairs
from twinprobe._measure.pair import measure_pair
from twinprobe._runs.names import FORWARD, GRADIENTS
from twinprobe._runs.run import Run
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER

RULE = "another way to the same result"
# Two implementations differ by rounding alone; a fault in a part that adds little to a residual sum moves it more.
_CLOSE, _CLOSE_OF_COARSE = 1e-5, 1e-4
# Later steps drift: what is just too far apart to agree is not another thing, when a call makes less of it.
_CLEARLY = 10.0
_FINE = ("float32", "float64")
_MOST_STEPS = 64
_NUMBER = re.compile(r"\d+")


def other_ways(
    flows: tuple[Flow, Flow], pairs: Pairs, among: Iterable[int] | None = None
) -> tuple[list[int], list[int]]:
    """Places of pairs whose values are not the same thing, and of those in another order, as what follows shows.

    ``among``: the target's calls that may go another way, where names have paired the rest; without it, all that were
    aligned.
    """
    return _OtherWays(flows, pairs, among).places()


class _OtherWays:
    def __init__(self, flows: tuple[Flow, Flow], pairs: Pairs, among: Iterable[int] | None) -> None:
        self._flow, self._prints = flows[0], (flows[0].prints, flows[1].prints)
        self._side = flows[0].side
        self._ops = self._side.run.table["op"].to_list()
        self._partner = {
            row: (other, place)
            for place, (row, other) in enumerate(zip(pairs.target.tolist(), pairs.golden.tolist(), strict=True))
            if NONE not in (row, other) and place not in pairs.groups
            and (among is not None or pairs.rule[place].startswith("auto"))
        }  # fmt: skip
        # Value -> calls that take it, and as what.
        self._takers: dict[Hashable, list[tuple[int, int]]] = defaultdict(list)
        self._inside: dict[int, list[int]] = defaultdict(list)
        self._number: dict[int, int] = {}
        for op, direction in enumerate(self._side.direction):
            if direction == FORWARD:
                siblings = self._inside[self._side.parents[op]]
                self._number[op] = len(siblings)
                siblings.append(op)
                for row in flows[0].prints.rows(op, INPUT):
                    self._takers[flows[0].value(row)].append((op, row))
        self._among = list(self._number) if among is None else [op for op in among if op in self._number]
        self._by_name = among is not None
        runs = flows[0].side.run, flows[1].side.run
        self._apart: set[int] = set()
        if None not in (runs[0].sketch_file, runs[1].sketch_file) and self._partner:
            others = [other for other, _ in self._partner.values()]
            apart = reordered(self._prints[0], list(self._partner), self._prints[1], others)
            self._apart = {row for row, is_apart in zip(self._partner, apart.tolist(), strict=True) if is_apart}
        elif all(type(run) is not Run and not run.arrangement for run in runs):
            self._apart = self._by_tensors(*runs)

    def _by_tensors(self, target: Any, golden: Any) -> set[int]:
        """The same for two runs in memory, which have their tensors at hand; asked only where weights are so stored."""

        def is_apart(row: int) -> bool:
            one, other = target.tensor(row), golden.tensor(self._partner[row][0])
            if one is None or other is None or one.shape != other.shape:
                return False
            return (measure_pair(one, other).relative_norm or 0.0) > APART

        weights = [row for row in self._partner if self._side.roles[row] == PARAMETER]
        if not any(self._agree(row, in_order=False) and is_apart(row) for row in weights):
            return set()
        return {row for row in self._partner if self._agree(row, in_order=False) and is_apart(row)}

    def places(self) -> tuple[list[int], list[int]]:
        found: set[int] = set()
        reordered: set[int] = set()  # rows
        holders = {self._side.parents[op] for op, head in enumerate(self._side.head_of) if head.is_module}
        for op in self._among:
            outputs = self._prints[0].rows(op, OUTPUT)
            inputs = self._prints[0].rows(op, INPUT)
            given = self._agree(outputs[0]) if outputs else None
            back = self._side.backward(op)
            # Weights that differ are a finding, even where a later norm hides what they do.
            parameters = self._prints[0].parameters(op)
            weights = any(self._agree(row, in_order=False) is False for row in parameters)
            # An activation in the place of another, with the same input, is a difference and not another way.
            if self._by_name and given is False and not parameters and op not in holders and self._agree_of(op, INPUT):
                continue
            meets = given is False and not weights and self._meets_again(op)
            if not given and not meets:
                continue
            returned, passed = self._prints[0].rows(back, INPUT), self._prints[0].rows(back, OUTPUT)
            if self._apart:
                rows = [*outputs, *inputs, *parameters, *returned, *passed, *self._gradients(op)]
                reordered |= {row for row in rows if row in self._apart and self._agree(row, in_order=False)}
            if meets:
                found |= self._taken(row for row in (*outputs, *returned) if row not in reordered)
            unlike = [row for row in inputs if self._agree(row, in_order=False, times=_CLEARLY) is False]
            if unlike:
                found |= self._taken([*unlike, *passed])
            elif given:  # one added to the weights of a norm, say
                found |= self._taken(row for row in parameters if self._agree(row, in_order=False) is False)
        if reordered:
            # The same weight of another layer is stored alike, even where a fault before it hides that all meets again.
            labels = {self._label(row) for row in reordered}
            reordered |= {row for row in self._partner if self._label(row) in labels}
        if not self._by_name:
            found |= self._of_shared_weights()
        return sorted(found), sorted(self._taken(reordered) - found)

    def _gradients(self, op: int) -> list[int]:
        calls = self._side.head_of[op].calls.get(GRADIENTS, {})
        return [row for call in calls.values() for row in self._prints[0].rows(call, GRADIENT)]

    def _label(self, row: int) -> tuple[str, int, str, str]:
        """What the like row of another layer has, too: the module without numbers, the turn inside it, the argument."""
        op = self._ops[row]
        head, direction = self._side.head_of[op], self._side.direction[op]
        name = self._side.names[row].removeprefix(self._side.ops[op])
        if head.is_module:
            return _NUMBER.sub("", head.name), NONE, direction, name
        forward = self._side.forward(op)
        around = self._side.parents[forward] if forward != NONE else NONE
        module = self._side.head_of[around].name if around != NONE else ""
        return _NUMBER.sub("", module), self._number.get(forward, NONE), direction, name

    def _of_shared_weights(self) -> set[int]:
        """Gradients of a weight that two modules hold: the sum of both where it is one tensor."""
        holders: dict[Hashable, set[str]] = defaultdict(set)
        weights: dict[str, Hashable] = {}
        for op, head in enumerate(self._side.head_of):
            for row in self._prints[0].rows(op, PARAMETER) if head.is_module else ():
                value = self._flow.value(row)
                holders[value].add(head.name)
                weights[f"{head.name}.{self._side.names[row].rpartition('.')[2]}"] = value
        found = set()
        for row in self._partner:
            if self._side.roles[row] != GRADIENT or self._agree(row, in_order=False) is not False:
                continue
            name = f"{self._side.head_of[self._ops[row]].name}.{self._side.names[row].rpartition('.')[2]}"
            value = weights.get(name)
            if value is not None and len(holders[value]) > 1:
                found.add(self._partner[row][1])
        return found

    def _taken(self, rows: Iterable[int]) -> set[int]:
        return {self._partner[row][1] for row in rows if row in self._partner}

    def _agree(self, row: int, *, in_order: bool = True, times: float = 1.0) -> bool | None:
        """Whether a row and its partner hold the same but for rounding; None where nothing tells."""
        if row not in self._partner:
            return None
        if in_order and row in self._apart:
            return False
        return same_but_rounding(self._prints[0], row, self._prints[1], self._partner[row][0], times)

    def _meets_again(self, op: int) -> bool:
        """Whether everything that goes on from a call leads to a call whose values agree."""
        read = {self._flow.value(row) for row in self._prints[0].rows(op, INPUT)}
        todo, seen, met = [op], {op}, False
        while todo:
            call = todo.pop()
            taken = self._takers_of(call)
            after = [taker for taker, _ in taken]
            agree = [self._agree(row) or self._agree_of(taker, OUTPUT) for taker, row in taken]
            if not after:
                after = self._next(call, read)
                is_parent = after == [self._side.parents[call]]
                agree = [self._agree_of(taker, OUTPUT if is_parent else INPUT) for taker in after]
            if not after or len(seen) > _MOST_STEPS:
                return False
            for taker, same in zip(after, agree, strict=True):
                met |= bool(same)
                if not same and taker not in seen:
                    seen.add(taker)
                    todo.append(taker)
                    read.update(self._flow.value(row) for row in self._prints[0].rows(taker, INPUT))
        return met

    def _agree_of(self, op: int, role: int) -> bool | None:
        rows = self._prints[0].rows(op, role)
        return self._agree(rows[0]) if rows else None

    def _takers_of(self, op: int) -> list[tuple[int, int]]:
        values = {self._flow.value(row) for row in self._prints[0].rows(op, OUTPUT)} - {None}
        around = self._side.around(op)
        found = [taker for value in values for taker in self._takers.get(value, ())]
        found = [taker for taker in found if taker[0] > op and taker[0] not in around]
        # A module without a partner hands on to what it calls.
        inner = [taker for taker in found if taker[0] not in self._inside or self._agree(taker[1]) is not None]
        return inner or found

    def _next(self, op: int, read: set[Hashable]) -> list[int]:
        """What runs next and reads something else: what no recorded call takes goes on through one that is not."""
        parent = self._side.parents[op]
        for sibling in self._inside[parent][self._number[op] + 1 :]:
            values = {self._flow.value(row) for row in self._prints[0].rows(sibling, INPUT)}
            if not values <= read:
                return [sibling]
        return [parent] if parent != NONE else []


def same_but_rounding(one: Prints, row: int, other: Prints, partner: int, times: float = 1.0) -> bool | None:
    """Whether two rows hold the same but for so many times what rounding moves; None where nothing tells."""
    mine, theirs = one.listed[row], other.listed[partner]
    fine = all((prints.dtype[at] or "").endswith(_FINE) for prints, at in ((one, row), (other, partner)))
    close = times * (_CLOSE if fine else _CLOSE_OF_COARSE)
    if mine is None or theirs is None:
        if one.is_integer(row) != other.is_integer(partner):
            return False
        limits = one.stats[row, :2], other.stats[partner, :2]
        if np.isnan(limits).any():
            return None
        with np.errstate(invalid="ignore"):
            gap = abs(limits[0] - limits[1])
        return False if bool((gap > close * np.maximum(abs(limits[0]), abs(limits[1]))).any()) else None
    size = max(abs(mine[0]), abs(mine[1]), abs(theirs[0]), abs(theirs[1]))
    return (
        mine[4] == theirs[4]
        and abs(mine[3] - theirs[3]) <= close * max(mine[3], theirs[3])
        and all(abs(mine[at] - theirs[at]) <= close * size for at in range(3))
    )
