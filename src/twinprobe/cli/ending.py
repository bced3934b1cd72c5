"""SIGTERM ends a command as an interruption does: what is half written goes, what is finished stays."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# The others run somebody else's program, whose signals are its own, or a server with nothing to clean up.
_TIDY = frozenset({"compare", "align", "graph", "graph_visualize", "merge_result"})


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


@contextmanager
def tidy_on_sigterm(command: str) -> Iterator[None]:
    """Raise Terminated where SIGTERM would end the process on the spot."""
    default = command in _TIDY and threading.current_thread() is threading.main_thread()
    if not default or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
    if "multiprocessing.process" in sys.modules:
        from multiprocessing import active_children

        for child in active_children():  # waiting for them could take longer than a job has before it is killed
            child.terminate()
    raise Terminated
