"""From linked calls to paired rows: which value of one call is which value of the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from twinprobe._align.calls import RunCalls, dims, split
from twinprobe._align.links import NONE, CallLinks, Pairs, from_partners
from twinprobe._align.links import RULE as NAME
from twinprobe._align.mapping.api_names import COMPOSITE, ArgumentMap, IndexMap, signature_map
from twinprobe._runs.names import BACKWARD, FORWARD, parse_op
from twinprobe._runs.run import Run
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER, STATS

# Parameters of two modules that belong together: by name, by the frameworks' spelling, else by order and shape.

BY_NAME, BY_SPELLING, BY_ORDER = "", "parameter spelling", "parameter order"
# What the layers of MindSpore and Paddle call the parameters of PyTorch's. Paddle's variance is biased: it is another.
_SPELLINGS = {
    "gamma": "weight",
    "beta": "bias",
    "embedding_table": "weight",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
    "_mean": "running_mean",
}
Parameter = tuple[str, str | None]  # name, shape


def pair_parameters(target: list[Parameter], golden: list[Parameter]) -> dict[str, tuple[str, str]]:
    """Target parameter -> (golden parameter, how they were paired). What shapes do not settle stays unmatched."""
    free = dict(golden)
    pairs: dict[str, tuple[str, str]] = {}
    for name, _ in target:
        if name in free:
            pairs[name] = (name, BY_NAME)
            del free[name]
    rest = [(name, shape) for name, shape in target if name not in pairs]
    by_spelling: dict[str, str] = {}
    for name in free:
        by_spelling.setdefault(spelled(name), name)
    for name, _ in rest:
        other = by_spelling.pop(spelled(name), None)
        if other is not None:
            pairs[name] = (other, BY_SPELLING)
            del free[other]
    rest = [(name, shape) for name, shape in rest if name not in pairs]
    mine, theirs = Counter(shape for _, shape in rest), Counter(free.values())
    for name, shape in rest:
        if shape is not None and mine[shape] == theirs[shape]:
            other = next(known for known, known_shape in free.items() if known_shape == shape)
            pairs[name] = (other, BY_ORDER)
            del free[other]
    return pairs


def spelled(name: str) -> str:
    """A parameter's name in PyTorch's spelling; the last part of a dotted name decides."""
    before, dot, last = name.rpartition(".")
    return f"{before}{dot}{_SPELLINGS.get(last, last)}"


DATA_RULE = "data mapping"
_PARAMETERS = ".parameters."
_KEPT = frozenset({PARAMETER, GRADIENT})
Row = tuple[int, str]  # number, suffix


def pairs_of(call_links: CallLinks) -> Pairs:
    """Join the rows of all linked calls."""
    joiner = _Joiner(call_links)
    for op, other in enumerate(call_links.partner):
        if other != NONE:
            joiner.join(op, other)
    for row, other in call_links.rows.items():
        joiner.partners[row] = other
        joiner.rules[row] = DATA_RULE if other != NONE else ""
    if joiner.left_apart:
        call_links.notes.append(
            f"{joiner.left_apart} gradients of API calls were not paired: PyTorch records those of the last autograd "
            "node of a composite function, the other framework those of the function (module gradients do compare)"
        )
    return from_partners(joiner.partners, call_links.golden.run.table.height, joiner.rules, call_links.notes)


class _Joiner:
    def __init__(self, call_links: CallLinks) -> None:
        self._call_links = call_links
        self._target, self._golden = call_links.target, call_links.golden
        rows = call_links.target.run.table.height
        self.partners = [NONE] * rows
        self.rules = [""] * rows
        self.left_apart = 0
        self._taken = set(call_links.rows.values())
        # Nothing but the names counts within one framework and without the user's word on single rows.
        self._alike = not (call_links.across_frameworks or call_links.rows)
        self._maps: dict[tuple[str, str], ArgumentMap | None] = {}
        self._parameters: dict[tuple[str, str], dict[str, tuple[str, str]]] = {}

    def join(self, op: int, other: int) -> None:
        call_links, target, golden = self._call_links, self._target, self._golden
        first, last = target.starts[op], target.starts[op + 1]
        begin, end = golden.starts[other], golden.starts[other + 1]
        callees = target.callee_of[op], golden.callee_of[other]
        unlisted = not call_links.arguments or (callees[0].name, callees[1].name) not in call_links.arguments
        if self._alike and unlisted and target.names[first:last] == golden.names[begin:end]:
            self._pair_all(op, first, last, begin)
            return
        if call_links.rows and all(row in call_links.rows for row in range(first, last)):
            return
        suffixes, others = target.suffixes(op), golden.suffixes(other)
        is_module = callees[0].is_module and callees[1].is_module
        arguments = None if is_module and not call_links.arguments else self._arguments(op, other)
        plain = arguments is None or not arguments.strict
        apart = call_links.across_frameworks and target.direction[op] == BACKWARD and not is_module
        if plain and not apart and not call_links.rows and suffixes == others:
            self._pair_all(op, first, last, begin)
            return
        target_rows = [(row, suffix) for row, suffix in enumerate(suffixes, first) if row not in call_links.rows]
        golden_rows = [(row, suffix) for row, suffix in enumerate(others, begin) if row not in self._taken]
        if apart and not isinstance(arguments, IndexMap):
            target_rows, golden_rows = self._comparable_gradients(op, other, target_rows, golden_rows)
        self._join_some(op, other, target_rows, golden_rows, arguments, is_module)

    def _join_some(
        self,
        op: int,
        other: int,
        target_rows: list[Row],
        golden_rows: list[Row],
        arguments: ArgumentMap | None,
        is_module: bool,
    ) -> None:
        direction, rule = self._target.direction[op], self._call_links.rule[op]
        if arguments is None or not arguments.strict:
            target_rows, golden_rows = self._join_keys(
                target_rows, golden_rows, str, str, rule
            )  # a suffix is its own key
        if arguments is not None and target_rows and golden_rows:
            known = arguments
            target_rows, golden_rows = self._join_keys(
                target_rows, golden_rows,
                lambda suffix: known.target_key(suffix, direction), lambda suffix: known.golden_key(suffix, direction),
                rule,
            )  # fmt: skip
        if target_rows and golden_rows and is_module:
            self._join_parameters(op, other, target_rows, golden_rows, rule)
            if direction == FORWARD:
                self._join_inputs(target_rows, golden_rows, rule)

    def _comparable_gradients(
        self, op: int, other: int, target_rows: list[Row], golden_rows: list[Row]
    ) -> tuple[list[Row], list[Row]]:
        """Leave out what an API's backward call gave, where the two frameworks record different things."""
        target, golden = self._target, self._golden
        composite = bool(COMPOSITE & {target.callee_of[op].body, golden.callee_of[other].body})
        shapes = {suffix: golden.shapes[row] for row, suffix in golden_rows}
        apart = {
            suffix
            for row, suffix in target_rows
            if target.roles[row] == OUTPUT and suffix in shapes and (composite or shapes[suffix] != target.shapes[row])
        }
        self.left_apart += sum(shapes[suffix] is not None for suffix in apart)
        return [row for row in target_rows if row[1] not in apart], [row for row in golden_rows if row[1] not in apart]

    def _arguments(self, op: int, other: int) -> ArgumentMap | None:
        target, golden = self._target.callee_of[op], self._golden.callee_of[other]
        pair = (target.name, golden.name)
        if pair not in self._maps:
            arguments: ArgumentMap | None = self._call_links.arguments.get(pair)
            if arguments is None and not (target.is_module or golden.is_module):
                arguments = signature_map(target, golden, (self._target.run.framework, self._golden.run.framework))
            self._maps[pair] = arguments
        return self._maps[pair]

    def _join_keys(
        self, target_rows: list[Row], golden_rows: list[Row],
        target_key: Callable[[str], str | None], golden_key: Callable[[str], str | None], rule: str,
    ) -> tuple[list[Row], list[Row]]:  # fmt: skip
        """Pair rows of equal key; return what is left on both sides."""
        free: dict[str, int] = {}
        for row, suffix in golden_rows:
            key = golden_key(suffix)
            if key is not None:
                free.setdefault(key, row)
        left = []
        used = set()
        for row, suffix in target_rows:
            key = target_key(suffix)
            other = free.pop(key, NONE) if key is not None else NONE
            if other == NONE:
                left.append((row, suffix))
            else:
                self._pair(row, other, rule)
                used.add(other)
        return left, [row for row in golden_rows if row[0] not in used]

    def _join_parameters(self, op: int, other: int, target_rows: list[Row], golden_rows: list[Row], rule: str) -> None:
        """Parameters and their gradients; what the forward call settled holds for the gradients too."""
        target, golden = self._target, self._golden
        names = {_parameter(suffix): row for row, suffix in target_rows if target.roles[row] in _KEPT}
        others = {_parameter(suffix): row for row, suffix in golden_rows if golden.roles[row] in _KEPT}
        if not names or not others:
            return
        callees = (target.callee_of[op].name, golden.callee_of[other].name)
        known = self._parameters.get(callees, {})
        found = {name: known[name] for name in names if name in known and known[name][0] in others}
        spoken_for = {partner for partner, _ in found.values()}
        found |= pair_parameters(
            [(name, target.shapes[row]) for name, row in names.items() if name not in found],
            [(name, golden.shapes[row]) for name, row in others.items() if name not in spoken_for],
        )
        self._parameters.setdefault(callees, {}).update(found)
        for name, (partner, how) in found.items():
            self._pair(names[name], others[partner], f"{rule}, {how}" if how else rule)

    def _join_inputs(self, target_rows: list[Row], golden_rows: list[Row], rule: str) -> None:
        """An argument given by keyword on one side and by place on the other, where the shapes settle it."""
        target, golden = self._target, self._golden
        target_rows = [row for row in target_rows if _is_tensor_input(target, row[0])]
        golden_rows = [row for row in golden_rows if _is_tensor_input(golden, row[0])]
        by_place = {suffix[7:].isdecimal() for _, suffix in target_rows}
        others_by_place = {suffix[7:].isdecimal() for _, suffix in golden_rows}
        shapes = [target.shapes[row] for row, _ in target_rows]
        if by_place ^ others_by_place == {True, False} and shapes == [golden.shapes[row] for row, _ in golden_rows]:
            for (row, _), (other, _) in zip(target_rows, golden_rows, strict=True):
                self._pair(row, other, f"{rule}, argument order")

    def _pair(self, row: int, other: int, rule: str) -> None:
        self.partners[row] = other
        self.rules[row] = rule

    def _pair_all(self, op: int, first: int, last: int, begin: int) -> None:
        self.partners[first:last] = range(begin, begin + last - first)
        self.rules[first:last] = [self._call_links.rule[op]] * (last - first)


def _parameter(suffix: str) -> str:
    return suffix.removeprefix(_PARAMETERS).lstrip(".")


def _is_tensor_input(side: RunCalls, row: int) -> bool:
    return side.roles[row] == INPUT and side.shapes[row] not in (None, "[]")


# Values that were paired by name although their shapes differ, for a reason that is known.

REPEATED = "repeated in the other run"
BY_ARGUMENT = "gradient of this argument"


def fit_shapes(target: Run, golden: Run, pairs: Pairs) -> Pairs:
    """The pairs without values of other shapes that are no finding."""
    return _part_repeats(target, golden, _gradients_by_argument(target, golden, pairs))


def _other_shapes(target: Run, golden: Run, pairs: Pairs) -> list[int]:
    """The places of pairs whose shapes differ."""
    both = np.flatnonzero((pairs.target >= 0) & (pairs.golden >= 0))
    shapes = target.table["shape"].gather(pairs.target[both]), golden.table["shape"].gather(pairs.golden[both])
    places: list[int] = both[shapes[0].ne_missing(shapes[1]).to_numpy()].tolist()
    return places


def _gradients_by_argument(target: Run, golden: Run, pairs: Pairs) -> Pairs:
    """Gradients that a module hands back are numbered by its tensor arguments: where one run gives a mask and the other
    none, all behind it have other numbers."""
    places = _other_shapes(target, golden, pairs)
    rows, others = pairs.target[places], pairs.golden[places]
    given_back = target.table["role"].to_numpy()[rows] == OUTPUT
    ops = target.table["op"].to_numpy()[rows[given_back]], golden.table["op"].to_numpy()[others[given_back]]
    suspects = set(zip(ops[0].tolist(), ops[1].tolist(), strict=True))
    names = {pair: parse_op(target.ops[pair[0]]) for pair in suspects}
    suspects = {pair for pair, name in names.items() if name.is_module and name.direction == BACKWARD}
    if not suspects:
        return pairs
    sides = RunCalls(target), RunCalls(golden)
    moved: dict[int, int] = {}
    for calls in sorted(suspects):
        forward = [side.forward(op) for side, op in zip(sides, calls, strict=True)]
        taken = [_tensor_arguments(side, op) for side, op in zip(sides, forward, strict=True)]
        if NONE in forward or taken[0] == taken[1]:
            continue
        given = [
            {name: row for name, row in zip(given_by, _outputs(side, op), strict=False) if side.shapes[row] is not None}
            for given_by, side, op in zip(taken, sides, calls, strict=True)
        ]
        moved |= dict.fromkeys(_outputs(sides[0], calls[0]), NONE)
        moved |= {row: given[1].get(name, NONE) for name, row in given[0].items()}
    return _with_partners(pairs, moved, BY_ARGUMENT)


def _tensor_arguments(side: RunCalls, op: int) -> list[str]:
    """The arguments of a module call that are tensors and given by place: their gradients come back in this order."""
    return [
        suffix
        for suffix, row in zip(side.suffixes(op), side.rows(op), strict=True)
        if side.roles[row] == INPUT and suffix[7:].isdecimal() and side.shapes[row] is not None
    ]


def _outputs(side: RunCalls, op: int) -> list[int]:
    return [row for row in side.rows(op) if side.roles[row] == OUTPUT]


# Heads of keys and values that one run repeats before a call, and the other inside it: no values of one shape.


def _part_repeats(target: Run, golden: Run, pairs: Pairs) -> Pairs:
    """Leave rows unmatched whose tensors are one another, repeated; so are their gradients, which are sums."""
    places = _other_shapes(target, golden, pairs)
    if not places:
        return pairs
    ops = target.table["op"].to_list()
    apart: list[int] = []
    calls: set[tuple[str, int, tuple[str, str]]] = set()
    for backward in (False, True):
        for place in places:
            row, other = int(pairs.target[place]), int(pairs.golden[place])
            callee, direction, call = split(target.ops[ops[row]])
            key = callee, call, (target.table["shape"][row], golden.table["shape"][other])
            if backward and direction == BACKWARD and key in calls:
                apart.append(place)
            elif not backward and direction == FORWARD and _is_repeat(target, row, golden, other):
                apart.append(place)
                calls.add(key)
    return part_rows(pairs, sorted(apart), REPEATED)


def _is_repeat(target: Run, row: int, golden: Run, other: int) -> bool:
    sizes = [dims(run.table["shape"][at]) for run, at in ((target, row), (golden, other))]
    if target.table["role"][row] != INPUT or sizes[0] is None or sizes[1] is None or len(sizes[0]) != len(sizes[1]):
        return False
    differing = [(mine, theirs) for mine, theirs in zip(*sizes, strict=True) if mine != theirs]
    more, fewer = max(differing[0]), min(differing[0])
    if len(differing) != 1 or not fewer or more % fewer:
        return False
    mine, theirs = (np.array(run.table.select(STATS).row(at), float) for run, at in ((target, row), (golden, other)))
    grown = (more / fewer) ** 0.5 if more == differing[0][0] else (fewer / more) ** 0.5
    if not np.isfinite([*mine, *theirs]).all():
        return False
    return bool(np.allclose(mine, theirs * [1.0, 1.0, 1.0, grown], rtol=1e-3, atol=1e-3 * abs(theirs[:2]).max()))


def part_rows(pairs: Pairs, places: list[int], word: str) -> Pairs:
    """The pairs at these places taken apart; both rows say why."""
    return _with_partners(pairs, {int(pairs.target[place]): NONE for place in places}, apart=word)


def _with_partners(pairs: Pairs, partner: dict[int, int], word: str = "", apart: str = "") -> Pairs:
    """The pairs with other partners for some target rows, which say ``word``, or without one, which say ``apart``."""
    if not partner:
        return pairs
    golden, rule = pairs.golden.copy(), list(pairs.rule)
    mine = np.flatnonzero(pairs.target != NONE)
    place_of = dict(zip(pairs.target[mine].tolist(), mine.tolist(), strict=True))
    freed = {int(golden[place_of[row]]) for row in partner}
    for row, other in partner.items():
        place = place_of[row]
        if golden[place] != other:
            golden[place] = other
            rule[place] = apart if other == NONE else f"{NAME}, {word}"
    used = set(partner.values()) - {NONE}
    rest = [place for place in np.flatnonzero(pairs.target == NONE).tolist() if int(golden[place]) not in used]
    alone = sorted(freed - used - {NONE})
    rows = np.concatenate([golden[rest], np.array(alone, dtype=np.int32)])
    words = [*(rule[place] for place in rest), *[apart] * len(alone)]
    order = np.argsort(rows, kind="stable")
    return Pairs(
        np.concatenate([pairs.target[mine], np.full(len(rows), NONE, dtype=np.int32)]),
        np.concatenate([golden[mine], rows[order]]).astype(np.int32),
        [*(rule[place] for place in mine), *(words[at] for at in order)],
        pairs.notes, pairs.groups, pairs.call_groups,
    )  # fmt: skip
