"""One graph, or two compared: everything that a graph file says about one step and rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from twinprobe.align.pairs import Pairs
from twinprobe.compare.one import Comparison, Options, compare_runs
from twinprobe.graph.call_sites import CallSites
from twinprobe.graph.communication import Communication, read_communication
from twinprobe.graph.fit_shapes import ShapeFitter
from twinprobe.graph.links import Matcher, TreeMatcher, reverse_links
from twinprobe.graph.metric_texts import NEEDED, MetricTexts
from twinprobe.graph.micro_steps import assign_micro_steps
from twinprobe.graph.node_values import CallValues, call_values
from twinprobe.graph.overflow import overflow_levels
from twinprobe.graph.parallel_merge import Merged
from twinprobe.graph.texts import quoted
from twinprobe.graph.tree import Tree, build_tree
from twinprobe.graph.values import CallTexts, Style, ValueTexts
from twinprobe.judge.thresholds import Thresholds
from twinprobe.runs.run import Run

if TYPE_CHECKING:
    import polars as pl

TARGET, GOLDEN = "NPU", "Bench"
_CALLS_AT_A_TIME = 1024


class Paths:
    """The names from the root to a node, as the inside of a JSON array."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._known: dict[int, str] = {}

    def __getitem__(self, node: int) -> str:
        names, above = self._tree.names, self._tree.parents[node]
        if above < 0:
            return quoted(names[node])
        prefix = self._known.get(above)
        if prefix is None:
            prefix = self._known[above] = ",".join(quoted(names[step]) for step in self._tree.path(above))
        return f"{prefix},{quoted(names[node])}"


@dataclass
class Side:
    """One run as a tree, with the partner of each node on the other side."""

    source: str
    run: Run
    tree: Tree
    order: list[int]
    sites: CallSites
    communication: Communication
    link: list[int] = field(default_factory=list)
    overflow: list[str | None] = field(default_factory=list)
    merge_info: dict[int, list[str]] = field(default_factory=dict)

    @cached_property
    def paths(self) -> Paths:
        """The way to each node, as text."""
        return Paths(self.tree)

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
    target: Side
    golden: Side | None
    micro_steps: int
    comparison: Comparison | None
    values: CallValues | None

    @property
    def sides(self) -> list[tuple[Side, Side | None]]:
        """Each side with the other one."""
        if self.golden is None:
            return [(self.target, None)]
        return [(self.target, self.golden), (self.golden, self.target)]

    def texts(self, side: Side, style: Style) -> Iterator[CallTexts]:
        """The inputs and outputs of a side's calls, a piece at a time."""
        more = None
        if side is self.target and self.comparison is not None:
            more = MetricTexts(self.comparison, style).rows
        return side.texts(style, more)


class Beside(Protocol):
    """Another process that works on the trusted run's half."""

    def side(self, run: Run) -> Side | None:
        """The trusted run as a tree, or None if it has to be made here."""

    def linked(self, target: Side, golden: Side) -> None:
        """Told when the nodes of both sides are matched."""


@dataclass(frozen=True)
class DrawOptions:
    """How graphs are drawn."""

    match: Matcher
    same_ancestors: bool = True
    overflow_check: bool = False
    thresholds: Thresholds = field(default_factory=Thresholds)
    progress: Callable[[int, int], None] = lambda _done, _total: None


def draw_one(run: Run | Merged, step: int, rank: int, options: DrawOptions) -> Picture:
    """The graph of a single run."""
    side, micro_steps = side_of(TARGET, run, overflow_check=options.overflow_check)
    return Picture(step, rank, side, None, micro_steps, None, None)


def draw_pair(
    target: Run | Merged, golden: Run | Merged, step: int, rank: int, options: DrawOptions, beside: Beside | None = None
) -> Picture:
    """Two runs compared, by the same engine as every other report."""
    left, micro_steps = side_of(TARGET, target, overflow_check=options.overflow_check)
    right = beside.side(golden) if beside is not None and isinstance(golden, Run) else None
    tell = beside.linked if beside is not None and right is not None else None
    if right is None:
        right, _ = side_of(GOLDEN, golden, overflow_check=options.overflow_check)
    match = options.match
    if isinstance(target, Merged) and isinstance(golden, Merged):
        match = ShapeFitter(match, target, golden)
    matcher = _Linking(left, right, match, tell, same_ancestors=options.same_ancestors)
    comparison = compare_runs(
        left.run, right.run, Options(match=matcher, thresholds=options.thresholds, progress=options.progress)
    )
    if tell is not None:
        right.run.table = right.run.table.clear()  # it is rendered over there: room for the rest
    for side, made in ((left, target), (right, golden)):
        _tell_merging(side, made)  # once more: the other side's shapes have told what the shards are
    values = call_values(comparison)
    comparison.evidence.pairs = comparison.evidence.pairs.select(NEEDED)
    return Picture(step, rank, left, right, micro_steps, comparison, values)


class _Linking(TreeMatcher):
    """A matcher that notes the links on both sides, and tells when they are there."""

    def __init__(
        self,
        left: Side,
        right: Side,
        match: Matcher,
        tell: Callable[[Side, Side], None] | None,
        *,
        same_ancestors: bool,
    ) -> None:
        super().__init__(left.tree, right.tree, match, same_ancestors=same_ancestors)
        self._sides = left, right
        self._tell = tell

    def __call__(self, target: Run, golden: Run) -> Pairs:
        pairs = super().__call__(target, golden)
        left, right = self._sides
        left.link, right.link = self.link, reverse_links(self.link, len(right.tree))
        if self._tell is not None:
            self._tell(left, right)
        return pairs


def side_of(source: str, made: Run | Merged, *, overflow_check: bool) -> tuple[Side, int]:
    """A run as a tree, and how many micro steps it has."""
    run = made.run if isinstance(made, Merged) else made
    tree = build_tree(run)
    micro_steps = assign_micro_steps(tree, run.folder / "construct.json")
    order = tree.post_order()
    communication = Communication() if isinstance(made, Merged) else read_communication(run)
    side = Side(source, run, tree, order, CallSites(run, tree, order), communication)
    _tell_merging(side, made)
    if overflow_check:
        levels = overflow_levels(run)
        side.overflow = [levels[op] if op >= 0 else None for op in tree.ops]
    return side, micro_steps


def _tell_merging(side: Side, made: Run | Merged) -> None:
    if isinstance(made, Merged):
        side.merge_info = {side.tree.index[op]: told for op, told in made.info.items()}
