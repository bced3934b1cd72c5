"""The summary of a comparison on a terminal, and as one JSON object for machines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from twinprobe.judge.summary import unread_rows
from twinprobe.report.text import json_bytes, visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from twinprobe.judge.summary import Divergence, Side, Summary

_SIGNS = {"pass": ("✔", "+", "green"), "warning": ("▲", "!", "yellow"), "error": ("✖", "x", "bold red")}
_INDENT = "  "


def to_json(summary: Summary) -> str:
    """The whole summary as one JSON object on one line."""
    return json_bytes(summary.to_dict()).decode()


def print_summary(summary: Summary, console: Console) -> None:
    """Print what was compared, the counts, the first divergence and where the files are."""
    plain = console.options.ascii_only
    for line in _lines(summary, plain=plain):
        if plain:
            line.plain = line.plain.encode("ascii", "backslashreplace").decode()
        # Never wrapped: a name or a path must survive being copied or searched for.
        console.print(line, soft_wrap=True, highlight=False)


def _lines(summary: Summary, *, plain: bool) -> Iterator[Text]:
    dot = " - " if plain else " · "
    title = dot.join(part for part in (f"{summary.mode} compare", summary.rank) if part)
    yield _text(title, "bold")
    for who, side in (("target", summary.target), ("golden", summary.golden)):
        yield _side(who, side, dot)
    yield _text("")
    yield _counts(summary, dot)
    yield _verdicts(summary, plain=plain)
    yield _text("")
    yield from _first(summary.first, plain=plain) if summary.first else _no_divergence(summary)
    for note in summary.notes:
        yield _text("note: ", "cyan").append(visible(note))
    if summary.files:
        yield _text("")
        yield _text("written to", "bold")
        for file in summary.files:
            yield _text(_INDENT).append(visible(file), "cyan")


def _text(content: str, style: str = "") -> Text:
    from rich.text import Text

    text = Text()
    text.append(visible(content), style)
    return text


def _side(who: str, side: Side, dot: str) -> Text:
    facts = [side.framework, side.task, side.level, f"{side.ops:,} calls", f"{side.rows:,} values"]
    line = _text(f"{_INDENT}{who}  ", "dim").append(visible(side.path))
    return line.append(visible(dot + dot.join(fact for fact in facts if fact)), "dim")


def _counts(summary: Summary, dot: str) -> Text:
    counts = [
        f"{summary.rows:,} rows",
        f"{summary.matched:,} matched",
        f"{summary.target_only:,} only in target",
        f"{summary.golden_only:,} only in golden",
        *([f"{summary.unread:,} unreadable"] if summary.unread else []),
    ]
    return _text(_INDENT + dot.join(counts))


def _verdicts(summary: Summary, *, plain: bool) -> Text:
    line = _text(_INDENT)
    for verdict, (sign, plain_sign, style) in _SIGNS.items():
        count = summary.verdicts.get(verdict, 0)
        line.append(f"{plain_sign if plain else sign} {count:,} {verdict}   ", style if count else "dim")
    line.rstrip()
    return line


def _no_divergence(summary: Summary) -> Iterator[Text]:
    if not summary.verdicts.get("error") and not summary.verdicts.get("warning"):
        yield _text("No divergence: every row passes.", "green")
    else:
        words = "No first divergence: no output differs whose inputs agree. The result files list the rest."
        if summary.unread:
            words += f" {unread_rows(summary.unread)}: there a difference may have gone unnoticed."
        yield _text(words, "yellow")


def _first(first: Divergence, *, plain: bool) -> Iterator[Text]:
    yield _text("first divergence", "bold red").append(f" (row {first.order + 1:,}{_origin(first)})", "dim")
    yield _text(_INDENT).append(visible(first.op), "bold")
    yield _text(_INDENT + first.sentence)
    if first.stack_line:
        yield _text(_INDENT + "at ", "dim").append(visible(first.stack_line))
    yield _text(f"{_INDENT}row     ", "dim").append(visible(first.row))
    if first.golden_row not in ("", first.row):
        yield _text(f"{_INDENT}golden  ", "dim").append(visible(first.golden_row))
    yield from _values(first, missing="-" if plain else "–")


def _origin(first: Divergence) -> str:
    return f", {visible(first.origin)}" if first.origin else ""


def _values(first: Divergence, missing: str) -> Iterator[Text]:
    """Both sides' values under each other's names, in aligned columns."""
    names = list(dict.fromkeys([*first.target_values, *first.golden_values]))
    rows = [("", "target", "golden")]
    rows += [(name, first.target_values.get(name, missing), first.golden_values.get(name, missing)) for name in names]
    shown = [tuple(visible(cell) for cell in row) for row in rows]
    widths = [max(len(row[i]) for row in shown) for i in range(3)]
    for i, (name, target, golden) in enumerate(shown if names else []):
        line = _text(f"{_INDENT}{name:{widths[0]}}  ", "dim")
        style = "dim" if i == 0 else ("bold" if target != golden else "")
        yield line.append(f"{target:{widths[1]}}  {golden}", style)
