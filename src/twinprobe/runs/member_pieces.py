"""The members of a large JSON object of names, piece by piece, within a bound on what is made of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from twinprobe.runs.file_blocks import FileBlocks

PIECE = 1 << 20
# Up to here a file is decoded at once.
_WHOLE = 2 << 20
# What is made of a file may take so many bytes, and so many for each of its own.
_ROOM, _ROOM_PER_BYTE = 40 << 20, 2.7
_LONGEST_WAITING = 16 << 20
_REACH = 8192  # bytes in which whatever is between two members surely fits
# Bytes of a text in a list and of one in a dict, beside its characters.
VALUE, ENTRY = 60, 105
_DECODED = 120  # of a value while it is decoded


class Budget:
    """What is left of the memory that a file may take; ValueError when it is spent."""

    __slots__ = ("_left",)

    def __init__(self, size: int) -> None:
        self._left = _ROOM + int(_ROOM_PER_BYTE * size)

    def take(self, texts: Collection[str], each: int, more: int = 0) -> None:
        """Room for texts that take so many bytes each, beside their own, and for something more."""
        joined = "".join(texts)
        self._left -= more + each * len(texts) + (len(joined) if joined.isascii() else 4 * len(joined))
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
    """The members of the object that is the file.

    ``cut`` matches the comma between two of them; its group is empty and stands at the second.
    ValueError (or msgspec's) for what is no such object, RecursionError for one that is nested too deeply.
    """
    if file.size <= _WHOLE:
        text = file.range(0, file.size)
        budget.check(text)
        yield decoder.decode(text)
        return
    waiting = b""
    for piece, is_last in _pieces(file, cut):
        text = b"".join((waiting or b"{", piece, b"" if is_last else b"}"))
        budget.check(text)
        try:
            found = decoder.decode(text)
        except msgspec.DecodeError:
            if is_last or len(text) > _LONGEST_WAITING:
                raise
            waiting = text[:-1] + b","  # perhaps the cut was inside of a text
            continue
        waiting = b""
        yield found


def _pieces(file: FileBlocks, cut: re.Pattern[bytes]) -> Iterator[tuple[bytes, bool]]:
    """What stands between the first brace and the end, in pieces without the commas between them; which is the last."""
    held, looked = bytearray(), PIECE
    started = False
    for block in file.blocks(0, file.size):
        held += block
        if not started:
            held, started = held.lstrip(b" \t\r\n"), True
            if held[:1] != b"{":
                raise ValueError("the top level is not an object")
            del held[:1]
        while found := cut.search(held, looked):
            yield bytes(held[: found.start()]), False
            del held[: found.start(1)]
            looked = PIECE
        looked = max(PIECE, len(held) - _REACH)
    yield bytes(held), True
