"""Where work runs: in this process, in worker processes, or on a Ray cluster. Commands know only this file."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from twinprobe.errors import BadInput, TwinProbeError

# An interruption that got lost: libraries drop exceptions that are raised inside their own callbacks.

_noted: list[BaseException] = []


def note(interruption: BaseException) -> BaseException:
    """Remember an interruption that is about to be raised, and return it."""
    _noted.append(interruption)
    return interruption


def check() -> None:
    """Raise the interruption that was noted: called between pieces of work, it is still on its way or was dropped."""
    if _noted:
        raise _noted[0]


def forget() -> None:
    """The command has ended."""
    _noted.clear()


# Results as they finish: what every engine has in common. A failed piece of work is tried again, then reported.

MOST_TRIES = 3
# How many threads libraries may start, read when they are first loaded: workers share the cores of a machine.
THREAD_VARIABLES = ("POLARS_MAX_THREADS", "TWINPROBE_THREADS")


@dataclass(frozen=True)
class Done:
    """A piece of work was done."""

    value: Any


@dataclass(frozen=True)
class Failed:
    """A piece of work was not done; ``again``: another try may help (a lost worker, a failing disk)."""

    error: TwinProbeError
    again: bool


Outcome = Done | Failed


class Engine(Protocol):
    """What an engine must do. ``slots`` is how many pieces it wants under way at a time."""

    @property
    def slots(self) -> int:
        """How many pieces to keep under way; it may change with the size of a cluster."""

    def start(self, ticket: int, function: Callable[[Any], Any], item: Any) -> None:
        """Begin a piece of work."""

    def finished(self) -> list[tuple[int, Outcome]]:
        """Wait until something has ended, well or not."""

    def close(self) -> None:
        """End everything; what is under way is given up, and leaves no half file."""


@dataclass
class _Piece:
    function: Callable[[Any], Any]
    item: Any
    name: str
    tries: int = 0


class Stream(AbstractContextManager["Stream"]):
    """Pieces of work in, results out in the order in which they finish. More may be added while results come."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: deque[int] = deque()
        self._pieces: dict[int, _Piece] = {}
        self._running = 0
        self._next = 0

    def __exit__(self, *_problem: object) -> None:
        self._engine.close()

    def add(self, function: Callable[[Any], Any], item: Any, name: str = "") -> int:
        """Add a piece of work and return its ticket. The name says in a message which one it was."""
        self._next += 1
        self._pieces[self._next] = _Piece(function, item, name)
        self._waiting.append(self._next)
        return self._next

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """Yield (ticket, result); the result of a piece that failed is a TwinProbeError."""
        while self._waiting or self._running:
            check()
            while self._waiting and self._running < max(self._engine.slots, 1):
                ticket = self._waiting.popleft()
                piece = self._pieces[ticket]
                piece.tries += 1
                self._running += 1
                self._engine.start(ticket, piece.function, piece.item)
            for ticket, outcome in self._engine.finished():
                self._running -= 1
                piece = self._pieces[ticket]
                if isinstance(outcome, Failed) and outcome.again and piece.tries < MOST_TRIES:
                    self._waiting.append(ticket)  # at the end: what was wrong may have passed by then
                    continue
                del self._pieces[ticket]
                yield ticket, outcome.value if isinstance(outcome, Done) else _reported(outcome, piece)
        check()


def carry_out(function: Callable[[Any], Any], item: Any) -> Outcome:
    """Do a piece of work, wherever this is; whatever is wrong with it becomes a value that can travel."""
    try:
        return Done(function(item))
    except TwinProbeError as error:
        # Whether the system failed and not the input: a file server may answer the next time.
        cause, again = error.__cause__, False
        for _ in range(8):
            again |= isinstance(cause, OSError)
            cause = cause.__cause__ if cause is not None else None
        return Failed(error, again)
    except MemoryError:
        return Failed(TwinProbeError("needs more memory than there is", hint="try fewer workers"), again=True)
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else None
        return Failed(TwinProbeError(error.strerror or str(error), where=where), again=True)
    except Exception as error:  # a defect: it must not cost more than this piece
        return Failed(TwinProbeError(f"{type(error).__name__}: {error}"), again=True)


def _reported(failed: Failed, piece: _Piece) -> TwinProbeError:
    error = failed.error
    what = f"{error.what} (tried {piece.tries} times)" if piece.tries > 1 else error.what
    where = piece.name if error.where is None and piece.name else error.where
    return type(error)(what, where=where, hint=error.hint)


Item = TypeVar("Item")
Result = TypeVar("Result")

AUTO, INLINE, PROCESS, RAY = "auto", "inline", "process", "ray"
ENGINES = (AUTO, INLINE, PROCESS, RAY)
# Below this many bytes of input, starting worker processes costs more than they save.
SMALL_WORK = 8 << 20
SLICE_BYTES = 1 << 30
# With many ranks for each worker none has to be shared, and cutting costs: only the very large ones are cut then.
MANY_TO_A_WORKER, LARGER_SLICES = 4, 8


@dataclass(frozen=True)
class EngineOptions:
    """Which engine the user wants, how wide, and from which size on one rank's tensors are cut into slices."""

    engine: str = AUTO
    workers: int | None = None
    address: str | None = None
    slice_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise BadInput(f"there is no engine {self.engine!r}", hint=f"known engines: {', '.join(ENGINES)}")
        if self.workers is not None and self.workers < 1:
            raise BadInput(f"--workers {self.workers} is not possible", hint="give --workers 1 or more")
        if self.address is not None and self.engine not in (AUTO, RAY):
            raise BadInput(f"a Ray address cannot be used with the engine {self.engine!r}", hint="use --engine ray")
        if self.slice_bytes is not None and self.slice_bytes < 1:
            raise BadInput("a slice holds at least one byte")

    @property
    def wanted(self) -> bool:
        """Whether the user asked for other processes, so that even one rank is spread over them."""
        return self.engine in (PROCESS, RAY) or self.address is not None

    def slice_of(self, ranks: int) -> int:
        """The bytes of a slice, where so many ranks are to be done."""
        if self.slice_bytes is not None:
            return self.slice_bytes
        local = self.engine != RAY and self.address is None
        many = local and ranks >= MANY_TO_A_WORKER * (self.workers or cores())
        return SLICE_BYTES * LARGER_SLICES if many else SLICE_BYTES

    def choose(self, items: int, size: int | None = None) -> str:
        """The engine for so many items of so many bytes in all (None: not known)."""
        if self.engine != AUTO:
            return self.engine
        if self.address is not None:
            return RAY
        small = size is not None and size < SMALL_WORK and self.workers is None
        return INLINE if small or min(items, self.workers or cores()) <= 1 else PROCESS


def cores() -> int:
    """How many processors this process may use; workers that share a machine are told in TWINPROBE_THREADS."""
    threads = os.environ.get("TWINPROBE_THREADS", "")
    if threads.isdecimal() and int(threads) > 0:
        return int(threads)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class InlineEngine:
    """Does a piece of work when its result is asked for."""

    slots = 1

    def __init__(self) -> None:
        self._next: list[tuple[int, Callable[[Any], Any], Any]] = []

    def start(self, ticket: int, function: Callable[[Any], Any], item: Any) -> None:
        """Keep the piece until its result is wanted."""
        self._next.append((ticket, function, item))

    def finished(self) -> list[tuple[int, Outcome]]:
        """Do the piece and give its outcome."""
        ticket, function, item = self._next.pop(0)
        return [(ticket, carry_out(function, item))]

    def close(self) -> None:
        """There is nothing to end."""
        self._next.clear()
