"""A file of a dump, here or elsewhere, block after block: what was used need not stay in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from twinprobe.errors import BadInput
from twinprobe.runs.places import remote
from twinprobe.runs.whole_file import open_regular

BLOCK = 1 << 20


class FileBlocks:
    """An open file. A read that fails is BadInput; of a file that became shorter, less is read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._remote = remote(path)
        self._file: BinaryIO | None = None
        try:
            if self._remote is not None:
                self.size = self._remote.file_size()
            else:
                self._file = os.fdopen(open_regular(path), "rb", buffering=0)
                self.size = os.fstat(self._file.fileno()).st_size
        except OSError as error:
            raise self._refusal(error) from error

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            self._file.close()  # type: ignore[union-attr]

    def range(self, start: int, stop: int) -> bytes:
        """The bytes of a range, as far as they are there."""
        return b"".join(self.blocks(start, stop))

    def blocks(self, start: int, stop: int) -> Iterator[bytes]:
        """The bytes of a long range, some at a time."""
        try:
            if self._file is None:
                assert self._remote is not None
                yield from self._remote.pieces(start, stop)
                return
            while start < stop:
                self._file.seek(start)
                block = self._file.read(min(BLOCK, stop - start))
                if not block:
                    return
                start += len(block)
                yield block
        except OSError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: OSError) -> BadInput:
        return BadInput(f"cannot be read: {error.strerror or error}", where=self._path)


def lines_of(blocks: Iterator[bytes], longest: int) -> Iterator[bytes]:
    """The lines without their ends; one that is longer is given as far as it was looked at, and is the last."""
    held = b""
    for block in blocks:
        lines = (held + block).split(b"\n")
        held = lines.pop()
        yield from lines
        if len(held) > longest:
            break
    if held:
        yield held
