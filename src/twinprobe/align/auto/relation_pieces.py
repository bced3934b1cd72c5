"""The relations of a large alignment.json, piece by piece: its text is not in memory beside what is made of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from twinprobe.runs.file_blocks import FileBlocks

_PIECE = 1 << 20
_BEGIN = re.compile(rb'"relations"\s*:\s*\[')
_CUT = re.compile(rb"\}\s*,\s*(?=\{)")
_END = re.compile(rb"\}\s*\]")
_LONGEST, _MOST_ENDS = 4 << 20, 100

Entry = TypeVar("Entry")


def large_document(file: FileBlocks, decoder: msgspec.json.Decoder[list[Entry]]) -> tuple[Any, Iterator[list[Entry]]]:
    """The keys that stand before the relations, and the relations; msgspec's errors where something is none."""
    head = file.range(0, _PIECE)
    begin = _BEGIN.search(head)
    if begin is None:
        raise msgspec.DecodeError('"relations" does not stand at the beginning')
    keys = msgspec.json.decode(head[: begin.start()].rstrip().removesuffix(b",") + b"}")
    return keys, _relations(file, begin.end(), decoder)


def _relations(file: FileBlocks, start: int, decoder: msgspec.json.Decoder[list[Entry]]) -> Iterator[list[Entry]]:
    held = b""
    for block in file.blocks(start, file.size):
        held += block
        while cut := _CUT.search(held, _PIECE):
            found, is_last = _decoded(held[: cut.start() + 1], decoder)
            yield found
            if is_last:
                return
            held = held[cut.end() :]
        if len(held) > _LONGEST:
            raise msgspec.DecodeError("a relation is longer than any")
    found, is_last = _decoded(held, decoder)
    if not is_last:
        raise msgspec.DecodeError("the relations do not end")
    yield found


def _decoded(piece: bytes, decoder: msgspec.json.Decoder[list[Entry]]) -> tuple[list[Entry], bool]:
    """The relations of a piece, and whether their list ends in it: other things may follow."""
    try:
        return decoder.decode(b"[" + piece + b"]"), False
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        for at, end in enumerate(_END.finditer(piece)):
            try:
                return decoder.decode(b"[" + piece[: end.start() + 1] + b"]"), True
            except msgspec.DecodeError:
                if at > _MOST_ENDS:
                    break
        raise error
