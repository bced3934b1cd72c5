"""What pairs two runs: all mapping options as one matcher. What a run does not need is not even imported."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from twinprobe._align.calls import bare_path
from twinprobe._align.links import NONE, RULE, CallGroup, Pairs, from_partners, needs_help
from twinprobe._align.mapping import MappingOptions
from twinprobe._lazy import polars as pl
from twinprobe._runs.names import BACKWARD, IN_OPTIMIZER, OPTIMIZER, TOTAL_NORM, parse_op, updated_parameter
from twinprobe._runs.run import OPTIMIZER_FILE, Run, open_run
from twinprobe._runs.table import OUTPUT, PARAMETER, STATS
from twinprobe.errors import TwinProbeError


@dataclass
class NamesMatcher:
    """Pair equal names at the same place; where names differ, use everything else that TwinProbe knows."""

    options: MappingOptions

    def __call__(self, target: Run, golden: Run) -> Pairs:
        """Pair two runs."""
        by_place = self.options.pair == "place"
        if target.framework != golden.framework and target.path.name == golden.path.name == OPTIMIZER_FILE:
            return match_updates(target, golden)
        # Two frameworks call the same function with other names of its arguments.
        same_calls = target.ops == golden.ops and target.framework == golden.framework
        if same_calls or target.single_points:
            pairs = match_names(target, golden)
            alike = target.table["shape"].equals(golden.table["shape"], null_equal=True)
            if alike or not by_place or target.single_points:
                return pairs
        elif not by_place and (self.options.align == "names" or not needs_help(target, golden, by_place=False)):
            from twinprobe._align.place import note_of_other_places

            pairs = match_names(target, golden)
            pairs.notes += note_of_other_places(target, golden, pairs)
            return pairs
        else:
            from twinprobe._align.mapping.mapped import read_mappings

            pairs = read_mappings(self.options, by_results=True)(target, golden)
            if not by_place:
                return pairs
        from twinprobe._align.rows import fit_shapes

        return fit_shapes(target, golden, pairs)


def build_matcher(options: MappingOptions) -> Callable[[Run, Run], Pairs]:
    """A matcher that can travel to worker processes.

    All mapping files are read now, so that a bad one is met before any dump is opened.
    """
    named = options.fuzzy or options.api or options.cell or options.data or options.layer or options.alignment
    if not named and options.align != "none":
        names = NamesMatcher(options)
        return ByParameter(names) if options.pair == "place" and options.align == "auto" else names
    from twinprobe._align.mapping.mapped import read_mappings

    return read_mappings(options, by_results=False)


# Equal names belong together.


def match_names(target: Run, golden: Run) -> Pairs:
    """Pair rows of equal name; backward calls by their order of appearance, on both sides."""
    places = [run.table.select("op", "name") for run in (target, golden)]
    # The same rows in the same order, none of them twice: each belongs to the one at its place.
    unique = target.ops == golden.ops and places[0]["name"].n_unique() == target.table.height
    if unique and places[0].equals(places[1]):
        rows = np.arange(target.table.height, dtype=np.int32)
        return Pairs(rows, rows.copy(), [RULE] * len(rows))
    return join_names(target, golden)


def join_names(target: Run, golden: Run) -> Pairs:
    """The same for any two runs, key by key."""
    return _join(row_keys(target, op_keys(target)), row_keys(golden, op_keys(golden)))


# What MindSpore calls the parameters of a normalisation and of a table, and PyTorch and Paddle do.
_WORDS = {"gamma": "weight", "beta": "bias", "embedding_table": "weight"}


def match_updates(target: Run, golden: Run, names: Mapping[str, str] | None = None) -> Pairs:
    """Pair what the optimizers of two frameworks did: by parameter, by the optimizer's place among all, and by step.

    ``names`` are golden's names of the target's parameters where they are known to be others. What is left over in the
    same module, and is the only parameter of its shape there, has another name as well (``cls``, ``cls_token``).
    """
    sides, places = [], []
    for run, known in ((target, names or {}), (golden, {})):
        kinds: dict[str, int] = {}  # Momentum here is SGD there: the first belongs to the first
        keys, alike = [], []
        shapes = dict(run.table.filter(run.table["role"] == OUTPUT).select("op", "shape").iter_rows())
        for number, op in enumerate(run.ops):
            name, kind, step, _ = op.removeprefix(OPTIMIZER).rsplit(".", 3)
            path, _, word = known.get(name, name).rpartition(".")
            which = f"{kinds.setdefault(kind, len(kinds))} {step}"
            keys.append(f"{path}.{_WORDS.get(word, word)} {which}")
            alike.append(f"{path} {shapes.get(number)} {which}")
        sides.append(keys)
        places.append(alike)
    alone = []
    for keys, alike, there in zip(sides, places, (set(sides[1]), set(sides[0])), strict=True):
        rest = [(place, key) for place, key in zip(alike, keys, strict=True) if key not in there]
        often = Counter(place for place, _ in rest)
        alone.append({place: key for place, key in rest if often[place] == 1})
    renamed = {key: alone[1][place] for place, key in alone[0].items() if place in alone[1]}
    sides[0] = [renamed.get(key, key) for key in sides[0]]
    return _join(row_keys(target, sides[0]), row_keys(golden, sides[1]))


def _join(target: Sequence[str], golden: Sequence[str]) -> Pairs:
    place = dict(zip(reversed(golden), range(len(golden) - 1, -1, -1), strict=True))
    partners = [place.pop(key, -1) for key in target]
    return from_partners(partners, len(golden), [RULE if at >= 0 else "" for at in partners])


def op_keys(run: Run) -> list[str]:
    """One key per call. Backward calls are numbered by their order of appearance.

    Autograd replays calls in an order of its own, so the n-th backward entry of an API is the n-th to run, whatever
    number it carries; both runs are numbered the same way, or two equal runs would not pair with themselves.
    """
    if run.single_points:
        return run.ops
    seen: Counter[str] = Counter()
    keys = []
    for name in run.ops:
        if BACKWARD not in name:
            keys.append(name)
            continue
        op = parse_op(name)
        if op.direction != BACKWARD:
            keys.append(name)
            continue
        kind = op.without_call
        keys.append(op.renumbered(seen[kind]))
        seen[kind] += 1
    return keys


def row_keys(run: Run, keys: Sequence[str]) -> list[str]:
    """One key per row: its call's key and its place among the call's values."""
    ops = run.ops
    result = []
    for at, shown in zip(run.table["op"].to_list(), run.table["name"].to_list(), strict=True):
        op, key, name = ops[at], keys[at], shown
        if key is not op and name.startswith(op):
            name = key + name[len(op) :]
        # A keyword argument's file says .kwargs., its row without a file says .input.
        if ".kwargs." in name:
            name = name.replace(".kwargs.", ".input.", 1)
        result.append(name)
    return result


# Optimizers that go through their parameters in another order: their calls belong together by parameter.
#
# A module may register its parameters in another order than golden's, and somebody may sort or group them. Then the
# third call of an optimizer's loop, or the third element of its lists, is that of another parameter.

Matcher = Callable[[Run, Run], Pairs]
Values = tuple[object, ...]

_BY_PARAMETER = "place: the parameter"
_LISTED = re.compile(r"(\.(?:input\.[^.]+|output(?:\.0)?))\.\d+")  # an element of a list
_NOTE = "the optimizers go through their parameters in another order: their calls were paired by parameter"


@dataclass
class ByParameter:
    """Pairs two runs with the golden run's optimizer calls in the order in which the target's take its parameters."""

    match: Matcher

    def __call__(self, target: Run, golden: Run) -> Pairs:
        """Pair two runs."""
        wanted, order = _order(target), _order(golden)
        if list(wanted) == list(order) or len(wanted) != len(order):
            return self.match(target, golden)
        names = _same_parameters(wanted, order)
        places = {names[name]: place for place, name in enumerate(wanted) if name in names}
        sorted_run = _in_order(golden, order, places) if len(places) == len(order) else None
        if sorted_run is None:
            return self.match(target, golden)
        run, rows, ops = sorted_run
        pairs = self.match(target, run)
        old = np.append(rows, NONE).astype(np.int32)[pairs.golden]
        moved = (old != pairs.golden) & (pairs.target != NONE) & (old != NONE)
        return Pairs(
            pairs.target,
            old,
            [_BY_PARAMETER if is_moved else rule for rule, is_moved in zip(pairs.rule, moved.tolist(), strict=True)],
            [*pairs.notes, _NOTE] if moved.any() else pairs.notes,
            {at: (mine, tuple(int(rows[row]) for row in theirs)) for at, (mine, theirs) in pairs.groups.items()},
            [CallGroup(group.target, tuple(ops[op] for op in group.golden)) for group in pairs.call_groups],
        )


@dataclass(frozen=True)
class _Updated:
    """A parameter before and after a step: shape and statistics."""

    before: Values
    after: Values


def _order(run: Run) -> dict[str, _Updated]:
    """The parameters in the order in which the step took them; empty where nobody knows, or where nothing of the
    optimizer was recorded but what it read and wrote."""
    file = run.path.parent / OPTIMIZER_FILE
    if run.arrangement or IN_OPTIMIZER not in run.parents.values() or not file.is_file():
        return {}
    try:
        table = open_run(file).table
    except TwinProbeError:
        return {}
    table = table.filter(~table["name"].str.starts_with(TOTAL_NORM))
    before, after = (
        {
            bare_path(updated_parameter(name)): tuple(values)
            for name, *values in table.filter(table["role"] == role).select("name", "shape", *STATS).iter_rows()
        }
        for role in (PARAMETER, OUTPUT)
    )
    # A parameter that two steps write to has no one place.
    once = len(after) == (table["role"] == OUTPUT).sum() and before.keys() == after.keys()
    return {name: _Updated(before[name], after[name]) for name in after} if once else {}


def _same_parameters(wanted: dict[str, _Updated], order: dict[str, _Updated]) -> dict[str, str]:
    """Golden's name of each of the target's parameters: the same one; where two names stand for a tied weight, or where
    all of them are others, that of the same values, in order; else the only one of the shape."""
    found = {name: name for name in wanted if name in order}
    for sign in (_values_before, _shape):
        rest = defaultdict[Hashable, tuple[list[str], list[str]]](lambda: ([], []))
        for side, (known, taken) in enumerate(((wanted, found.keys()), (order, set(found.values())))):
            for name in (name for name in known if name not in taken):
                rest[sign(known[name])][side].append(name)
        for own, others in rest.values():
            if len(own) == len(others) and (sign is _values_before or len(own) == 1):
                found |= zip(own, others, strict=True)
    return found


def _values_before(parameter: _Updated) -> Hashable:
    return (_shape(parameter), *(f"{value:.4g}" for value in parameter.before[1:] if isinstance(value, float)))


def _shape(parameter: _Updated) -> Hashable:
    return parameter.before[0]


def _in_order(
    run: Run, order: dict[str, _Updated], wanted: dict[str, int]
) -> tuple[Run, NDArray[np.int64], list[int]] | None:
    """A run with its optimizer's calls in another order of the parameters, and which rows and calls it is made of."""
    stretches = _stretches(run, [(name, known.after) for name, known in order.items()])
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
    new_ops = list(run.ops)
    for place, name in zip(inside, _renumbered([run.ops[ops[place]] for place in inside]), strict=True):
        new_ops[place] = name
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
    return found if at == len(order) and not own else []


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
