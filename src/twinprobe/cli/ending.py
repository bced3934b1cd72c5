"""How a command ends: its exit code, and SIGTERM, after which as after Ctrl-C only what is finished stays."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from twinprobe.scale import interrupts

if TYPE_CHECKING:
    from twinprobe.judge.summary import Summary

BAD_INPUT = 2

# The others run somebody else's program, whose signals are its own, or a server with nothing to clean up.
_TIDY = frozenset({"compare", "align", "graph", "graph_visualize", "merge_result"})


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


@contextmanager
def tidy_on_signals(command: str) -> Iterator[None]:
    """Raise Terminated where SIGTERM would end the process on the spot; see that no Ctrl-C gets lost."""
    ours = command in _TIDY and threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in _HANDLERS} if ours else {}
    taken = [number for number, handler in before.items() if handler is _DEFAULTS[number]]
    for number in taken:
        signal.signal(number, _HANDLERS[number])
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number])
        interrupts.forget()


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise interrupts.note(KeyboardInterrupt())


def _terminate(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
    if "multiprocessing.process" in sys.modules:
        from multiprocessing import active_children

        for child in active_children():  # waiting for them could take longer than a job has before it is killed
            child.terminate()
    raise interrupts.note(Terminated())


_HANDLERS = {signal.SIGTERM: _terminate, signal.SIGINT: _interrupt}
_DEFAULTS = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}


def add_allow_missing(parser: argparse.ArgumentParser) -> None:
    """Declare the option that accepts an incomplete result."""
    parser.add_argument(
        "--allow-missing", action=argparse.BooleanOptionalAction, default=None,
        help="exit with 0 although something that was asked for is missing in the result",
    )  # fmt: skip


def exit_code(args: argparse.Namespace, summaries: Sequence[Summary], lost: Sequence[str]) -> int:
    """2 where the result lacks something (``lost`` says what), 1 where --fail-on found such a verdict, else 0."""
    problem = ""
    if lost and not args.allow_missing:
        more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
        problem = f"the result is incomplete: {lost[0]}{more}"
    elif fail_on := getattr(args, "fail_on", None):
        bad = ("error",) if fail_on == "error" else ("error", "warning")
        if any(summary.verdicts[name] for summary in summaries for name in bad):
            return 1
        unread = sum(summary.unread for summary in summaries)
        if unread and not args.allow_missing:
            tensors = "1 tensor" if unread == 1 else f"{unread:,} tensors"
            problem = f"--fail-on {fail_on}: {tensors} could not be read, so nobody knows whether the runs agree"
    if not problem:
        return 0
    complain(args.prog, f"{problem}; --allow-missing accepts that")
    return BAD_INPUT


def complain(prog: str, text: str) -> None:
    """Write an error to standard error, in one line."""
    from twinprobe.report.text import visible

    sys.stderr.write(f"{prog}: error: {visible(text, keep_newlines=True)}\n")
