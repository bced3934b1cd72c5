"""The short report on a terminal: the verdict, the guilty pair, its numbers, its line, and the two trees."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan
from typing import TYPE_CHECKING, Any

from twinprobe.live.causes import First
from twinprobe.live.trees import DIFFERS, FIRST, tree_lines
from twinprobe.report.text import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from twinprobe.live.result import Result

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
