"""The writer thread: work in order, off the training thread, with a bound on what may wait."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

Job = Callable[[], None]
_BYTES_WAITING = 1 << 30


class Worker:
    """Runs jobs one after another on a daemon thread; ``drain`` waits for all of them.

    The jobs catch their own errors: a job that raises is a defect, and is handed to ``on_error``. A forked child has
    neither the thread nor, perhaps, a lock that anyone will open again: there, nothing is done and nothing waits.
    """

    def __init__(self, on_error: Callable[[BaseException], None]) -> None:
        self._on_error = on_error
        self._jobs: deque[tuple[Job, int]] = deque()
        self._bytes = 0
        self._queued = 0
        self._done = 0
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def put(self, job: Job, size: int = 0) -> int:
        """Queue a job that holds ``size`` bytes of memory; waits while too much is held already. Returns its number,
        for ``wait``."""
        if os.getpid() != self._pid:
            return 0
        with self._condition:
            self._queued += 1
            thread = self._thread or self._start()
            if thread is not None:
                while size and self._bytes and self._bytes + size > _BYTES_WAITING and thread.is_alive():
                    self._condition.wait(1.0)
                self._jobs.append((job, size))
                self._bytes += size
                self._condition.notify_all()
                return self._queued
            self._done += 1
        self._do(job)
        return self._done

    def wait(self, number: int, patience: float | None = None) -> None:
        """Return when the job of this number and all before it have been done, or none was for ``patience`` seconds."""
        thread = self._thread
        if thread is None or os.getpid() != self._pid or thread is threading.current_thread():
            return
        with self._condition:
            done, since = self._done, monotonic()
            while self._done < number and thread.is_alive():
                self._condition.wait(1.0)
                if self._done != done:
                    done, since = self._done, monotonic()
                elif patience is not None and monotonic() - since > patience:
                    return

    def drain(self, patience: float | None = None) -> None:
        """Return when everything queued so far has been done."""
        self.wait(self._queued, patience)

    def _start(self) -> threading.Thread | None:
        """Start the thread; None where the system allows no more of them or the interpreter is about to end."""
        thread = threading.Thread(target=self._run, name="twinprobe-writer", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return None
        self._thread = thread
        return thread

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._jobs:
                    self._condition.wait()
                job, size = self._jobs.popleft()
            self._do(job)
            del job
            with self._condition:
                self._done += 1
                self._bytes -= size
                self._condition.notify_all()

    def _do(self, job: Job) -> None:
        try:
            job()
        except BaseException as error:
            self._on_error(error)


def size_of(value: Any) -> int:
    """Bytes of a payload that waits for the writer; 0 for what has no size."""
    return int(getattr(value, "nbytes", 0) or 0)
