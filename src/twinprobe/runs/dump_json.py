"""dump.json and debug.json: from bytes to a header and op entries, as far as the file is whole."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from twinprobe.errors import BadInput
from twinprobe.runs.dump_pieces import PIECE, Batch, batch_of, batches_up_to_damage, check_values, whole_batches
from twinprobe.runs.tolerant_json import loads
from twinprobe.runs.whole_file import whole_file

_HEADER_KEYS = ("task", "level", "framework", "dump_data_dir")
_EXPECTED = 'expected an object with "task", "level", "framework" and "data"'
# What stands before NaN or Infinity as the value of a statistic. The quote before the key is not escaped, so this is
# no inside of a text.
_STATISTIC = re.compile(rb'(?:^|[^\\])"(?:Max|Min|Mean|Norm|md5)": ?-?$')
_DATA = re.compile(rb'"data"\s*:\s*\{')
_EMPTY = msgspec.Raw(b"")


class Document(msgspec.Struct):
    """The top level of the file; the entries stay as they are until they are walked one by one."""

    task: str | None = None
    level: str | None = None
    framework: str | None = None
    dump_data_dir: str | None = None
    data: msgspec.Raw = _EMPTY


class Entries:
    """What was read: the header's words and the entries, to be walked once."""

    def __init__(self, header: dict[str, Any], size: int, batches: Iterator[Batch]) -> None:
        self.header = header
        self.size = size
        """The bytes of the file, by which what is made of it is bounded."""
        self.notes: list[str] = []
        """What is known of its damage, when all entries have been walked."""
        self.raw = True
        """Whether the entry that was given last is still JSON."""
        self.count = 0
        self.last = ""
        self._batches = batches

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for raw, entries in self._batches:
            self.raw = raw
            self.count += len(entries)
            self.last = next(reversed(entries), self.last)
            yield from entries.items()

    def walk(self, batches: Iterator[Batch]) -> None:
        """Give the entries, where finding them needs to know of this."""
        self._batches = batches


def read_entries(path: Path) -> Entries:
    """Read dump.json, debug.json or a dump.json.part; raise BadInput for anything that is none of them."""
    try:
        blob = whole_file(path)
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=path) from error
    return _read_lines(path, blob) if path.suffix == ".part" else _read_document(path, blob)


def _read_document(path: Path, blob: bytes) -> Entries:
    try:
        document = _strict(blob)
    except msgspec.ValidationError as error:
        raise BadInput(f"is not a dump: {error}", where=path, hint=_EXPECTED) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _tolerant(path, blob) if len(blob) <= PIECE else _by_pieces(path, blob)
    members = memoryview(document.data)
    if bytes(members[:1]) != b"{":
        absent = bytes(members) in (b"", b"null")
        raise BadInput(
            'has no object "data"' if absent else 'is not a dump: "data" is no object', where=path, hint=_EXPECTED
        )
    header = {key: getattr(document, key) for key in _HEADER_KEYS}
    return Entries(header, len(blob), whole_batches(path, members[1:-1]))


def _strict(blob: bytes) -> Document:
    # NaN and Infinity are looked for only when they, or something else, stood in the way: most files have none.
    try:
        return msgspec.json.decode(blob, type=Document)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        quoted = _quote_specials(blob)
        if quoted is blob:
            raise
    return msgspec.json.decode(quoted, type=Document)


def _quote_specials(blob: bytes) -> bytes | bytearray:
    """Put NaN and Infinity in quotes where they are the value of a statistic; the strict parser takes no other way."""
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


def _tolerant(path: Path, blob: bytes) -> Entries:
    """A small file that is no proper JSON: NaN and Infinity in other places, or cut off."""
    try:
        text = blob.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise BadInput(f"is not JSON: byte {error.start} is not UTF-8", where=path) from error
    try:
        document = loads(text)
    except (json.JSONDecodeError, RecursionError, ValueError) as error:
        return _by_pieces(path, blob, error)
    if not isinstance(document, dict):
        raise BadInput(f"is not a dump: the top level is {type(document).__name__}", where=path, hint=_EXPECTED)
    data = document.pop("data", None)
    if not isinstance(data, dict):
        raise BadInput('has no object "data"', where=path, hint=_EXPECTED)
    return Entries(_header(path, document), len(blob), iter([(False, data)]))


def _by_pieces(path: Path, blob: bytes, error: Exception | None = None) -> Entries:
    """Read a file that is large or breaks off: the header, and every entry before the break."""
    begin = _DATA.search(blob, 0, PIECE)
    header = _object(path, blob[: begin.start()].rstrip().removesuffix(b",") + b"}") if begin else None
    if begin is None or header is None:
        raise BadInput(f"is not JSON: {error or 'neither a header nor entries can be found'}", where=path)
    entries = Entries(_header(path, header), len(blob), iter(()))
    entries.walk(_up_to_damage(path, memoryview(blob)[begin.end() :], entries, error))
    return entries


def _up_to_damage(path: Path, members: memoryview, entries: Entries, error: Exception | None) -> Iterator[Batch]:
    damage = yield from batches_up_to_damage(path, members)
    if damage and not entries.count:
        raise BadInput(f"is not JSON: {error or 'its first entry is damaged'}", where=path)
    if damage:
        whole = f"after {entries.count} whole entries (last: {entries.last})"
        entries.notes.append(f"{path}: the file {damage} {whole}; the rest is lost")


def _object(path: Path, text: bytes) -> dict[str, Any] | None:
    """The header's keys; None where this is no JSON object."""
    check_values(path, text)
    try:
        found = loads(text.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _header(path: Path, document: dict[str, Any]) -> dict[str, Any]:
    for key in _HEADER_KEYS:
        if not isinstance(document.get(key), str | None):
            raise BadInput(f'"{key}" is not text', where=path, hint=_EXPECTED)
    return {key: document.get(key) for key in _HEADER_KEYS}


def _read_lines(path: Path, blob: bytes) -> Entries:
    """dump.json.part: a header line, then one line per entry; a half-written last line is left out."""
    lines = _lines(blob)
    for number, line in lines:
        header = _object(path, line)
        if header is None:
            raise BadInput(f"is not a dump: line {number} is not a JSON object", where=path)
        entries = Entries(_header(path, header), len(blob), iter(()))
        entries.walk(_line_batches(path, lines, entries))
        return entries
    raise BadInput("is empty", where=path)


def _lines(blob: bytes) -> Iterator[tuple[int, bytes]]:
    at, number = 0, 0
    while at < len(blob):
        end = blob.find(b"\n", at)
        end = len(blob) if end < 0 else end
        number += 1
        line = blob[at:end]
        if line.strip():
            yield number, line
        at = end + 1


def _line_batches(path: Path, lines: Iterator[tuple[int, bytes]], entries: Entries) -> Iterator[Batch]:
    broken = ""
    for number, line in lines:
        found = batch_of(path, line)
        if found is not None:
            yield found
            continue
        last = next(lines, None) is None
        whole = "the last line is half written" if last else f"line {number} is damaged"
        broken = f"{path}: {whole}; {entries.count} whole entries were read"
        break
    entries.notes.append(f"{path}: the recorder did not finish; {entries.count} whole entries are there")
    if broken:
        entries.notes.append(broken)
