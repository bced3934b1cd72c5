"""One graph, or two compared: everything that a graph file says about one step and rank."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import isnan
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from twinprobe._align.links import RULE, Pairs, from_partners
from twinprobe._compare.one import Comparison, Options, compare_runs
from twinprobe._graph.communication import Communication, read_communication
from twinprobe._graph.node_values import CallValues, call_values, overflow_levels
from twinprobe._graph.tree import COLLECTION, CallSites, Tree, assign_micro_steps, build_tree, call_sites
from twinprobe._graph.values import NEEDED, CallTexts, MetricTexts, Style, ValueTexts, quoted
from twinprobe._judge.rules import Thresholds
from twinprobe._layout.contents import put_in_order
from twinprobe._layout.merge import Merged, ShapeFitter
from twinprobe._layout.whole import Whole
from twinprobe._report.console import visible
from twinprobe._report.inside import AxisNames, pictures, summary_pictures
from twinprobe._runs.run import Run

if TYPE_CHECKING:
    import polars as pl


# Which node of one tree belongs to which node of the other.

NONE = -1
Matcher = Callable[[Run, Run], Pairs]


class TreeMatcher:
    """Pairs values by a rule of ``align``, and from their calls links the nodes of two trees.

    ``same_ancestors``: two calls that nothing but their equal name joins belong together only inside modules that do.
    ``linked`` is told the partner of each target node as soon as all are known.
    """

    def __init__(
        self, target: Tree, golden: Tree, match: Matcher, linked: Callable[[list[int]], None], *, same_ancestors: bool
    ) -> None:
        self._target, self._golden = target, golden
        self._match, self._linked, self._same_ancestors = match, linked, same_ancestors

    def __call__(self, target: Run, golden: Run) -> Pairs:
        """The pairs of values whose nodes are linked."""
        pairs = self._match(target, golden)
        rows = target.table.height
        t_op = target.table["op"].to_numpy()
        partner_row = pairs.golden[:rows]
        g_op = np.where(partner_row >= 0, golden.table["op"].to_numpy()[partner_row], NONE)
        by_name = bytearray(len(target.ops))  # calls that were paired by nothing but their equal names
        if self._same_ancestors:
            for op, rule in zip(t_op.tolist(), pairs.rule, strict=False):
                if rule == RULE:
                    by_name[op] = 1
        link = self._link_nodes(_majority(t_op, g_op, len(target.ops), len(golden.ops)), by_name)
        self._linked(link)
        if not any(by_name):
            return pairs
        linked_op = np.full(len(target.ops), NONE, dtype=np.int64)
        for node, partner in enumerate(link):
            if partner >= 0 and self._target.ops[node] >= 0:
                linked_op[self._target.ops[node]] = self._golden.ops[partner]
        keep = (g_op >= 0) & (linked_op[t_op] == g_op)
        kept = np.where(keep, partner_row, NONE).tolist()
        rules = [rule if row >= 0 else "" for rule, row in zip(pairs.rule[:rows], kept, strict=True)]
        return from_partners(kept, golden.table.height, rules, pairs.notes)

    def _link_nodes(self, partners: list[int], paired_by_name: bytearray) -> list[int]:
        target, golden = self._target, self._golden
        link = [NONE] * len(target)
        taken = bytearray(len(golden))
        link[0], taken[0] = 0, 1
        node_of_op = {op: node for node, op in enumerate(golden.ops) if op >= 0}
        spoken_for = {node_of_op[op] for op in partners if op >= 0}
        for node in target.pre_order()[1:]:
            if target.kinds[node] == COLLECTION:
                continue
            op = target.ops[node]
            partner = node_of_op[partners[op]] if op >= 0 and partners[op] >= 0 else NONE
            by_name = partner == NONE or paired_by_name[op]
            if partner == NONE:
                # A call whose values found no partner has none; a name alone speaks only for what holds no values.
                partner = golden.index.get(target.names[node], NONE) if op < 0 else NONE
                if partner == NONE or partner in spoken_for:
                    continue
            if taken[partner] or golden.kinds[partner] == COLLECTION:
                continue
            if by_name and link[_module_above(target, node)] != _module_above(golden, partner):
                continue
            link[node], taken[partner] = partner, 1
        self._link_by_children(link, taken)
        return link

    def _link_by_children(self, link: list[int], taken: bytearray) -> None:
        """Link collections, and modules without values of their own, with what holds their children's partners."""
        target, golden = self._target, self._golden
        for node in target.order:
            if link[node] != NONE or not target.children[node] or target.ops[node] >= 0:
                continue
            above = Counter(golden.parents[link[child]] for child in target.children[node] if link[child] > 0)
            for partner, _ in above.most_common():
                fits = golden.kinds[partner] == target.kinds[node] and golden.ops[partner] < 0
                if fits and not taken[partner]:
                    link[node], taken[partner] = partner, 1
                    break
            else:
                partner = golden.index.get(target.names[node], NONE)
                if target.kinds[node] == COLLECTION and partner > 0 and not taken[partner] and not above:
                    link[node], taken[partner] = partner, 1


def _majority(t_op: NDArray[np.int32], g_op: NDArray[np.int32], t_count: int, g_count: int) -> list[int]:
    """For each target call the golden call that most of its values were paired with."""
    paired = g_op >= 0
    keys, counts = np.unique(t_op[paired].astype(np.int64) * g_count + g_op[paired], return_counts=True)
    best = np.full(t_count, NONE, dtype=np.int64)
    in_order = np.argsort(counts, kind="stable")
    # Of several values for one place numpy keeps the last: the golden call with the most pairs.
    best[keys[in_order] // g_count] = keys[in_order] % g_count
    return cast("list[int]", best.tolist())


def _module_above(tree: Tree, node: int) -> int:
    """The parent, collections not counted: they are no part of the model."""
    above = tree.parents[node]
    return tree.parents[above] if above > 0 and tree.kinds[above] == COLLECTION else above


# What is drawn of one run, and of two that are linked.

TARGET, GOLDEN = "NPU", "Bench"
_CALLS_AT_A_TIME = 1024
_MOST_SUSPECTS = 100


@dataclass
class DrawnRun:
    """One run as a tree, with the partner of each node on the other side."""

    source: str
    run: Run
    tree: Tree
    sites: CallSites
    communication: Communication
    link: list[int] = field(default_factory=list)
    overflow: list[str | None] = field(default_factory=list)
    merge_info: dict[int, list[str]] = field(default_factory=dict)
    _paths: dict[int, str] = field(default_factory=dict)

    def path_text(self, node: int) -> str:
        """The names from the root to a node as a JSON array; siblings share the text of their parent's path."""
        names, above = self.tree.names, self.tree.parents[node]
        if above < 0:
            return f"[{quoted(names[node])}]"
        prefix = self._paths.get(above)
        if prefix is None:
            prefix = self._paths[above] = ",".join(quoted(names[step]) for step in self.tree.path(above))
        return f"[{prefix},{quoted(names[node])}]"

    def children_text(self, node: int) -> str:
        """The names of a node's children as a JSON array."""
        names = self.tree.names
        return f"[{','.join([quoted(names[child]) for child in self.tree.children[node]])}]"

    def texts(self, style: Style, more: Callable[[int, int], pl.Series] | None = None) -> Iterator[CallTexts]:
        """The inputs and outputs of the calls, a piece at a time; ``more`` adds to the text of some rows."""
        return ValueTexts(self.run, style, more, self.communication.group_texts).pieces(_CALLS_AT_A_TIME)


@dataclass
class Picture:
    """What is drawn for one step and rank; ``golden`` and what follows are there where two runs are compared."""

    step: int
    rank: int
    target: DrawnRun
    golden: DrawnRun | None = None
    comparison: Comparison | None = None
    values: CallValues | None = None
    inside: dict[str, Any] = field(default_factory=dict)
    """Pictures of the tensors that differ, by the name of the value."""

    @property
    def micro_steps(self) -> int:
        """How many rounds of forward and backward the step has."""
        return max(self.target.tree.micro_steps) + 1

    @property
    def sides(self) -> list[tuple[DrawnRun, DrawnRun | None]]:
        """Each side with the other one."""
        if self.golden is None:
            return [(self.target, None)]
        return [(self.target, self.golden), (self.golden, self.target)]

    def texts(self, side: DrawnRun, style: Style) -> Iterator[CallTexts]:
        """The inputs and outputs of a side's calls, a piece at a time."""
        more = None
        if side is self.target and self.comparison is not None:
            more = MetricTexts(self.comparison, style).rows
        return side.texts(style, more)


class GoldenWorker(Protocol):
    """Another process that works on the trusted run's half."""

    def side(self, run: Run) -> DrawnRun | None:
        """The trusted run as a tree, or None if it has to be made here."""

    def linked(self, target: DrawnRun, golden: DrawnRun) -> None:
        """Told when the nodes of both sides are matched."""


def draw_pair(
    target: Run | Merged, golden: Run | Merged, step: int, rank: int, *, match: Matcher, same_ancestors: bool,
    overflow_check: bool, thresholds: Thresholds, worker: GoldenWorker | None = None,
    finish: Callable[[Comparison], Comparison] | None = None,
) -> Picture:  # fmt: skip
    """Two runs compared, by the same engine as every other report; ``finish`` adds what else is known."""
    left = drawn_run(TARGET, target, overflow_check=overflow_check)
    drawn_there = worker.side(golden) if worker is not None and isinstance(golden, Run) else None
    right = drawn_there or drawn_run(GOLDEN, golden, overflow_check=overflow_check)

    def linked(link: list[int]) -> None:
        left.link, right.link = link, [NONE] * len(right.tree)
        for node, partner in enumerate(link):
            if partner >= 0:
                right.link[partner] = node
        if worker is not None and drawn_there is not None:
            worker.linked(left, right)

    if isinstance(target, Merged) and isinstance(golden, Merged):
        match = ShapeFitter(match, target, golden)
    matcher = TreeMatcher(left.tree, right.tree, match, linked, same_ancestors=same_ancestors)
    options = Options(match=matcher, thresholds=thresholds, reorder=put_in_order)
    comparison = compare_runs(left.run, right.run, options)
    if finish is not None:
        comparison = finish(comparison)
    if drawn_there is not None:
        right.run.table = right.run.table.clear()  # it is rendered over there: room for the rest
    for side, made in ((left, target), (right, golden)):
        _note_merging(side, made)  # once more: the other side's shapes have told what the shards are
    values = call_values(comparison)
    inside = _inside(comparison)
    comparison.evidence.pairs = comparison.evidence.pairs.select(NEEDED)
    return Picture(step, rank, left, right, comparison, values, inside)


def _inside(comparison: Comparison) -> dict[str, Any]:
    """Pictures of what differs first, so that the page need not read large files before it shows anything."""
    evidence, judged = comparison.evidence, comparison.judged
    rows = [row for row, verdict in enumerate(judged.verdict) if verdict != "pass"]
    rows.sort(key=lambda row: (row != judged.first_row, judged.origin[row] != "injected", row))
    chosen = evidence.pairs[rows[:_MOST_SUSPECTS]]
    if evidence.metrics is not None:
        kept = chosen.select("t_name", "t_file", "g_file", "g_shape").drop_nulls()
        drawn_tensors = pictures([comparison.target.tensor_folder, comparison.golden.tensor_folder], kept.iter_rows())
    else:
        named = chosen.select(key="t_name", t="t_name", g="g_name").drop_nulls().rows()
        drawn_tensors = summary_pictures([comparison.target.path, comparison.golden.path], named)
    if drawn_tensors:
        axes = AxisNames(evidence.pairs.select("t_name", "t_shape").drop_nulls().iter_rows())
        for name, drawn in drawn_tensors.items():
            drawn["names"] = axes(name, drawn["shape"])
    return drawn_tensors


def drawn_run(source: str, made: Run | Merged, *, overflow_check: bool) -> DrawnRun:
    """A run as a tree, without links."""
    run = made.run if isinstance(made, Merged) else made
    tree = build_tree(run)
    assign_micro_steps(tree, run.folder / "construct.json")
    communication = Communication() if isinstance(made, Merged | Whole) else read_communication(run)
    side = DrawnRun(source, run, tree, call_sites(run.stacks, tree), communication)
    _note_merging(side, made)
    if overflow_check:
        levels = overflow_levels(run)
        side.overflow = [levels[op] if op >= 0 else None for op in tree.ops]
    return side


def _note_merging(side: DrawnRun, made: Run | Merged) -> None:
    if isinstance(made, Merged):
        side.merge_info = {side.tree.index[op]: parts for op, parts in made.info.items()}


def node_extras(picture: Picture) -> Iterator[tuple[object, ...]]:
    """One row per compared node of the run under test, in the order of the table's key."""
    side, values = picture.target, picture.values
    if values is None:
        return
    place = {node: position for position, node in enumerate(side.tree.order)}
    compared = [node for node, op in enumerate(side.tree.ops) if op >= 0 and values.severity[op] >= 0]
    for node in sorted(compared, key=side.tree.names.__getitem__):
        op = side.tree.ops[node]
        yield (
            side.source, picture.step, picture.rank, side.tree.names[node], _number(values.error[op]),
            values.verdict(op), values.origin[op], values.rule[op], place[node], _number(values.drift[op]),
            _number(values.expected[op]), _number(values.times[op]), values.arguments[op],
        )  # fmt: skip


def node_facts(picture: Picture) -> dict[str, dict[str, Any]]:
    """The same for ``.vis`` files, by node."""
    keys = ("error", "verdict", "origin", "matched_by", "expected", "times", "arguments")
    return {str(row[3]): dict(zip(keys, (*row[4:8], *row[10:]), strict=True)) for row in node_extras(picture)}


def summary_facts(picture: Picture) -> dict[str, str]:
    """Where the two runs part, in words, and the counts of the verdicts."""
    if picture.comparison is None or picture.golden is None:
        return {}
    summary = picture.comparison.summary
    facts = {"mode": summary.mode, "verdicts": json.dumps(summary.verdicts)}
    if summary.first is not None:
        index, row = picture.target.tree.index, summary.first.row
        # Of a call that only golden makes, the page shows the one that reads its result.
        shown = (
            summary.first.op
            if summary.first.op in index
            else next((op for op in index if f"{row}.".startswith(f"{op}.")), "")
        )
        partner = picture.target.link[index[shown]] if shown else -1
        facts |= {
            "first_node": shown,
            "first_golden_node": picture.golden.tree.names[partner] if partner >= 0 else "",
            "first_sentence": summary.first.sentence,
            "first_stack": summary.first.stack_line,
        }
    return facts | {f"inside:{name}": json.dumps(drawn) for name, drawn in picture.inside.items()}


def summary_rows(picture: Picture) -> Iterator[tuple[object, ...]]:
    """The rows of the summary table for one step and rank."""
    for key, value in summary_facts(picture).items():
        yield picture.step, picture.rank, key, value


def _number(value: float) -> float | None:
    return None if isnan(value) else float(value)


def log_calls(picture: Picture) -> None:
    """Write one line per call of the run under test to standard error: its counterpart, its error, its verdict."""
    if picture.values is None or picture.golden is None:
        return
    side, values = picture.target, picture.values
    for node in side.tree.order:
        op, partner = side.tree.ops[node], side.link[node]
        if op < 0:
            continue
        facts = "no counterpart"
        if partner >= 0:
            error = values.error[op]
            size = "" if isnan(error) else f" relative error {error:.6g}"
            origin = f" ({values.origin[op]})" if values.origin[op] else ""
            facts = f"{picture.golden.tree.names[partner]}{size} {values.verdict(op) or 'no values'}{origin}"
        sys.stderr.write(visible(f"{side.tree.names[node]} <-> {facts}") + "\n")
