"""The writer thread: work in order, off the training thread, with a bound on what may wait."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

Job = Callable[[], None]
_BYTES_WAITING = 1 << 30


class Worker:
    """Runs jobs one after another on a daemon thread; ``drain`` waits for all of them.

    The jobs catch their own errors: a job that raises is a defect, and is handed to ``on_error``.
    """

    def __init__(self, on_error: Callable[[BaseException], None]) -> None:
        self._on_error = on_error
        self._jobs: deque[tuple[Job, int]] = deque()
        self._waiting = 0
        self._busy = False
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def put(self, job: Job, size: int = 0) -> None:
        """Queue a job that holds ``size`` bytes of memory; waits while too much is held already."""
        with self._condition:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="twinprobe-writer", daemon=True)
                self._thread.start()
            while size and self._waiting and self._waiting + size > _BYTES_WAITING:
                self._condition.wait(1.0)
            self._jobs.append((job, size))
            self._waiting += size
            self._condition.notify_all()

    def drain(self) -> None:
        """Return when everything queued so far has been done."""
        if self._thread is None or os.getpid() != self._pid:
            return
        with self._condition:
            while (self._jobs or self._busy) and self._thread.is_alive():
                self._condition.wait(1.0)

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._jobs:
                    self._condition.wait()
                job, size = self._jobs.popleft()
                self._busy = True
            try:
                job()
            except BaseException as error:
                self._on_error(error)
            del job
            with self._condition:
                self._busy = False
                self._waiting -= size
                self._condition.notify_all()


def size_of(value: Any) -> int:
    """Bytes of a payload that waits for the writer; 0 for what has no size."""
    return int(getattr(value, "nbytes", 0) or 0)
