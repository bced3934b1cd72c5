"""The exception types that TwinProbe raises."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def _spelled(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``did you mean 'x'? `` with the known name nearest to one that does not exist; nothing where none is near."""
    from difflib import get_close_matches  # needed only once something is wrong

    names = list(known)
    near = [one for one in names if name and one.startswith(name)] or get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}? " if near else ""


class TwinProbeError(Exception):
    """Base of every error raised on purpose: what is wrong, where, and what to do next."""

    def __init__(self, what: str, *, where: str | Path | None = None, hint: str | None = None) -> None:
        self.what = what
        self.where = str(where) if where is not None else None
        self.hint = hint
        super().__init__(self.__str__())

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        text = f"{text} ({self.hint})" if self.hint else text
        # Names of files and calls are foreign text: an error can be printed whatever they hold, and steers no terminal.
        return text if text.isprintable() else _STEERING.sub(_spelled, text)

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments do not survive the default pickling, which worker processes need.
        return (_rebuild, (type(self), self.what, self.where, self.hint))


def _rebuild(kind: type[TwinProbeError], what: str, where: str | None, hint: str | None) -> TwinProbeError:
    return kind(what, where=where, hint=hint)


class BadInput(TwinProbeError):
    """The command cannot work with this input. Exit code 2."""


class MissingPackage(TwinProbeError, ImportError):
    """A framework or an extra that is needed is not installed."""


class NothingToCompare(BadInput):
    """Both inputs are valid, but there is nothing in them to compare."""


class NothingRecorded(NothingToCompare):
    """Neither side recorded anything at this step and rank, so nothing is missing in the result either."""


class DamagedTensor(TwinProbeError):
    """One tensor file cannot be read. It costs its own row, never the whole run."""
