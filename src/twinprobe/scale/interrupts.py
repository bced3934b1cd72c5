"""An interruption that got lost: libraries drop exceptions that are raised inside their own callbacks."""

from __future__ import annotations

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
