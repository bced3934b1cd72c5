"""os.scandir for every place: the one way to look into a folder of a dump."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Protocol, cast

from twinprobe.runs.places import remote
from twinprobe.runs.remote.path import RemotePath
from twinprobe.runs.remote.store import FOLDER


class Entry(Protocol):
    """What is asked of an entry."""

    @property
    def name(self) -> str: ...

    def is_dir(self, *, follow_symlinks: bool = True) -> bool: ...

    def is_symlink(self) -> bool: ...


class _RemoteEntry:
    __slots__ = ("_size", "name")

    def __init__(self, name: str, size: int) -> None:
        self.name, self._size = name, size

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002  storages have no links, or hide them
        return self._size == FOLDER

    def is_symlink(self) -> bool:
        return False


def scan(folder: Path) -> AbstractContextManager[Iterator[Entry]]:
    """The entries of a folder; use it in a ``with`` statement."""
    elsewhere = remote(folder)
    if elsewhere is None:
        return cast("AbstractContextManager[Iterator[Entry]]", os.scandir(folder))
    return nullcontext(_entries(elsewhere))


def expect_all(folder: Path) -> None:
    """Say that all folders below will be looked into: remote ones are listed together, not with a request for each."""
    elsewhere = remote(folder)
    if elsewhere is not None:
        with suppress(OSError):
            elsewhere.list_below()


def _entries(folder: RemotePath) -> Iterator[Entry]:
    listing = folder.listing()
    return (_RemoteEntry(name, size) for name, size in listing.items())
