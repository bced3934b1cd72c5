"""Optimizers that go through their parameters in another order: their calls belong together by parameter.

A module may register its parameters in another order than golden's, and somebody may sort or group them. Then the third
call of an optimizer's loop, or the third element of its lists, is that of another parameter.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from twinprobe._align.calls import bare_path
from twinprobe._align.links import NONE, CallGroup, Pairs
from twinprobe._lazy import polars as pl
from twinprobe._runs.names import IN_OPTIMIZER, TOTAL_NORM, parse_op, updated_parameter
from twinprobe._runs.run import OPTIMIZER_FILE, Run, open_run
from twinprobe._runs.table import OUTPUT, STATS
from twinprobe.errors import TwinProbeError

Matcher = Callable[[Run, Run], Pairs]
Values = tuple[object, ...]

RULE = "place: the parameter"
_LISTED = re.compile(r"(\.(?:input|output)\.\d+)\.\d+")  # an element of a list
_NOTE = "the optimizers go through their parameters in another order: their calls were paired by parameter"


@dataclass
class ByParameter:
    """Pairs two runs with the golden run's optimizer calls in the order in which the target's take its parameters."""

    match: Matcher

    def __call__(self, target: Run, golden: Run) -> Pairs:
        """Pair two runs."""
        wanted, order = _order(target), _order(golden)
        if wanted == order or wanted.keys() != order.keys():
            return self.match(target, golden)
        sorted_run = _in_order(golden, order, {name: place for place, name in enumerate(wanted)})
        if sorted_run is None:
            return self.match(target, golden)
        run, rows, ops = sorted_run
        pairs = self.match(target, run)
        old = np.append(rows, NONE).astype(np.int32)[pairs.golden]
        moved = (old != pairs.golden) & (pairs.target != NONE) & (old != NONE)
        return Pairs(
            pairs.target,
            old,
            [RULE if is_moved else rule for rule, is_moved in zip(pairs.rule, moved.tolist(), strict=True)],
            [*pairs.notes, _NOTE] if moved.any() else pairs.notes,
            {at: (mine, tuple(int(rows[row]) for row in theirs)) for at, (mine, theirs) in pairs.groups.items()},
            [CallGroup(group.target, tuple(ops[op] for op in group.golden)) for group in pairs.call_groups],
        )


def _order(run: Run) -> dict[str, Values]:
    """The parameters in the order in which the step took them, and what it left in each; empty where nobody knows, or
    where nothing of the optimizer was recorded but what it read and wrote."""
    file = run.path.parent / OPTIMIZER_FILE
    if run.arrangement or IN_OPTIMIZER not in run.parents.values() or not file.is_file():
        return {}
    try:
        table = open_run(file).table
    except TwinProbeError:
        return {}
    written = table.filter((table["role"] == OUTPUT) & ~table["name"].str.starts_with(TOTAL_NORM))
    names = [bare_path(updated_parameter(name)) for name in written["name"]]
    found = dict(zip(names, written.select("shape", *STATS).iter_rows(), strict=True))
    return found if len(found) == len(names) else {}  # a parameter that two steps write to has no one place


def _in_order(
    run: Run, order: dict[str, Values], wanted: dict[str, int]
) -> tuple[Run, NDArray[np.int64], list[int]] | None:
    """A run with its optimizer's calls in another order of the parameters, and which rows and calls it is made of."""
    stretches = _stretches(run, list(order.items()))
    if not stretches:
        return None
    stretches.sort(key=lambda stretch: min(wanted[name] for name in stretch[1]))
    inside = sorted(op for ops, _ in stretches for op in ops)
    ops = list(range(len(run.ops)))
    for place, op in zip(inside, (op for ops, _ in stretches for op in ops), strict=True):
        ops[place] = op
    starts = np.searchsorted(run.table["op"].to_numpy(), np.arange(len(ops) + 1))
    listed = {op: [wanted[name] for name in names] for own, names in stretches if len(names) > 1 for op in own}
    names = run.table["name"].to_list()
    renamed, rows = list[str](), list[int]()
    new_ops = _renumbered([run.ops[op] for op in ops])
    for op, new in zip(ops, new_ops, strict=True):
        own = list(range(starts[op], starts[op + 1]))
        if op in listed:
            own = _elements_in_order(own, names, run.ops[op], listed[op])
        rows += own
        # A list's elements keep the names of their places.
        renamed += [new + names[row].removeprefix(run.ops[op]) for row in range(starts[op], starts[op + 1])]
    taken = np.array(rows, dtype=np.int64)
    table = run.table[taken].with_columns(
        pl.Series("name", renamed, dtype=pl.String),
        pl.Series("op", np.repeat(np.arange(len(ops)), np.diff(starts)[ops]), dtype=run.table.schema["op"]),
    )
    sorted_run = replace(run, ops=new_ops, table=table, recorded=run, kept=taken)
    return sorted_run, taken, ops


def _stretches(run: Run, order: list[tuple[str, Values]]) -> list[tuple[list[int], list[str]]]:
    """The calls that update one parameter, or with lists several, each up to the one that leaves what the step left."""
    inside = [op for op, name in enumerate(run.ops) if run.parents.get(name) == IN_OPTIMIZER]
    results = defaultdict[int, list[Values]](list)
    outputs = run.table.filter((run.table["role"] == OUTPUT) & run.table["op"].is_in(inside))
    for op, *values in outputs.select("op", "shape", *STATS).iter_rows():
        results[op].append(tuple(values))
    found, own, at = list[tuple[list[int], list[str]]](), list[int](), 0
    for op in inside:
        own.append(op)
        count = len(results[op])
        if count and results[op] == [values for _, values in order[at : at + count]]:
            found.append((own, [name for name, _ in order[at : at + count]]))
            own, at = [], at + count
    # Calls behind the last one: what this optimizer does in a loop does not end with the parameter.
    return found if at == len(order) and not own and len(found) > 0 else []


def _elements_in_order(rows: list[int], names: list[str], op: str, places: list[int]) -> list[int]:
    """A call's rows with the elements of its lists, one for each parameter, sorted by the parameters' places."""
    lists = defaultdict[str, list[int]](list)
    for at, row in enumerate(rows):
        listed = _LISTED.fullmatch(names[row].removeprefix(op))
        if listed is not None:
            lists[listed[1]].append(at)
    found = list(rows)
    order = sorted(range(len(places)), key=places.__getitem__)
    for own in lists.values():
        if len(own) == len(order):
            for at, other in zip(own, order, strict=True):
                found[at] = rows[own[other]]
    return found


def _renumbered(ops: list[str]) -> list[str]:
    """Names of calls that stand in another order, with numbers that count on."""
    seen = Counter[str]()
    numbers = defaultdict[str, list[int]](list)
    parsed = [parse_op(op) for op in ops]
    for op in parsed:
        numbers[op.without_call].append(op.call)
    for known in numbers.values():
        known.sort()
    names = []
    for op in parsed:
        kind = op.without_call
        names.append(op.renumbered(numbers[kind][seen[kind]]))
        seen[kind] += 1
    return names
