"""One piece of work in a forked process beside this one, while this one does its own."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from types import TracebackType
from typing import IO

from twinprobe.scale.engine import cores

# A fork after one of these has started its threads could hang.
_THREADED = ("polars", "pyarrow", "torch", "paddle", "mindspore", "ray", "jax", "tensorflow", "cupy", "grpc")


def can_fork() -> bool:
    """Whether a second process would help here, and forking is safe."""
    return cores() > 1 and fork_is_safe()


def fork_is_safe() -> bool:
    """Whether a forked process would find everything as it should be: no other thread was in the middle of anything."""
    if not hasattr(os, "fork") or sys.platform == "darwin":  # libraries of macOS do not stand it
        return False
    return threading.active_count() == 1 and not any(name in sys.modules for name in _THREADED)


class Forked:
    """A forked process that does one piece of work and ends."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._pid = os.fork()
        if self._pid == 0:
            code = 1
            try:
                work()
                code = 0
            finally:
                os._exit(code)

    def succeeds(self) -> bool:
        """Wait for its end."""
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        return status == 0

    def stop(self) -> None:
        """End it now, unless it has ended."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0


class Beside:
    """Runs ``function(file)`` in a forked process; what it wrote to the file is the result.

    ``result`` gives the file, or None if the function failed: do the work here then, so that its error is raised
    where it can be reported.
    """

    def __init__(self, function: Callable[[IO[bytes]], None]) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - given away by result

        def work() -> None:
            function(self._file)
            self._file.flush()

        self._process = Forked(work)

    def result(self) -> IO[bytes] | None:
        """Wait for the work to end."""
        done = self._process.succeeds()
        self._file.seek(0)
        return self._file if done else None

    def __enter__(self) -> Beside:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.stop()
        self._file.close()
