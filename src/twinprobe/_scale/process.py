"""The engine of one machine: worker processes, each with its own pipe, so that a dead one costs only its own piece."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from types import FrameType
from typing import IO, Any, NoReturn

from twinprobe._scale.engine import THREAD_VARIABLES, Failed, Outcome, carry_out, cores
from twinprobe.errors import TwinProbeError

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


class ForkedFile(AbstractContextManager["ForkedFile"]):
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

    def __exit__(self, *_problem: object) -> None:
        self._process.stop()
        self._file.close()


_READY = "ready"
_SIGNALS = {signal.SIGINT, signal.SIGTERM}
_GRACE = 10.0  # seconds that a worker has to put its files away
_MOST_STILLBORN = 3


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    ticket: int | None = None
    ready: bool = False


class ProcessEngine:
    """Keeps so many worker processes; one that dies is replaced."""

    def __init__(self, workers: int, cores: int) -> None:
        self.slots = workers
        self._threads = max(1, cores // workers)
        self._workers: list[_Worker] = []
        self._stillborn = 0
        self._at_exit = Finalize(self, _end, args=(self._workers,), exitpriority=100)

    def start(self, ticket: int, function: Callable[[Any], Any], item: Any) -> None:
        """Hand the piece to an idle worker, a new one if there is none."""
        worker = next((worker for worker in self._workers if worker.ticket is None), None) or self._hire()
        worker.ticket = ticket
        with suppress(BrokenPipeError, ConnectionError):  # it has died: ``finished`` will notice
            worker.pipe.send((function, item))

    def finished(self) -> list[tuple[int, Outcome]]:
        """Wait for the first outcomes, or for a worker to die."""
        outcomes: list[tuple[int, Outcome]] = []
        while not outcomes:
            wait([end for worker in self._workers for end in (worker.pipe, worker.process.sentinel)])
            for worker in list(self._workers):
                outcome = self._ask(worker)
                if outcome is not None:
                    outcomes.append(outcome)
        return outcomes

    def close(self) -> None:
        """End all workers; busy ones get a moment to remove their unfinished files."""
        self._at_exit()

    def _hire(self) -> _Worker:
        ours, theirs = multiprocessing.Pipe()
        process: BaseProcess
        if fork_is_safe():  # what this process has imported need not be imported again
            ends = [*(worker.pipe for worker in self._workers), ours]
            process = multiprocessing.get_context("fork").Process(target=_serve, args=(theirs, self._threads, ends))
            with _undisturbed():
                process.start()
        else:
            process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs, self._threads, None))
            process.start()
        theirs.close()
        worker = _Worker(process, ours)
        self._workers.append(worker)
        return worker

    def _ask(self, worker: _Worker) -> tuple[int, Outcome] | None:
        try:
            if not worker.pipe.poll():
                return None if worker.process.is_alive() else self._bury(worker)
            answer = worker.pipe.recv()
        except (EOFError, OSError):
            return self._bury(worker)
        if answer == _READY:
            worker.ready, self._stillborn = True, 0
            return None
        assert worker.ticket is not None
        ticket, worker.ticket = worker.ticket, None
        return ticket, answer

    def _bury(self, worker: _Worker) -> tuple[int, Outcome] | None:
        worker.process.join(_GRACE)
        self._workers.remove(worker)
        worker.pipe.close()
        if not worker.ready:
            self._stillborn += 1
            if self._stillborn >= _MOST_STILLBORN:
                raise TwinProbeError(
                    f"worker processes cannot be started ({_ending(worker.process.exitcode)})",
                    hint="--engine inline works without them",
                )
        if worker.ticket is None:
            return None
        hint = "perhaps for lack of memory: try fewer with --workers"
        error = TwinProbeError(f"its worker process died ({_ending(worker.process.exitcode)})", hint=hint)
        return worker.ticket, Failed(error, again=True)


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        with suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"


def _end(workers: list[_Worker]) -> None:
    for worker in workers:
        if worker.ticket is not None:
            worker.process.terminate()
        worker.pipe.close()
    for worker in workers:
        worker.process.join(_GRACE)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
    workers.clear()


class _Stopped(BaseException):
    """The command is over: give up what is under way."""


def _stop(_number: int, _frame: FrameType | None) -> NoReturn:
    raise _Stopped


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A signal waits; in a forked worker until it has its own ways with signals."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection, threads: int, inherited: Sequence[Connection] | None) -> None:
    """The life of a worker: a piece of work, its outcome, until the pipe closes.

    A forked one has inherited the command's ends of pipes: open here, they would hide that the command has died.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the command itself says when to stop
    for variable in THREAD_VARIABLES:
        os.environ.setdefault(variable, str(threads))
    signal.signal(signal.SIGTERM, _stop)
    for end in inherited or ():
        end.close()
    if inherited is not None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    with suppress(_Stopped, EOFError, BrokenPipeError, ConnectionError):
        pipe.send(_READY)
        while True:
            try:
                function, item = pipe.recv()
            except TwinProbeError as error:
                pipe.send(Failed(error, again=False))
                continue
            except (ImportError, AttributeError) as error:
                pipe.send(Failed(TwinProbeError(f"the work cannot be loaded: {error}"), again=False))
                continue
            _send(pipe, carry_out(function, item))
    if inherited is None:  # what is to be done at the end of a forked process is the command's own
        atexit._run_exitfuncs()
    # Taking the interpreter apart takes a fifth of a second, for which the command would wait.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _send(pipe: Connection, outcome: Outcome) -> None:
    try:
        pipe.send(outcome)
    except (BrokenPipeError, ConnectionError):
        raise
    except Exception as error:  # it cannot be packed; nothing of it has been sent
        pipe.send(Failed(TwinProbeError(f"the result cannot be sent: {error}"), again=False))
