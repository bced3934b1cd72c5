"""The names of remote paths, taken apart and put together as pathlib does it; nothing is asked of anybody here."""

from __future__ import annotations

import os
from functools import total_ordering
from pathlib import PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any

from twinprobe.errors import BadInput
from twinprobe.runs.remote.asking import Options

if TYPE_CHECKING:
    from typing_extensions import Self


@total_ordering
class UrlName:
    """``front`` and ``inner`` together are the URL; ``inner`` is what the file system calls the path.

    ``named`` paths are those that the user wrote and their parents: others are known from the listing of their folder.
    """

    __slots__ = ("_front", "_inner", "_named", "_options", "_protocol")

    def __init__(self, protocol: str, options: Options, front: str, inner: str, named: bool = False) -> None:
        self._protocol, self._options, self._front, self._inner, self._named = protocol, options, front, inner, named

    def __reduce__(self) -> tuple[object, ...]:
        own = (self._protocol, self._options, self._front, self._inner, self._named)
        return _arrived, (type(self), own, os.getpid())

    def __str__(self) -> str:
        return self._front + self._inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __hash__(self) -> int:
        return hash((self._front, self._inner))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UrlName) and str(self) == str(other)

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, UrlName):
            return NotImplemented
        return (self._front, self._inner.split("/")) < (other._front, other._inner.split("/"))

    def _at(self, inner: str, *, named: bool = False) -> Self:
        return type(self)(self._protocol, self._options, self._front, inner, named)

    def __truediv__(self, other: str | PurePath) -> Self:
        text = (other.as_posix() if isinstance(other, PurePath) else other).strip("/")
        if text in ("", "."):
            return self
        return self._at(f"{self._inner.rstrip('/')}/{text}")

    def joinpath(self, *others: str | PurePath) -> Self:
        path = self
        for other in others:
            path = path / other
        return path

    @property
    def protocol(self) -> str:
        return self._protocol

    @property
    def inner(self) -> str:
        """The path as the file system of fsspec takes it."""
        return self._inner

    @property
    def name(self) -> str:
        return self._inner.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    @property
    def stem(self) -> str:
        return PurePosixPath(self.name).stem

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(part for part in self._inner.split("/") if part)

    @property
    def parent(self) -> Self:
        above, slash, _ = self._inner.rstrip("/").rpartition("/")
        if not above:
            return self._at("/", named=True) if slash else self
        return self._at(above, named=True)

    @property
    def parents(self) -> list[Self]:
        found: list[Self] = []
        path = self
        while path.parent != path:
            path = path.parent
            found.append(path)
        return found

    def with_name(self, name: str) -> Self:
        return self._at(self._inner[: len(self._inner) - len(self.name)] + name)

    def with_suffix(self, suffix: str) -> Self:
        return self.with_name(PurePosixPath(self.name).with_suffix(suffix).name)

    def is_relative_to(self, other: object) -> bool:
        return self == other or str(self).startswith(str(other).rstrip("/") + "/")

    def relative_to(self, other: object) -> PurePosixPath:
        if not isinstance(other, UrlName) or not self.is_relative_to(other):
            raise ValueError(f"{self} is not below {other}")
        return PurePosixPath(str(self)[len(str(other)) :].strip("/"))

    def as_posix(self) -> str:
        return str(self)

    def is_absolute(self) -> bool:
        return True

    def is_symlink(self) -> bool:
        return False

    def expanduser(self) -> Self:
        return self

    absolute = resolve = expanduser


def _arrived(kind: type[UrlName], own: tuple[Any, ...], sender: int) -> UrlName:
    """A path that was sent here; what is in one process's memory cannot be reached from another."""
    path = kind(*own)
    if path.protocol == "memory" and sender != os.getpid():
        raise BadInput("is in the memory of one process, which others cannot read", where=str(path),
                       hint="use --engine inline")  # fmt: skip
    return path
