"""One graph, or two compared: everything that a graph file says about one step and rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

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

TARGET, GOLDEN = "NPU", "Bench"
_CALLS_AT_A_TIME = 1024


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
    _paths: dict[int, str] = field(default_factory=dict)

    def path_text(self, node: int) -> str:
        """The names from the root to a node, as the inside of a JSON array."""
        above = self.tree.parents[node]
        name = quoted(self.tree.names[node])
        if above < 0:
            return name
        prefix = self._paths.get(above)
        if prefix is None:
            prefix = self._paths[above] = ",".join(quoted(self.tree.names[step]) for step in self.tree.path(above))
        return f"{prefix},{name}"

    def children_text(self, node: int) -> str:
        """The names of a node's children as a JSON array."""
        names = self.tree.names
        return f"[{','.join([quoted(names[child]) for child in self.tree.children[node]])}]"


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
        return ValueTexts(side.run, style, more, side.communication.group_texts).pieces(_CALLS_AT_A_TIME)


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
    side, micro_steps = _side(TARGET, run, options)
    return Picture(step, rank, side, None, micro_steps, None, None)


def draw_pair(target: Run | Merged, golden: Run | Merged, step: int, rank: int, options: DrawOptions) -> Picture:
    """Two runs compared, by the same engine as every other report."""
    left, micro_steps = _side(TARGET, target, options)
    right, _ = _side(GOLDEN, golden, options)
    match = options.match
    if isinstance(target, Merged) and isinstance(golden, Merged):
        match = ShapeFitter(match, target, golden)
    matcher = TreeMatcher(left.tree, right.tree, match, same_ancestors=options.same_ancestors)
    comparison = compare_runs(
        left.run, right.run, Options(match=matcher, thresholds=options.thresholds, progress=options.progress)
    )
    left.link = matcher.link
    right.link = reverse_links(matcher.link, len(right.tree))
    for side, made in ((left, target), (right, golden)):
        _tell_merging(side, made)  # once more: the other side's shapes have told what the shards are
    values = call_values(comparison)
    comparison.evidence.pairs = comparison.evidence.pairs.select(NEEDED)
    return Picture(step, rank, left, right, micro_steps, comparison, values)


def _side(source: str, made: Run | Merged, options: DrawOptions) -> tuple[Side, int]:
    run = made.run if isinstance(made, Merged) else made
    tree = build_tree(run)
    micro_steps = assign_micro_steps(tree, run.folder / "construct.json")
    order = tree.post_order()
    communication = Communication() if isinstance(made, Merged) else read_communication(run)
    side = Side(source, run, tree, order, CallSites(run, tree, order), communication)
    _tell_merging(side, made)
    if options.overflow_check:
        levels = overflow_levels(run)
        side.overflow = [levels[op] if op >= 0 else None for op in tree.ops]
    return side, micro_steps


def _tell_merging(side: Side, made: Run | Merged) -> None:
    if isinstance(made, Merged):
        side.merge_info = {side.tree.index[op]: told for op, told in made.info.items()}
