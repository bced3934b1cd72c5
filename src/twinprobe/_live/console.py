"""The short report on a terminal: the verdict, the guilty pair, its numbers, its line, and the two trees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isnan
from typing import TYPE_CHECKING, Any

from twinprobe._live.findings import Finding, First
from twinprobe._live.live_run import Values
from twinprobe._report.console import visible
from twinprobe._runs.names import FORWARD, parse_op

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from twinprobe._live.result import Result

# The tree of a model with marks: what agrees, what differs, and where it begins.

AGREES, DIFFERS, FIRST, UNSEEN = "agrees", "differs", "first", "not compared"
SIGNS = {AGREES: "✔", DIFFERS: "✖", FIRST: "➤", UNSEEN: "·"}
_PLAIN_SIGNS = {AGREES: "+", DIFFERS: "x", FIRST: ">", UNSEEN: "."}
MOST_LINES = 60


@dataclass
class Branch:
    """One call of a model."""

    name: str
    label: str
    mark: str
    children: list[Branch] = field(default_factory=list)

    def count(self) -> int:
        """How many calls there are from here on."""
        return 1 + sum(child.count() for child in self.children)

    @property
    def calm(self) -> bool:
        """Whether nothing differs from here on."""
        return self.mark not in (DIFFERS, FIRST) and all(child.calm for child in self.children)


@dataclass(frozen=True)
class Calls:
    """The calls of a model: all that its tree needs of a run, without the tensors."""

    names: list[str]
    parents: dict[str, str | None]

    @classmethod
    def of(cls, run: Values) -> Calls:
        return cls(run.ops, run.parents)


def model_tree(run: Calls, findings: list[Finding], first: str, *, golden: bool) -> list[Branch]:
    """The calls of a model inside one another; functions are shown only where they differ."""
    marks: dict[str, str] = {}
    for one in findings:
        name = _forward_name(one.base if golden else one.raw)
        if one.differs:
            marks[name] = DIFFERS
        else:
            marks.setdefault(name, AGREES)
    if first:
        marks[_forward_name(first)] = FIRST
    branches: dict[str, Branch] = {}
    for name in _calls(run):
        op = parse_op(name)
        mark = marks.get(name, UNSEEN)
        if op.is_module or mark in (DIFFERS, FIRST):
            branches[name] = Branch(name, _label(name), mark)
    roots: list[Branch] = []
    for name, branch in branches.items():
        parent = run.parents.get(name)
        while parent is not None and parent not in branches:
            parent = run.parents.get(parent)
        (branches[parent].children if parent is not None else roots).append(branch)
    return roots


def tree_lines(roots: list[Branch], *, plain: bool = False, most: int = MOST_LINES) -> list[tuple[str, str]]:
    """(line, mark) from top to bottom; in a long tree what agrees is folded."""
    total = sum(root.count() for root in roots)
    lines: list[tuple[str, str]] = []
    for root in roots:
        _grow(root, "", "", lines, fold=total > most, plain=plain)
    if len(lines) > most:
        at = next((place for place, (_, mark) in enumerate(lines) if mark == FIRST), 0)
        begin = max(0, min(at - most // 2, len(lines) - most))
        left = len(lines) - most
        lines = [*lines[begin : begin + most], (f"... {left} more lines", UNSEEN)]
    return lines


def _grow(branch: Branch, lead: str, next_lead: str, lines: list[tuple[str, str]], *, fold: bool, plain: bool) -> None:
    sign = (_PLAIN_SIGNS if plain else SIGNS)[branch.mark]
    folded = fold and branch.calm and bool(branch.children)
    more = f"  ({branch.count() - 1} inside agree)" if folded else ""
    lines.append((f"{lead}{sign} {branch.label}{more}", branch.mark))
    if folded:
        return
    tee, corner, bar = ("|- ", "`- ", "|  ") if plain else ("├─ ", "└─ ", "│  ")
    for child in branch.children:
        last = child is branch.children[-1]
        _grow(
            child, next_lead + (corner if last else tee), next_lead + ("   " if last else bar), lines,
            fold=fold, plain=plain,
        )  # fmt: skip


def _calls(run: Calls) -> list[str]:
    """Forward calls in the order in which they began: those without values of their own too."""
    names = dict.fromkeys(name for name in run.parents if parse_op(name).direction == FORWARD)
    names.update(dict.fromkeys(name for name in run.names if parse_op(name).direction == FORWARD))
    return list(names)


def _forward_name(name: str) -> str:
    op = parse_op(name)
    head = ".".join(filter(None, (op.prefix, op.body, op.cls)))
    call = max(op.call, 0)
    return (
        f"{head}.{FORWARD}.{call}" if op.is_module or op.direction == "parameters_grad" else f"{head}.{call}.{FORWARD}"
    )


def _label(name: str) -> str:
    op = parse_op(name)
    again = f" call {op.call + 1}" if op.call > 0 and op.is_module else ""
    if not op.is_module:
        return f"{op.body}() call {op.call + 1}"
    return f"{op.body} ({op.cls}){again}" if op.body else f"{op.cls}{again}"


_STYLES = {FIRST: "bold red", DIFFERS: "red"}
_FOLLOWING = 8


def print_result(result: Result, console: Console | None = None) -> None:
    """Print the report."""
    from rich.console import Console

    console = console or Console()
    plain = console.options.ascii_only
    for line in _lines(result, plain=plain):
        console.print(line, soft_wrap=True, highlight=False)
    if result.first is not None and (result.raw_tree or result.base_tree):
        console.print(_trees(result, plain=plain, width=console.width))


def say(text: str) -> None:
    """One line for the user."""
    from rich.console import Console

    Console().print(visible(text), soft_wrap=True, highlight=False, markup=False)


def _lines(result: Result, *, plain: bool) -> Iterator[Text]:
    counts = result.counts()
    compared = f"{counts['compared']:,} pairs of tensors"
    steps = f", {result.steps} steps" if result.steps > 1 else ""
    if result.first is None:
        yield _text("aligned" if plain else "✔ aligned", "bold green").append(
            f"  {result.raw} against {result.base}: {compared}{steps}, all agree"
            if not counts["differ"]
            else f"  {result.raw} against {result.base}: {compared}{steps}; {counts['differ']} inner ones differ"
        )
    else:
        yield _text("not aligned" if plain else "✖ not aligned", "bold red").append(
            f"  {result.raw} against {result.base}: {counts['differ']:,} of {compared} differ{steps}"
        )
        yield from _first(result.first)
        yield from _following(result)
    if result.written_to:
        yield _text("weights: ", "cyan").append(visible(result.written_to))
    for note in result.notes:
        yield _text("note: ", "cyan").append(visible(note))
    for file in result.files:
        yield _text("written: ", "cyan").append(visible(str(file)))


def _first(first: First) -> Iterator[Text]:
    step = f", step {first.step}" if first.step else ""
    yield _text(f"  first difference ({first.phase}{step})", "bold")
    yield _text("    raw   ", "dim").append(visible(first.raw), "bold")
    if first.raw_line:
        yield _text("          at ", "dim").append(visible(first.raw_line))
    yield _text("    base  ", "dim").append(visible(first.base), "bold")
    if first.base_line:
        yield _text("          at ", "dim").append(visible(first.base_line))
    yield _text(f"    {first.why}")
    for one in first.findings[:4]:
        gap = one.gap
        shown = [f"max abs {gap.max_abs:.3g}", f"max rel {gap.max_rel:.3g}", f"cosine {gap.cosine:.6g}"]
        numbers = [
            text for text, value in zip(shown, (gap.max_abs, gap.max_rel, gap.cosine), strict=True) if not isnan(value)
        ]
        yield _text(f"    {one.tensor}  ", "dim").append(", ".join([*numbers, gap.why]))


def _following(result: Result) -> Iterator[Text]:
    assert result.first is not None
    calls = dict.fromkeys(
        one.raw for one in result.differences if one.decides and one.raw != result.first.raw
    )  # fmt: skip
    if not calls:
        return
    names = list(calls)
    more = f" and {len(names) - _FOLLOWING} more" if len(names) > _FOLLOWING else ""
    yield _text("  then differ  ", "dim").append(visible(", ".join(names[:_FOLLOWING]) + more))
    others = [
        one for one in result.differences if one.cause == "injected" and one.decides and one.raw != result.first.raw
    ]
    for one in others[:3]:
        yield _text("  also begins  ", "dim").append(visible(f"{one.raw} ({one.phase}: {one.gap.why})"))


def _trees(result: Result, *, plain: bool, width: int) -> Any:
    """Both trees, side by side where there is room."""
    from rich.console import Group
    from rich.table import Table

    sides = [("raw", tree_lines(result.raw_tree, plain=plain)), ("base", tree_lines(result.base_tree, plain=plain))]
    columns = [_tree(title, lines) for title, lines in sides]
    if sum(max((len(line) for line, _ in lines), default=0) + 4 for _, lines in sides) > width:
        return Group(*columns)
    table = Table(box=None, padding=(0, 2, 0, 2), show_header=False)
    for _ in columns:
        table.add_column(no_wrap=True)
    table.add_row(*columns)
    return table


def _tree(title: str, lines: list[tuple[str, str]]) -> Text:
    text = _text(title, "bold")
    for line, mark in lines:
        text.append("\n" + visible(line), _STYLES.get(mark, ""))
    text.no_wrap, text.overflow = True, "ignore"
    return text


def _text(content: str, style: str = "") -> Text:
    from rich.text import Text

    text = Text()
    text.append(visible(content), style)
    return text
