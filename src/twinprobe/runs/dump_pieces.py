"""The entries of a dump, piece by piece: however large the file, few of them are in memory at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import msgspec

from twinprobe.errors import BadInput
from twinprobe.runs.json_specials import quote_specials
from twinprobe.runs.tolerant_json import loads, without_surrogates

Bytes = bytes | bytearray | memoryview
Batch = tuple[bool, dict[str, Any], int]  # whether the entries are still JSON, the entries, and how long their text is

PIECE = 1 << 20
# A call with more JSON values than this, or a longer text, is no call.
MOST_VALUES = 1 << 18
LONGEST = 8 << 20
_LONGEST_WIDE = LONGEST // 4  # Python has four bytes for each character of a text with one that needs them
# Values are counted in an entry that is longer than this, and in a piece that is longer than most.
_FEW, _USUAL = 1 << 18, PIECE + (1 << 18)
_SHOWN = 200
# Between two entries: the end of an object, then a key that names a call (or a point) and begins a container.
_CUT = re.compile(
    rb'\}\s*,\s*(?="[^"\\]{0,4096}\.(?:forward|backward|parameters_grad|debug)(?:\.\d{1,18})?"\s*:\s*[{\[])'
)
_FIRST_KEY = re.compile(rb'\s*\{?\s*"([^"\\]{0,200})')

_decode_entries = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def batches_of(path: Path, members: Bytes) -> Iterator[Batch]:
    """The entries of the inside of a JSON object that is known to be whole."""
    waiting: bytes = b""
    for piece in pieces_of(path, iter((members,))):
        text = b"".join((b"{", waiting, piece, b"}"))
        found = batch_of(path, text)
        if found is None:
            waiting = text[1:-1] + b","  # the cut was inside of an entry
            continue
        yield found
        waiting = b""
    if waiting.strip(b", \t\r\n"):
        raise BadInput("is not JSON", where=f"{path}: data[{first_key(waiting)!r}]")


def batches_up_to_damage(path: Path, blocks: Iterator[Bytes]) -> Generator[Batch, None, str]:
    """The entries as far as they are whole; returns what is wrong with the rest, or nothing.

    The blocks go on to the end of the file, and so hold the two braces that should stand there.
    """
    waiting = b""
    for piece in pieces_of(path, blocks):
        waiting += piece
        found = batch_of(path, b"".join((b"{", waiting, b"}"))) or batch_of(path, b"{" + _without_end(waiting))
        if found is not None:
            yield found
            waiting = b""
        elif len(waiting) < 4 * PIECE:
            waiting += b","  # perhaps the cut was inside of an entry
        else:
            break
    if not waiting:
        return ""
    check_values(path, waiting)
    text = waiting.decode("utf-8", "replace")
    yield False, saved(text), len(waiting)
    return "breaks off" if _ends_early("{" + text.rstrip(", \t\r\n")) else "is damaged"


def _ends_early(text: str) -> bool:
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.pos >= len(text) - 1 or "Unterminated" in str(error)
    except (ValueError, RecursionError):
        return False
    return True


def batch_of(path: Path, text: bytes) -> Batch | None:
    """The members of one JSON object; None where it is none. BadInput where it holds out of all proportion."""
    if len(text) > _USUAL:
        check_values(path, text)
    found = _strict(text) or _strict(quote_specials(text), known=text)
    if found is not None:
        return True, found, len(text)
    check_values(path, text)
    try:
        members = loads(text.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return None
    return (False, members, len(text)) if isinstance(members, dict) else None


def _strict(text: bytes | bytearray, known: bytes | None = None) -> dict[str, Any] | None:
    """The members as JSON; None where this is no JSON object, or the text that is known to be none."""
    if text is known:
        return None
    try:
        return _decode_entries(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def check_values(path: Path, text: Bytes, name: str | None = None) -> None:
    """Refuse what would become very many objects, or a very long text, before it does."""
    if len(text) <= _FEW:
        return
    text = bytes(text)
    values = text.count(b",") + text.count(b"[") + text.count(b"{")
    if values > MOST_VALUES:
        problem = f"holds more than {MOST_VALUES} values, which no call has"
    elif len(text) > LONGEST or (len(text) > _LONGEST_WIDE and not text.isascii()):
        problem = f"is longer than any call ({(LONGEST if text.isascii() else _LONGEST_WIDE) >> 20} MiB)"
    else:
        return
    raise BadInput(problem, where=f"{path}: data[{first_key(text) if name is None else name!r}]")


def first_key(text: bytes) -> str:
    """The first key of an object, for messages."""
    found = _FIRST_KEY.match(text)
    return found[1].decode("utf-8", "replace")[:_SHOWN] if found else ""


def saved(text: str) -> dict[str, Any]:
    """The members of an object before the place where its text cannot be read further."""
    decoder, found, at = json.JSONDecoder(), dict[str, Any](), 0
    try:
        while True:
            name, at = decoder.raw_decode(text, skip(text, at))
            at = expect(text, at, ":")
            entry, at = decoder.raw_decode(text, skip(text, at))
            if not isinstance(name, str):
                break
            found[without_surrogates(name)] = without_surrogates(entry)
            at = expect(text, at, ",")
    except (ValueError, RecursionError, IndexError):
        pass
    return found


def skip(text: str, at: int) -> int:
    """The next place that is not empty."""
    while text[at] in " \t\r\n":
        at += 1
    return at


def expect(text: str, at: int, sign: str) -> int:
    """The place after this sign, which must come next."""
    at = skip(text, at)
    if text[at] != sign:
        raise ValueError(f"expected {sign!r} at {at}")
    return at + 1


def pieces_of(path: Path, blocks: Iterator[Bytes]) -> Iterator[Bytes]:
    """Cut between two entries, where such a place is found, into pieces of at least the usual length."""
    held: Bytes = b""
    for block in blocks:
        held = memoryview(b"".join((held, block)) if held else block)
        while cut := _CUT.search(held, PIECE):
            yield held[: cut.start() + 1]
            held = held[cut.end() :]
        if len(held) > LONGEST:
            check_values(path, held)
    if held:
        yield held


def _without_end(piece: bytes) -> bytes:
    """The last piece with one of the two braces that end the file."""
    stripped = piece.rstrip()
    return stripped[:-1] if stripped.endswith(b"}") else stripped
