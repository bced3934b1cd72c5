"""What a command shows on the terminal: progress, the summary, plain lines for machines."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twinprobe.compare.analyze import Analysis
    from twinprobe.compare.job import Outcome

_PATIENCE = 1.0  # seconds before progress is worth showing
_LINE_EVERY = 10.0  # seconds between plain progress lines where there is no terminal


class Progress:
    """A progress bar on a terminal, an occasional line elsewhere, nothing for short work."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._began = time.monotonic()
        self._last = self._began
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, what: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` things are finished."""
        now = time.monotonic()
        if not self._enabled or now - self._began < _PATIENCE:
            return
        if sys.stderr.isatty():
            self._draw(what, done, total)
        elif now - self._last > _LINE_EVERY:
            self._last = now
            sys.stderr.write(f"{done} of {total} {what} compared\n")

    def _draw(self, what: str, done: int, total: int) -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(what, total=total)
        self._bar.update(self._task, completed=done, total=total)


def show(outcome: Outcome, *, as_json: bool) -> None:
    """Print what was found."""
    if as_json:
        _print_json(outcome)
        return
    from rich.console import Console

    from twinprobe.report.console import print_summary
    from twinprobe.report.ranks import print_ranks

    console = Console(highlight=False)
    if len(outcome.summaries) == 1:
        print_summary(outcome.summaries[0], console)
    else:
        print_ranks(outcome.summaries, console)
    warn(outcome.notes + outcome.failures)


def show_analysis(analysis: Analysis, *, as_json: bool) -> None:
    """Print where the difference began and which files tell more."""
    from twinprobe.report.text import visible

    if as_json:
        from twinprobe.report.text import json_bytes

        document = {
            "findings": analysis.findings,
            "files": [str(path) for path in analysis.files + analysis.reports],
            "ranks": [summary.to_dict() for summary in analysis.summaries],
            "notes": analysis.notes,
            "failures": analysis.failures,
        }
        sys.stdout.write(json_bytes(document).decode() + "\n")
        return
    for path in analysis.files:
        sys.stdout.write(f"Saving json file to disk: {visible(str(path))}\n")
    for finding in analysis.findings:
        sys.stdout.write(visible(finding) + "\n")
    for path in analysis.reports:
        sys.stdout.write(f"The analyze result is saved in: {visible(str(path))}\n")
    sys.stdout.flush()
    warn(analysis.notes + analysis.failures)


def _print_json(outcome: Outcome) -> None:
    from twinprobe.report.text import json_bytes

    if not outcome.summaries[0].rank:  # two files, not a folder of ranks
        document = outcome.summaries[0].to_dict()
        document["notes"] = document["notes"] + outcome.notes + outcome.failures
    else:
        document = {
            "ranks": [summary.to_dict() for summary in outcome.summaries],
            "notes": outcome.notes,
            "failures": outcome.failures,
        }
    sys.stdout.write(json_bytes(document).decode() + "\n")


def warn(lines: list[str]) -> None:
    """Write warnings to standard error, a line each."""
    from twinprobe.report.text import visible

    for line in lines:
        sys.stderr.write(f"warning: {visible(line)}\n")
