"""What the commands share: argument types and groups, progress, and how an outcome is printed."""

from __future__ import annotations

import argparse
import shlex
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, cast

from twinprobe._runs.whole_files import place, remote
from twinprobe._scale.engine import ENGINES
from twinprobe.errors import BadInput

if TYPE_CHECKING:
    from twinprobe._compare.request import Outcome
    from twinprobe._scale.engine import EngineOptions

path = place  # a path or URL as the user typed it
# As the reports have them, whose import (numpy, the judge) would slow the start of every command.
FORMATS = ("xlsx", "csv", "parquet", "json", "html")


def local_path(text: str) -> Path:
    """A path that must be on this machine."""
    local = path(text)
    if remote(local) is not None:
        raise BadInput("is a URL, but this must be a path on this machine", where=text)
    return local


def formats(text: str, known: tuple[str, ...] = FORMATS) -> tuple[str, ...]:
    """A comma list of result formats."""
    names = tuple(name.strip().lower() for name in text.split(",") if name.strip())
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        raise argparse.ArgumentTypeError(f"{', '.join(wrong) or 'nothing'}: choose from {', '.join(known)}")
    return tuple(dict.fromkeys(names))


# With all ranks in one, cut by step and rank.
formats_or_dataset = partial(formats, known=(*FORMATS, "dataset"))


def numbers(text: str) -> frozenset[int]:
    """A comma list of rank or step numbers; ranges such as 4-6 are understood."""
    chosen: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 0,1 or 0-3")
        chosen.update(range(int(first), int(last if dash else first) + 1))
    return frozenset(chosen)


def seconds(text: str) -> float:
    """A time in seconds."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return number


# How calls of two runs are paired: the same arguments for compare and graph.


def add_pair_arguments(add: Callable[..., object]) -> None:
    """Declare what governs the pairing by names."""
    add("--pair", choices=("place", "numbers"),
        help="pair calls of equal name by their place in the model (default), or by their call number")  # fmt: skip
    add("--align", choices=("auto", "names", "none"), default="auto",
        help="align calls whose names differ (auto, default), pair by names only (names), or by mapping files only "
        "(none)")  # fmt: skip
    add(
        "--alignment",
        type=path,
        metavar="JSON",
        help="pair by an alignment.json from twinprobe align, which you may edit",
    )


def pair_rule(args: argparse.Namespace) -> Literal["place", "numbers"]:
    """The rule for equal names; BadInput where options contradict each other."""
    instead = {
        "-fm": args.fuzzy_match,
        "--alignment": args.alignment is not None,
        "--align none": args.align == "none",
        "-lm without a file": args.layer_mapping is True,
    }
    asked = [flag for flag, is_given in instead.items() if is_given]
    if args.pair is not None and asked:
        raise BadInput(f"--pair {args.pair} contradicts {asked[0]}", hint=f"leave out --pair or {asked[0]}")
    if args.fuzzy_match and len(asked) > 1 and asked[1] != "-lm without a file":
        raise BadInput(f"-fm contradicts {asked[1]}", hint=f"leave out -fm or {asked[1]}")
    if args.layer_mapping is True:
        return "numbers"
    return cast('Literal["place", "numbers"]', args.pair or args.usual_pair)


# Where a command's work runs: the same arguments for every command.


def add_engine_arguments(parser: argparse.ArgumentParser, *, slices: bool = False) -> None:
    """Declare the engine's arguments; ``slices`` where the command cuts its work into them."""
    add = parser.add_argument_group("where the work runs").add_argument
    add("--engine", choices=ENGINES, default="auto",
        help="where to run: in this process, in worker processes or on a Ray cluster (default: auto)")  # fmt: skip
    add("--workers", type=positive, metavar="N", help="worker processes, or concurrent tasks on a cluster "
        "(default: all cores)")  # fmt: skip
    add("--ray-address", metavar="ADDRESS",
        help="a running Ray cluster, HOST:PORT or auto (default: RAY_ADDRESS, else one started here)")  # fmt: skip
    if slices:
        add("--slice-mb", type=positive, metavar="N",
            help="split the tensors of a rank into slices of N MiB (default: 1024, or 8192 if every worker "
            "has at least 4 ranks)")  # fmt: skip
    add("--resume", action="store_true", help="resume an interrupted run of the same command")


def engine_options(args: argparse.Namespace) -> EngineOptions:
    """The engine that the arguments ask for."""
    from twinprobe._scale.engine import EngineOptions

    slice_mb = getattr(args, "slice_mb", None)
    return EngineOptions(args.engine, args.workers, args.ray_address, slice_mb and slice_mb << 20)


def positive(text: str) -> int:
    """A whole number from 1 up."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 up")
    return int(text)


# What a command shows on the terminal: progress, the summary, plain lines for machines.

_PATIENCE = 1.0  # seconds before progress is worth showing
_LINE_EVERY = 10.0  # seconds between plain progress lines where there is no terminal


class Progress:
    """A progress bar on a terminal, an occasional line elsewhere, nothing for work of less than a second."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._on_terminal = sys.stderr.isatty()
        self._began = time.monotonic()
        self._last = self._began
        self._lock = threading.Lock()
        self._pace = Pace()
        self._bar: Any = None
        self._timer = threading.Timer(_PATIENCE, self._draw, ("comparing", None, None))
        self._timer.daemon = True

    def __enter__(self) -> Progress:
        if self._enabled and self._on_terminal:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._lock:
            self._enabled = False
            if self._bar is not None:
                self._bar.stop()

    def advance(self, what: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` things are finished."""
        now = time.monotonic()
        self._pace.note(what, done, total, now)
        if not self._enabled or now - self._began < _PATIENCE:
            return
        if self._on_terminal:
            self._draw(what, done, total)
        elif now - self._last > _LINE_EVERY:
            self._last = now
            sys.stderr.write(", ".join([f"{done:,} of {total:,} {what} compared", *self._pace.words]) + "\n")

    def _draw(self, what: str, done: int | None, total: int | None) -> None:
        with self._lock:
            if not self._enabled:
                return
            if self._bar is None:
                self._bar = _progress_bar()
                self._bar.add_task(what, total=total, pace="")
                self._bar.start()
            pace = "  ".join(self._pace.words)
            self._bar.update(self._bar.task_ids[0], description=what, completed=done, total=total, pace=pace)


@dataclass
class Pace:
    """How fast one kind of work goes. What came before its first report (reading, resumed ranks) is left out."""

    rate: float | None = None  # per second
    left: float | None = None  # seconds
    _what: str = ""
    _since: float = 0.0
    _first: int = 0

    def note(self, what: str, done: int, total: int, now: float) -> None:
        """``done`` of ``total`` are finished at this time."""
        if what != self._what or done < self._first:
            self._what, self._since, self._first = what, now, done
        took, count = now - self._since, done - self._first
        self.rate = count / took if took > 0 and count else None
        self.left = (total - done) / self.rate if self.rate else None

    @property
    def words(self) -> list[str]:
        """The rate and the time left, as far as they are known."""
        if self.rate is None or self.left is None:
            return []
        return [f"{self.rate:.3g}/s", f"{timedelta(seconds=round(self.left))} left"]


def _progress_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[pace]}"),
    )  # fmt: skip
    return Progress(*columns, console=Console(stderr=True), transient=True)


def show_steps(outcome: Outcome, *, as_json: bool, each_step: bool) -> None:
    """Print where two runs of many steps part, then what was found in each step, if that is asked for."""
    steps = outcome.steps
    assert steps is not None
    parting = steps.parting
    if as_json:
        files = [str(path) for path in outcome.overview]
        following = next_command(outcome) if outcome.summaries else None
        print_json({"steps": asdict(parting), "agrees": not parting, "files": files, **facts_of(outcome),
                    "next": following})  # fmt: skip
        return
    from rich.console import Console

    from twinprobe._report.console import counted, print_ranks, print_summary
    from twinprobe._report.overview import step_lines

    say(parting.sentence)
    first = next((summary for summary in outcome.summaries if summary.first is not None), None)
    if parting and first is not None and not each_step:
        sys.stdout.flush()
        print_summary(first, Console(highlight=False))
    if each_step and not outcome.summaries:
        sys.stdout.writelines(f"{line}\n" for line in step_lines(steps))
    elif each_step:
        sys.stdout.flush()
        print_ranks(outcome.summaries, Console(highlight=False))
    elif outcome.summaries:
        apart = sum(summary.first is not None for summary in outcome.summaries)
        of = counted([summary.rank for summary in outcome.summaries])
        say(
            f"{apart:,} of {of} differ; --each-step lists them", f"results of each step in {outcome.overview[0].parent}"
        )
    for path in outcome.overview:
        what = "summary" if path.stem.startswith("compare_summary") else "curves" if path.suffix == ".html" else "table"
        say(f"{what}: {path}")
    sys.stdout.flush()
    warn(list(dict.fromkeys([*outcome.notes, *(note for summary in outcome.summaries for note in summary.notes)])))
    warn(outcome.failures)


def show(outcome: Outcome, *, as_json: bool) -> None:
    """Print what was found."""
    if as_json:
        document = facts_of(outcome)
        if not outcome.summaries[0].rank:  # two files, not a folder of ranks
            document = outcome.summaries[0].to_dict()
            document["notes"] = document["notes"] + outcome.notes + outcome.failures
        elif outcome.overview or outcome.findings:
            document |= {"findings": outcome.findings, "summary": [str(path) for path in outcome.overview]}
        print_json(document | {"next": next_command(outcome)})
        return
    from rich.console import Console

    from twinprobe._report.console import print_ranks, print_summary

    console = Console(highlight=False)
    if len(outcome.summaries) == 1:
        print_summary(outcome.summaries[0], console)
    else:
        print_ranks(outcome.summaries, console)
        say(*outcome.findings, *(f"summary of all ranks: {path}" for path in outcome.overview))
    warn(outcome.notes + outcome.failures)


def next_command(outcome: Outcome) -> str | None:
    """What to type next: the search across ranks, an alignment, or a closer look; None where the runs agree."""
    summaries = outcome.summaries
    sides = [[getattr(summary, side).path for summary in summaries] for side in ("target", "golden")]
    target, golden = (shlex.quote(_common_folder(paths) if len(paths) > 1 else paths[0]) for paths in sides)
    if all(summary.first is None and not summary.verdicts["error"] for summary in summaries):
        return None
    if sum(summary.matched for summary in summaries) * 2 < sum(summary.rows for summary in summaries):
        return f"twinprobe align {target} {golden} -o out"
    if len(summaries) > 1 and not outcome.calls:
        return f"twinprobe compare {target} {golden} -da -o out"
    if not any(file.endswith(".html") for summary in summaries for file in summary.files):
        return f"twinprobe compare {target} {golden} --format html -o out"
    if not all(path.endswith("dump.json") for paths in sides for path in paths):
        return None  # nothing that could be drawn
    target, golden = (shlex.quote(_common_folder([*paths, f"{paths[0].rpartition('/')[0]}/"])) for paths in sides)
    return f"twinprobe graph_visualize -tp {target} -gp {golden} -o out"


def _common_folder(paths: list[str]) -> str:
    """The folder that all of these lie in; paths may be URLs."""
    shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*(path.split("/") for path in paths), strict=False))
    return "/".join(parts[0] for parts in shared)


def show_analysis(analysis: Outcome, *, as_json: bool) -> None:
    """Print where the difference began and which files tell more."""
    if as_json:
        files = [str(path) for path in analysis.calls + analysis.reports]
        print_json({"findings": analysis.findings, "files": files, **facts_of(analysis),
                    "next": next_command(analysis)})  # fmt: skip
        return
    say(*(f"Saving json file to disk: {path}" for path in analysis.calls), *analysis.findings)
    say(*(f"The analyze result is saved in: {path}" for path in analysis.reports))
    sys.stdout.flush()
    warn(analysis.notes + analysis.failures)


def facts_of(outcome: Any) -> dict[str, Any]:
    """What the outcome of every command tells machines."""
    ranks = [summary.to_dict() for summary in outcome.summaries]
    return {"ranks": ranks, "notes": outcome.notes, "failures": outcome.failures}


def print_json(document: object) -> None:
    """Print one JSON object on one line."""
    from twinprobe._report.console import json_bytes

    sys.stdout.write(json_bytes(document).decode() + "\n")


def say(*lines: str) -> None:
    """Print lines; names and paths in them are foreign text, and are escaped."""
    from twinprobe._report.console import visible

    sys.stdout.writelines(f"{visible(line)}\n" for line in lines)


def warn(lines: list[str]) -> None:
    """Write warnings to standard error, a line each."""
    from twinprobe._report.console import visible

    for line in lines:
        sys.stderr.write(f"warning: {visible(line)}\n")
