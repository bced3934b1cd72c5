"""Runs that cut their sequences otherwise, compared token by token: the rows of aligned tokens are gathered.

Prefill and decode against one forward call, padded against packed, another order of the batch: what one side computes
in several calls is put together to one call, whose tensors have a row for each token that both sides hold.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from twinprobe._align.calls import Shape, dims
from twinprobe._align.links import Pairs
from twinprobe._align.token_cuts import MASK, NONE, POSITIONS, Cut, count_tokens, cut_of, reorders_rows
from twinprobe._align.tokens import TokenPairs, align_tokens
from twinprobe._compare.one import Comparison, Matcher, Options, compare_runs
from twinprobe._compare.pair_table import with_values
from twinprobe._compare.request import Job
from twinprobe._layout.pieces import of_concatenation
from twinprobe._layout.tokens import CONTEXT, LAST, PLAIN, TokenRun, View, token_run, views_of
from twinprobe._measure.elements import AT_ONCE
from twinprobe._measure.statistics import statistics
from twinprobe._report.tokens import Compared, token_findings
from twinprobe._runs.run import Run, open_run
from twinprobe._runs.table import ABSENT, FLOAT, GRADIENT, INPUT, OUTPUT, PARAMETER, STATS, TENSOR, VALUE
from twinprobe._runs.tensors.tensor_files import open_named, token_name
from twinprobe.errors import BadInput, TwinProbeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

AUTO, ON, OFF = "auto", "on", "off"
_FIRST_AXIS = re.compile(r"\baxis 0\b")

# Pairing rows, and gathering the tokens of both sides.


class _Chosen(NamedTuple):
    """Tokens that a value holds on both sides, and where: stretches of them as ``token_name`` has them."""

    tokens: Ints
    stretches: tuple[list[list[int]], list[list[int]]]
    whole: tuple[bool, bool]
    """Whether they are all tokens of all passes, so that recorded statistics can be merged."""


class _Option(NamedTuple):
    """A way to see a value: how many features a token has, and the view of its tensor in each pass."""

    family: int
    features: int
    views: dict[int, View]


@dataclass
class TokenMatcher:
    """A matcher that, once the rows are paired, gathers the tokens of each value on either side."""

    match: Matcher
    tokens: TokenPairs
    held: list[Ints | None] = field(default_factory=list)
    """Which tokens each pair holds; None for a value without tokens."""
    cached: list[bool] = field(default_factory=list)
    """Whether a pair holds what the cache has of them, rather than what a call computes for them."""
    left_out: int = 0
    partial: set[str] = field(default_factory=set)
    """Calls of the target of which an input was left out."""

    def __call__(self, target: Run, golden: Run) -> Pairs:
        """Pair the rows and gather their tokens."""
        assert isinstance(target, TokenRun)
        assert isinstance(golden, TokenRun)
        pairs = self.match(target, golden)
        sides = target, golden
        self._families = {
            (side, family): self._places(run, family)
            for side, run in enumerate(sides)
            for family in (PLAIN, LAST, CONTEXT)
        }
        self._cache: dict[Any, _Chosen] = {}
        changes: tuple[dict[int, dict[str, Any]], dict[int, dict[str, Any]]] = {}, {}
        good = []
        bookkeeping = _bookkeeping(target)
        kinds = [run.table["kind"].to_list() for run in sides]
        roles = [run.table["role"].to_list() for run in sides]
        dtypes = target.table["dtype"].to_list()
        ops = target.table["op"].to_list()
        mixed: set[Any] = set()  # calls that take tokens, and values that they made of all of them together
        for at, (target_row, golden_row) in enumerate(zip(pairs.target.tolist(), pairs.golden.tolist(), strict=True)):
            if target_row < 0 or golden_row < 0 or kinds[0][target_row] != kinds[1][golden_row] or at in pairs.groups:
                continue
            held: Ints | None = None
            cached = False
            kind, role = kinds[0][target_row], roles[0][target_row]
            if kind not in (TENSOR, VALUE) or (kind == VALUE and "float" not in str(dtypes[target_row])):
                continue  # lengths, flags and sizes follow the cut
            if kind == TENSOR and (bookkeeping[target_row] or self._by_keys(sides, (target_row, golden_row))):
                mixed |= {ops[target_row]} if role == INPUT else set()
                continue
            if kind == TENSOR and role not in (PARAMETER, GRADIENT):
                constant = self._constant(sides, (target_row, golden_row))
                found = None if constant else self._gather(sides, (target_row, golden_row))
                mixed |= {ops[target_row]} if role == INPUT and not constant else set()
                if found is not None:
                    held, cached = found[:2]
                    changes[0][target_row], changes[1][golden_row] = found[2:]
                elif not constant or self._mixes(sides, (target_row, golden_row), mixed, made=role == OUTPUT):
                    self.left_out += 1
                    self.partial.add(target.ops[ops[target_row]])
                    continue
            if held is None:
                for run, change, row in zip(sides, changes, (target_row, golden_row), strict=True):
                    change[row] = {"file": run.file(row, run.base), "shape": _text(run.shape(row, run.base))}
            good.append(at)
            self.held.append(held)
            self.cached.append(cached)
        for run, change in zip(sides, changes, strict=True):
            columns: dict[str, dict[int, Any]] = defaultdict(dict)
            for row, new in change.items():
                for name, value in new.items():
                    columns[name][row] = value
            run.table = with_values(run.table, columns)
        rules = [pairs.rule[at] for at in good]
        return Pairs(pairs.target[good], pairs.golden[good], rules, pairs.notes)

    def _places(self, run: TokenRun, family: int) -> tuple[Ints, NDArray[np.bool_]]:
        """The place (pass, row, column) of each aligned token in tensors of a family, and whether they hold it."""
        places = self.tokens.places[0 if run.cut is self.tokens.target else 1]
        if family == PLAIN:
            return places, np.ones(len(places), dtype=bool)
        number, row, column = places.T
        passes = run.cut.passes
        if family == LAST:
            widths = np.array([one.shape[1] for one in passes])
            return np.stack([number, row, np.zeros_like(column)], 1), column == widths[number] - 1
        last = np.array([one.places[-1][0] for one in run.cut.sequences])
        of = {place: at for at, one in enumerate(run.cut.sequences) for place in one.places}
        sequence = np.array([of[tuple(place)] for place in places.tolist()], dtype=np.int64)
        past = np.array([passes[at].past[line] for at, line in zip(number.tolist(), row.tolist(), strict=True)])
        return np.stack([last[sequence], row, past + column], 1), np.ones(len(places), dtype=bool)

    def _choose(self, families: tuple[int, int], sides: tuple[TokenRun, TokenRun]) -> _Chosen:
        if families in self._cache:
            return self._cache[families]
        (t_places, t_held), (g_places, g_held) = (self._families[side, families[side]] for side in (0, 1))
        tokens = np.flatnonzero(t_held & g_held)
        whole = tuple(
            families[side] == PLAIN and len(tokens) == sum(one.tokens for one in run.cut.passes)
            for side, run in enumerate(sides)
        )
        stretches = _stretches(t_places[tokens]), _stretches(g_places[tokens])
        self._cache[families] = _Chosen(tokens, stretches, (whole[0], whole[1]))
        return self._cache[families]

    def _by_keys(self, sides: tuple[TokenRun, TokenRun], rows: tuple[int, int]) -> bool:
        """Whether a value has axes of queries and of keys, as scores and masks have: its keys are not aligned."""
        seen = False
        for run, row in zip(sides, rows, strict=True):
            for number, one in enumerate(run.cut.passes):
                shape = run.shape(row, number) or ()
                if run.rows[row, number] == NONE or (len(shape) == 3 and shape[0] == one.shape[0]):
                    continue
                width = one.shape[1]
                if len(shape) < 3 or shape[-2] != width or shape[-1] not in (width, int(one.past.max()) + width):
                    return False
                seen = True
        return seen

    def _constant(self, sides: tuple[TokenRun, TokenRun], rows: tuple[int, int]) -> bool:
        """Whether a value is no matter of tokens: it has one shape, however the tokens are cut."""
        passes = [(run, row, at) for run, row in zip(sides, rows, strict=True) for at in range(len(run.cut.passes))]
        shapes = {run.shape(row, at) for run, row, at in passes if run.rows[row, at] != NONE}
        cuts = {run.cut.passes[at].shape for run, _, at in passes}
        losses = shapes == {()} and len(sides[0].cut.passes) != len(sides[1].cut.passes)
        if len(shapes) > 1 or losses:  # a loss is the mean over the tokens of its call
            return False
        if len(cuts) > 1 or shapes == {()}:
            # A head that keeps the last token of each row has one shape too, but another token in each pass.
            values = {(id(run), repr(run.stats(row, at))) for run, row, at in passes if run.rows[row, at] != NONE}
            return len(cuts) == 1 or len(values) <= len(sides)
        (shape,) = shapes
        first_pass = sides[0].cut.passes[0]
        views = views_of(shape or (), first_pass)
        if shape is None or not (views or first_pass.shape[1] in shape):
            return True
        if any(view.row >= 0 for view in views):
            return False
        # A weight may have as many rows as there are tokens: it is equal on both sides as it is, which tokens are not,
        # nor is a bias of attention for each key.
        try:
            first, second = (open_named(run.root, run.file(row, 0) or "") for run, row in zip(sides, rows, strict=True))
        except (TwinProbeError, OSError):
            return not views
        return bool(np.array_equal(first.data[:], second.data[:]))

    def _mixes(self, sides: tuple[TokenRun, TokenRun], rows: tuple[int, int], mixed: set[Any], *, made: bool) -> bool:
        """Whether a value of constant shape was made of all tokens together, so that it follows the cut.

        Such are the numbers of tokens that each expert takes, and tokens sorted by expert. ``mixed`` has the calls
        that take tokens, and the values that were found to be such.
        """
        target = sides[0]
        op = int(target.table["op"][rows[0]])
        value = target.shape(rows[0], target.base), *target.stats(rows[0], target.base)
        cells = math.prod(target.cut.passes[target.base].shape)
        # A row for each token and each of its experts: what sorted them may not be recorded.
        several = not made and bool(value[0]) and value[0][0] > cells and not value[0][0] % cells
        if not value[0] or not (several or (op if made else value) in mixed):
            return False
        one, other = (run.cut.passes for run in sides)
        if len(one) == len(other) == 1:
            # What is pooled from each sequence, in the same order on both sides.
            shapes = [run.shape(row, 0) or () for run, row in zip(sides, rows, strict=True)]
            each = [
                len(shape) > 1 and shape[0] == side[0].shape[0]
                for shape, side in zip(shapes, (one, other), strict=True)
            ]
            if all(each) and np.array_equal(self.tokens.places[0][:, 1], self.tokens.places[1][:, 1]):
                return False
        mixed |= {value, op}
        return True

    def _gather(
        self, sides: tuple[TokenRun, TokenRun], rows: tuple[int, int]
    ) -> tuple[Ints, bool, dict[str, Any], dict[str, Any]] | None:
        """The tokens that a value holds on both sides, and what becomes of its two rows; None where no views fit."""
        options = [list(self._options(run, row, at)) for at, (run, row) in enumerate(zip(sides, rows, strict=True))]
        ways = [
            (one + other, target, golden)
            for (one, target), (other, golden) in product(*map(enumerate, options))
            if target.features == golden.features
        ]
        for _, *way in sorted(ways, key=lambda way: way[0]):
            chosen = self._choose((way[0].family, way[1].family), sides)
            if len(chosen.tokens):
                news = [
                    self._side(run, row, option, chosen, at)
                    for at, (run, row, option) in enumerate(zip(sides, rows, way, strict=True))
                ]
                if news[0] is not None and news[1] is not None:
                    return chosen.tokens, CONTEXT in (way[0].family, way[1].family), news[0], news[1]
        return None

    def _options(self, run: TokenRun, row: int, side: int) -> Iterator[_Option]:
        """The ways to see a value in all passes that it is needed from, those with the same axes in all first."""
        for family in (PLAIN, LAST, CONTEXT):
            places, held = self._families[side, family]
            needed = np.unique(places[held, 0]).tolist()
            shapes = [run.shape(row, number) for number in needed]
            if None in shapes or not shapes:
                continue
            views = [
                {
                    view: size
                    for view, size in views_of(shape or (), run.cut.passes[number]).items()
                    if view[0] == family
                }
                for number, shape in zip(needed, shapes, strict=True)
            ]
            for view, features in views[0].items():
                if all(other.get(view) == features for other in views):
                    yield _Option(family, features, dict.fromkeys(needed, view))
            for features in dict.fromkeys(views[0].values()):
                firsts = [next((view for view, size in other.items() if size == features), None) for other in views]
                if None not in firsts and len(set(firsts)) > 1:
                    yield _Option(family, features, dict(zip(needed, firsts, strict=True)))  # type: ignore[arg-type]

    def _side(self, run: TokenRun, row: int, option: _Option, chosen: _Chosen, side: int) -> dict[str, Any] | None:
        """What becomes of a value's row in the table: the shape, the file and the statistics of its tokens."""
        stretches = chosen.stretches[side]
        used = sorted({stretch[0] for stretch in stretches})
        views = [option.views[number] for number in used]
        new: dict[str, Any] = {"shape": str([len(chosen.tokens), option.features]), "digest": None}
        files = [run.file(row, number) for number in used]
        if None not in files:
            part = {number: at for at, number in enumerate(used)}
            widths = [run.cut.passes[number].shape[1] for number in used]
            parts = [
                [file, view.row, view.column, *([width] if view.row == -2 else [])]
                for file, view, width in zip(files, views, widths, strict=True)
            ]
            new["file"] = token_name(parts, [[part[at], *rest] for at, *rest in stretches])
        stats: Sequence[Any]
        if chosen.whole[side] and all(
            prod(run.shape(row, number) or ()) == run.cut.passes[number].tokens * option.features for number in used
        ):
            counts = [prod(run.shape(row, number) or ()) for number in used]
            stats = of_concatenation([run.stats(row, number) for number in used], counts)
        elif "file" in new:
            try:
                stats = statistics(open_named(run.root, new["file"], AT_ONCE))[:4]
            except (TwinProbeError, OSError):
                return None
        else:
            return None
        for stat, value in zip(STATS, stats, strict=True):
            number = None if value is None else float(value)
            new |= {stat: number, f"{stat}_kind": ABSENT if value is None else FLOAT, f"{stat}_text": None}
        return new


def _text(shape: Shape | None) -> str | None:
    return None if shape is None else str(list(shape))


def _bookkeeping(run: TokenRun) -> list[bool]:
    """Rows that follow from how the tokens are cut: masks, and whole numbers that are neither ids nor positions."""
    found = []
    for op, name, dtype in run.table.select("op", "name", "dtype").iter_rows():
        called = run.op_names[op]
        whole = bool(re.search(r"(?i)int|bool", dtype or ""))
        known = called.is_module and ("embed" in called.cls.lower() or POSITIONS.search(name))
        found.append(bool(MASK.search(name)) or (whole and not known))
    return found


def _stretches(places: Ints) -> list[list[int]]:
    """Places (pass, row, column) as stretches [pass, row, column, how many] of columns that follow one another."""
    if not len(places):
        return []
    steps = np.diff(places, axis=0)
    edges = np.flatnonzero((steps != (0, 0, 1)).any(axis=1)) + 1
    starts = np.concatenate([[0], edges])
    counts = np.diff(np.concatenate([starts, [len(places)]]))
    return [[*places[start].tolist(), int(count)] for start, count in zip(starts.tolist(), counts, strict=True)]


# The comparison.


def tokens_of(target: Sequence[Run], golden: Sequence[Run], wanted: str) -> TokenPairs | None:
    """The tokens that two sides have in common, where they are cut otherwise; None where rows can be compared as is."""
    if wanted == OFF or any(run.single_points for run in (*target, *golden)):
        return None
    cuts = [cut_of(runs) for runs in (target, golden)]
    if cuts[0] is None or cuts[1] is None:
        return None
    if not (cuts[0].known and cuts[1].known):
        return _by_counts(cuts[0], cuts[1])
    for one, other in ((cuts[0], cuts[1]), (cuts[1], cuts[0])):
        if reorders_rows(one) and any(single.past.any() for single in other.passes):
            raise BadInput(
                f"rows carry on other rows of the call before, as beams do: the cache of {other.runs[0].path} does not "
                "show which", where=one.runs[0].path,
                hint="record both runs with a cache, or both without; --tokens off compares calls as they are",
            )  # fmt: skip
    pairs = align_tokens(cuts[0], cuts[1])
    if pairs is None or (wanted != ON and _one_pass_more(cuts[0], cuts[1])):
        return None
    fewest = min(sum(len(one.ids) for one in cut.sequences) for cut in (cuts[0], cuts[1]))
    if wanted == ON:
        return pairs
    # Calls of the same shapes with other ids are other data, unless each id of one is somewhere in the other.
    enough = fewest if cuts[0].shapes == cuts[1].shapes else fewest / 2
    return None if pairs.same_cut or pairs.count < enough else pairs


def _one_pass_more(target: Cut, golden: Cut) -> bool:
    """Whether both sides take whole sequences in calls of the same shapes, and one of them makes more calls.

    That is a warm-up or another number of steps, and no other cut: the same ids may come again after an update.
    """
    goes_on = any(one.past.any() for cut in (target, golden) for one in cut.passes)
    counts = [Counter(cut.shapes) for cut in (target, golden)]
    return not goes_on and counts[0] != counts[1] and counts[0].keys() == counts[1].keys()


def _by_counts(target: Cut, golden: Cut) -> TokenPairs | None:
    """All tokens of two sides without ids, if they are as many and their vectors have the same statistics.

    BadInput where the sides are cut otherwise and nothing can be compared: any divergence would be a false one.
    """
    if target.shapes == golden.shapes:
        return None
    sides = target, golden
    totals = [sum(one.tokens for one in side.passes) for side in sides]
    for side in sides:
        count_tokens(side)
    goes_on = any(one.past.any() for side in sides for one in side.passes)
    if totals[0] != totals[1] and not goes_on:
        return None
    target_stats, golden_stats = _vectors(target), _vectors(golden)
    known = None not in (*target_stats, *golden_stats) and totals[0] == totals[1]
    coarse = any(run.table["dtype"].str.contains("float16").any() for side in sides for run in side.runs)
    within = 1e-2 if coarse else 1e-5  # statistics of 16-bit tensors are rounded to 16 bits
    if known and np.allclose(np.array(target_stats, float), np.array(golden_stats, float), rtol=within, atol=1e-9):
        pairs = align_tokens(target, golden)
        if pairs is not None:
            pairs.how = "their number and the statistics of their vectors"
            return pairs
    raise BadInput(
        f"its sequences are split otherwise ({target.words()}) than those of {golden.runs[0].path} ({golden.words()}), "
        "and no ids were kept to align tokens by",
        where=target.runs[0].path,
        hint="record both runs with task tensor, then compare again; --tokens off compares calls as they are",
    )


def _same_ids(target: Cut, golden: Cut) -> bool:
    """Whether two sides of the same shapes take the same ids in another order, as far as their sketches tell."""
    found: list[Any] = []
    whole: list[bytes] = []
    for cut in (target, golden):
        for one in cut.passes:
            run = cut.runs[one.run]
            table = run.table.with_row_index("row")
            taken = table.filter((table["op"] == one.call) & (table["role"] == INPUT) & (table["kind"] == TENSOR))
            if run.sketches is None or taken.is_empty():
                return False
            sketch = run.sketches.of(taken["row"].head(1).to_numpy())[0]
            found.append([float(sketch[name]) for name in ("flags", "total", "norm", "zeros")])
            whole.append(sketch.tobytes())
    target_ids, golden_ids = np.array_split(np.array(found), 2)
    if whole[: len(whole) // 2] == whole[len(whole) // 2 :]:
        return False  # in the same places
    return bool((target_ids[:, 0] > 0).all() and np.allclose(target_ids, golden_ids, rtol=1e-12))


def _vectors(cut: Cut) -> tuple[Any, ...]:
    """The statistics of all that the table of tokens gives."""
    stats, counts = [], []
    for one in cut.passes:
        table = cut.runs[one.run].table
        given = table.filter((table["op"] == one.call) & (table["role"] == OUTPUT) & (table["kind"] == TENSOR))
        if not given.height or any(given[f"{stat}_kind"][0] != FLOAT for stat in STATS):
            return (None,) * 4
        stats.append(tuple(given[stat][0] for stat in STATS))
        counts.append(prod(dims(given["shape"][0]) or ()))
    return of_concatenation(stats, counts)


def compare_tokens(tokens: TokenPairs, options: Options) -> Comparison:
    """Compare two sides by their aligned tokens."""
    runs = token_run(tokens.target, tokens.count), token_run(tokens.golden, tokens.count)
    matcher = TokenMatcher(options.match, tokens)
    comparison = compare_runs(*runs, replace(options, match=matcher, measure=None))
    first = comparison.summary.first
    findings = token_findings(Compared(
        tokens, matcher.held, matcher.cached, (runs[0].root, runs[1].root), comparison.evidence, comparison.judged,
        comparison.target.op_names, first,
    ))  # fmt: skip
    notes = list(findings.lines)
    if matcher.left_out:
        notes.append(f"{matcher.left_out:,} values have no token axis that matches on both sides; they are left out")
    measured = comparison.evidence.metrics is not None
    if first is not None and first.op in matcher.partial and measured and not findings.table["differs"].any():
        # Its noise follows from its inputs, of which a part is unknown; and no token tells of a difference.
        notes.append(f"{first.row} differs slightly, as do perhaps its inputs, which cannot all be compared")
        first = None
    elif first is not None and first.op in matcher.partial:
        sentence = first.sentence.replace("all inputs agree", "all inputs that can be compared agree")
        first = replace(first, sentence=sentence)
    if first is not None and matcher.held[first.order] is not None:
        # Tokens are the first axis of what was gathered: which of them differ is said by their numbers.
        kinds = [kind for kind in first.kinds if kind["name"] != "padding" and not _FIRST_AXIS.search(kind["sentence"])]
        sentence = first.sentence
        for kind in first.kinds:
            sentence = sentence if kind in kinds else sentence.replace(f"; {kind['sentence']}", "")
        first = replace(first, kinds=kinds, sentence=sentence)
    if first is not None and findings.where:
        first = replace(first, sentence=f"{first.sentence}; {findings.where}")
    summary = replace(comparison.summary, first=first, notes=[*notes, *comparison.summary.notes])
    return replace(comparison, summary=summary, tokens=findings if measured else None)


def compare_cut(job: Job, first: tuple[Run, Run], options: Options) -> Comparison:
    """Compare the runs of a job, of which the first pair is open: by tokens where they are cut otherwise."""
    sides = [[first[0]], [first[1]]]
    if job.steps is not None:
        sides = [[run, *map(open_run, others[1:])] for run, others in zip(first, job.steps, strict=True)]
    tokens = tokens_of(sides[0], sides[1], job.request.tokens)
    if tokens is not None:
        return compare_tokens(tokens, options)
    if job.request.tokens == ON or job.steps is not None:
        raise BadInput(
            f"no tokens in common with {job.golden}",
            where=job.target, hint="--tokens off compares step by step and call by call",
        )  # fmt: skip
    comparison = compare_runs(*first, options)
    cuts = [cut_of(side) for side in sides]
    if cuts[0] is None or cuts[1] is None or (cuts[0].known and cuts[1].known):
        return comparison
    if cuts[0].shapes == cuts[1].shapes:
        if not _same_ids(cuts[0], cuts[1]):
            return comparison
        note = (
            "the runs have the same token ids in different places (padding on the other side, a different order of the "
            "batch), and statistics alone cannot align them; to rule this out, record both with "
            "task tensor"
        )
    else:
        note = (
            f"the runs process their tokens in different calls: target {cuts[0].words()}, golden {cuts[1].words()}; if "
            "these are the same sequences, differences may come from that alone: record both with task tensor to "
            "compare token by token"
        )
    return replace(comparison, summary=replace(comparison.summary, notes=[note, *comparison.summary.notes]))
