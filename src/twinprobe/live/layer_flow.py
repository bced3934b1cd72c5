"""Layers by what flows into them: what reads the result of paired layers is a pair itself."""

from __future__ import annotations

from collections import defaultdict

from twinprobe.live.layer_trees import Tree, sizes_of
from twinprobe.live.live_run import Values
from twinprobe.record.rows import Row
from twinprobe.runs.names import FORWARD, parse_op
from twinprobe.runs.table import INPUT, OUTPUT

Pair = tuple[str, str]


def pair_by_flow(target: Tree, source: Tree, one: Values, other: Values, pairs: list[Pair]) -> None:
    """Add every layer that no rule has paired and whose input comes from a paired layer, until none is left."""
    feeds = _feeding(target, one), _feeding(source, other)
    while True:
        known = {pair[0]: pair[1] for pair in reversed(pairs)}
        taken = set(known), {pair[1] for pair in pairs}
        found = []
        for path in target.holding:
            if path in taken[0]:
                continue
            sources = {known[feeder] for feeder in feeds[0].get(path, ()) if feeder in known}
            fitting = [
                to
                for to in source.holding
                if to not in taken[1]
                and sources & feeds[1].get(to, set())
                and sizes_of(source.weights[to].values()) == sizes_of(target.weights[path].values())
            ]
            if len(fitting) == 1:
                found.append((path, fitting[0]))
        ends = [[pair[at] for pair in found] for at in (0, 1)]
        found = [pair for pair in found if ends[0].count(pair[0]) == ends[1].count(pair[1]) == 1]
        if not found:
            return
        pairs += found


def _feeding(tree: Tree, run: Values) -> dict[str, set[str]]:
    """For each layer that holds weights: the layers whose result it takes as it is."""
    made: dict[Row, str] = {}
    taken: dict[str, set[Row]] = defaultdict(set)
    names = [parse_op(name) for name in run.ops]
    notes = run.live.value if run.live is not None else []
    for row, (op, role) in enumerate(zip(run.columns["op"], run.columns["role"], strict=True)):
        name, held = names[op], getattr(notes[row], "row", None)
        if held is None or not name.is_module or name.direction != FORWARD or not tree.weights.get(name.body):
            continue
        if role == OUTPUT:
            made.setdefault(held, name.body)
        elif role == INPUT:
            taken[name.body].add(held)
    return {path: {made[one] for one in ones if one in made} for path, ones in taken.items()}
