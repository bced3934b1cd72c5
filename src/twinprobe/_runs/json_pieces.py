"""JSON files of any size: read block after block, cut between two entries, within a budget of memory."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from twinprobe._runs.whole_files import open_regular, remote
from twinprobe.errors import BadInput

BLOCK = PIECE = 1 << 20
_REACH = 8192  # bytes in which whatever stands between two entries surely fits

Bytes = bytes | bytearray | memoryview


class FileBlocks:
    """An open file of a dump, here or elsewhere, of which no more than a block is in memory.

    A read that fails is BadInput; of a file that became shorter, less is read.
    """

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


def pieces_of(
    blocks: Iterator[Bytes], cut: re.Pattern[bytes], check: Callable[[memoryview], None]
) -> Iterator[tuple[memoryview, bool]]:
    """Pieces of a text of at least the usual length, cut between two entries, each with whether it is the last.

    The group of ``cut`` is what separates two entries. What is held because no place to cut was found is checked.
    """
    held, looked = memoryview(b""), PIECE
    for block in blocks:
        held = memoryview(b"".join((held, block)) if held else block)
        while match := cut.search(held, looked):
            yield held[: match.start(1)], False
            held, looked = held[match.end(1) :], PIECE
        check(held)
        looked = max(PIECE, len(held) - _REACH)
    if held:
        yield held, True


def memory_budget(size: int, room: int) -> int:
    """The bytes of memory that may be made of a file: real files need one or two for each of theirs, hostile ones 50.

    ``room`` is what a reader needs for a small file.
    """
    return room + int(2.7 * size)


def text_bytes(text: str) -> int:
    """At most so many bytes the characters of a text take in memory."""
    return len(text) if text.isascii() else 4 * len(text)


# Up to here a file is decoded at once.
_WHOLE = 2 << 20
_ROOM, _LONGEST_WAITING = 40 << 20, 16 << 20
# Bytes of a text in a list and of one in a dict, beside its characters.
VALUE, ENTRY = 60, 105
_DECODED = 120  # of a value while it is decoded


class Budget:
    """What is left of the memory that a file may take; ValueError when it is spent."""

    __slots__ = ("_left",)

    def __init__(self, size: int) -> None:
        self._left = memory_budget(size, _ROOM)

    def take(self, texts: Collection[str], each: int, more: int = 0) -> None:
        """Room for texts that take so many bytes each, beside their own, and for something more."""
        self._left -= more + each * len(texts) + text_bytes("".join(texts))
        if self._left < 0:
            raise ValueError("it holds more names, or shorter ones, than any recorder writes")

    def check(self, text: bytes) -> None:
        """Whether this can be decoded, beside the text itself and what it was made of."""
        values = text.count(b",") + text.count(b"[") + text.count(b"{")
        if _DECODED * values + len(text) * (3 if text.isascii() else 6) > self._left:
            raise ValueError(f"it holds up to {values} values, out of proportion to its size")


def members_of(
    file: FileBlocks, decoder: msgspec.json.Decoder[dict[str, Any]], cut: re.Pattern[bytes], budget: Budget
) -> Iterator[dict[str, Any]]:
    """The members of the object that is the file; the group of ``cut`` is the comma between two.

    ValueError (or msgspec's) for what is no such object, RecursionError for one that is nested too deeply.
    """
    if file.size <= _WHOLE:
        text = file.range(0, file.size)
        budget.check(text)
        yield decoder.decode(text)
        return
    blocks = file.blocks(0, file.size)
    first = next(blocks, b"").lstrip(b" \t\r\n")
    if first[:1] != b"{":
        raise ValueError("the top level is not an object")
    waiting = b""
    for piece, is_last in pieces_of(chain((first[1:],), blocks), cut, check=lambda _held: None):
        text = b"".join((waiting or b"{", piece, b"" if is_last else b"}"))
        budget.check(text)
        try:
            members = decoder.decode(text)
        except msgspec.DecodeError:
            if is_last or len(text) > _LONGEST_WAITING:
                raise
            waiting = text[:-1] + b","  # perhaps the cut was inside of a text
            continue
        waiting = b""
        yield members


# NaN and Infinity, which recorders write and JSON does not know, made readable for the strict parser.

# What stands before NaN or Infinity as a statistic or as a recorded number. The quote before the key is not escaped, so
# this is no inside of a text.
_STATISTIC = re.compile(rb'(?:^|[^\\])"(?:Max|Min|Mean|Norm|md5|value)": ?-?$')


def quote_specials(blob: bytes) -> bytes | bytearray:
    """Put NaN and Infinity in quotes where they are a statistic or a recorded number; the same object where none is."""
    quoted, done = bytearray(), 0
    for start, end in _specials(blob):
        if _STATISTIC.search(blob[max(0, start - 12) : start]):
            begin = start - 1 if blob[start - 1 : start] == b"-" else start
            quoted += blob[done:begin] + b'"' + blob[begin:end] + b'"'
            done = end
    if not done:
        return blob
    quoted += blob[done:]
    return quoted


def _specials(blob: bytes) -> Iterator[tuple[int, int]]:
    """Where NaN and Infinity stand, in order."""
    nan, infinity = blob.find(b"NaN"), blob.find(b"Infinity")
    while nan >= 0 or infinity >= 0:
        if infinity < 0 or 0 <= nan < infinity:
            yield nan, nan + 3
            nan = blob.find(b"NaN", nan + 3)
        else:
            yield infinity, infinity + 8
            infinity = blob.find(b"Infinity", infinity + 8)


# The standard library's JSON, which knows NaN and Infinity everywhere, with texts that every table can hold.

MAX_DEPTH = 410


def loads(text: str) -> Any:
    """Decode a document; ValueError or RecursionError where it is no JSON."""
    document = json.loads(text)
    return without_surrogates(document) if "\\u" in text or not text.isascii() else document


def without_surrogates(value: Any, depth: int = 0) -> Any:
    """Halves of characters, which no table can hold, spelled out: ``\\ud800``."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, list):
        return [without_surrogates(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {without_surrogates(key): without_surrogates(item, depth + 1) for key, item in value.items()}
    return value
