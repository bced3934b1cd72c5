"""Errors that are not the recorder's: a kernel that failed earlier and is only reported now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ProgramFault(Exception):
    """Reading a tensor raised what an operation of the program had left behind. ``error`` belongs to the program."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class Guard:
    """``with guard("recording inputs"):`` -- the recorder's errors are noted, the program's are raised as they are."""

    __slots__ = ("_doing", "_note")

    def __init__(self, note: Callable[[str, BaseException], None], doing: str) -> None:
        self._note = note
        self._doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if error is None:
            return False
        if isinstance(error, ProgramFault):
            raise error.error from None
        if isinstance(error, Exception):
            self._note(self._doing, error)
            return True
        return False
