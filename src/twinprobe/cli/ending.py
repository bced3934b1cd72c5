"""SIGTERM ends a command as Ctrl-C does: what is half written goes, what is finished stays."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from twinprobe.scale import interrupts

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
