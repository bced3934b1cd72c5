"""Many ranks on the terminal: who is well, who is not, and where it began."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from twinprobe.judge.summary import Summary
from twinprobe.report.text import visible

if TYPE_CHECKING:
    from rich.console import Console

_MOST_ROWS = 64
_PARTS = re.compile(r"/(?:mode=\w+/)?step=\d+/rank=\d+/")


def print_ranks(summaries: Sequence[Summary], console: Console) -> None:
    """A table of rank by verdict, then each rank's first divergence (the worst ranks when there are many)."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"{len(summaries)} ranks compared", title_justify="left", header_style="bold")
    unread = any(summary.unread for summary in summaries)
    titles = ["rank", "rows", "matched", "pass", "warning", "error", "first divergence"]
    for title in [*titles[:3], *(["unreadable"] if unread else []), *titles[3:]]:
        table.add_column(title, justify="left" if title in ("rank", "first divergence") else "right", overflow="fold")
    shown = _worst_first(summaries) if len(summaries) > _MOST_ROWS else list(summaries)
    for summary in shown[:_MOST_ROWS]:
        counts = summary.verdicts
        table.add_row(
            escape(visible(summary.rank)), f"{summary.rows:,}", f"{summary.matched:,}",
            *([_coloured(summary.unread, "yellow")] if unread else []), f"{counts['pass']:,}",
            _coloured(counts["warning"], "yellow"), _coloured(counts["error"], "red"),
            escape(visible(summary.first.row)) if summary.first else "-",
        )  # fmt: skip
    console.print(table)
    if len(summaries) > _MOST_ROWS:
        console.print(f"... and {len(summaries) - _MOST_ROWS} more ranks")
    notes = list(dict.fromkeys(note for summary in summaries for note in summary.notes))
    for note in notes[:_MOST_ROWS]:
        console.print(f"[yellow]warning:[/yellow] {escape(visible(note))}")
    if len(notes) > _MOST_ROWS:
        console.print(f"... and {len(notes) - _MOST_ROWS} more warnings: see the summary")
    folders = dict.fromkeys(_folder(path) for summary in summaries for path in summary.files)
    for folder in folders:
        console.print(f"results in {escape(visible(folder))}", soft_wrap=True)


def _folder(path: str) -> str:
    """The folder that a person opens: of a part of a dataset, the dataset."""
    found = _PARTS.search(path)
    return path[: found.start()] if found else path.rpartition("/")[0] or "."


def _worst_first(summaries: Sequence[Summary]) -> list[Summary]:
    return sorted(summaries, key=lambda summary: (-summary.verdicts["error"], -summary.verdicts["warning"]))


def _coloured(count: int, colour: str) -> str:
    return f"[{colour}]{count:,}[/{colour}]" if count else "0"
