"""Results as they finish: what every engine has in common. A failed piece of work is tried again, then reported."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from twinprobe.errors import TwinProbeError
from twinprobe.scale.interrupts import check

MOST_TRIES = 3
# How many threads libraries may start, read when they are first loaded: workers share the cores of a machine.
THREAD_VARIABLES = ("POLARS_MAX_THREADS", "TWINPROBE_THREADS")


@dataclass(frozen=True)
class Good:
    """A piece of work was done."""

    value: Any


@dataclass(frozen=True)
class Failed:
    """A piece of work was not done; ``again``: another try may help (a lost worker, a failing disk)."""

    error: TwinProbeError
    again: bool


Outcome = Good | Failed


class Engine(Protocol):
    """What an engine must do. ``slots`` is how many pieces it wants under way at a time."""

    @property
    def slots(self) -> int:
        """How many pieces to keep under way; it may change with the size of a cluster."""
        ...

    def start(self, ticket: int, function: Callable[[Any], Any], item: Any) -> None:
        """Begin a piece of work."""
        ...

    def finished(self) -> list[tuple[int, Outcome]]:
        """Wait until something has ended, well or not."""
        ...

    def close(self) -> None:
        """End everything; what is under way is given up, and leaves no half file."""
        ...


@dataclass
class _Piece:
    function: Callable[[Any], Any]
    item: Any
    name: str
    tries: int = 0


class Stream:
    """Pieces of work in, results out in the order in which they finish. More may be added while results come."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: deque[int] = deque()
        self._pieces: dict[int, _Piece] = {}
        self._running = 0
        self._next = 0

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
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
                yield ticket, outcome.value if isinstance(outcome, Good) else _told(outcome, piece)
        check()


def carry_out(function: Callable[[Any], Any], item: Any) -> Outcome:
    """Do a piece of work, wherever this is; whatever is wrong with it becomes a value that can travel."""
    try:
        return Good(function(item))
    except TwinProbeError as error:
        return Failed(error, again=_system_caused(error))
    except MemoryError:
        return Failed(TwinProbeError("needs more memory than there is", hint="try fewer workers"), again=True)
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else None
        return Failed(TwinProbeError(error.strerror or str(error), where=where), again=True)
    except Exception as error:  # a defect: it must not cost more than this piece
        return Failed(TwinProbeError(f"{type(error).__name__}: {error}"), again=True)


def _system_caused(error: BaseException | None) -> bool:
    """Whether the system failed and not the input: a file server may answer the next time."""
    seen = 0
    while error is not None and seen < 8:
        if isinstance(error, OSError):
            return True
        error, seen = error.__cause__, seen + 1
    return False


def _told(failed: Failed, piece: _Piece) -> TwinProbeError:
    error = failed.error
    what = f"{error.what} (tried {piece.tries} times)" if piece.tries > 1 else error.what
    if error.where is None and piece.name:
        return type(error)(what, where=piece.name, hint=error.hint)
    if what == error.what:
        return error
    return type(error)(what, where=error.where, hint=error.hint)


__all__ = ["MOST_TRIES", "THREAD_VARIABLES", "Engine", "Failed", "Good", "Outcome", "Stream", "carry_out"]
