"""dump.json and debug.json: from bytes to a header and op entries, as far as the file is whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from twinprobe.errors import BadInput
from twinprobe.runs.whole_file import whole_file

_STAT_KEYS = tuple(b'"%s":%s' % (key, gap) for key in (b"Max", b"Min", b"Mean", b"Norm", b"md5") for gap in (b" ", b""))
_SPECIALS = (b"NaN", b"Infinity")
_HEADER_KEYS = ("task", "level", "framework", "dump_data_dir")
_MAX_DEPTH = 410


class Document(msgspec.Struct):
    """The top level of the file; entries stay raw until they are walked one by one."""

    task: str | None = None
    level: str | None = None
    framework: str | None = None
    dump_data_dir: str | None = None
    data: dict[str, msgspec.Raw] | None = None


@dataclass
class Entries:
    """What was read: the header's words and the entries, raw (JSON bytes) or already decoded."""

    header: dict[str, Any]
    data: dict[str, Any]
    raw: bool
    notes: list[str] = field(default_factory=list)
    size: int = 0
    """The bytes of the file, by which what is made of it is bounded."""

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self.data.items())


def read_entries(path: Path) -> Entries:
    """Read dump.json, debug.json or a dump.json.part; raise BadInput for anything that is none of them."""
    try:
        blob = whole_file(path)
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=path) from error
    entries = _read_lines(path, blob) if path.suffix == ".part" else _read_document(path, blob)
    entries.size = len(blob)
    return entries


def _read_document(path: Path, blob: bytes) -> Entries:
    try:
        return _fast(path, blob)
    except msgspec.ValidationError as error:
        raise BadInput(f"is not a dump: {error}", where=path, hint=_EXPECTED) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _tolerant(path, blob)


_EXPECTED = 'expected an object with "task", "level", "framework" and "data"'


def _fast(path: Path, blob: bytes) -> Entries:
    document = msgspec.json.decode(_quote_specials(blob), type=Document)
    header = {key: getattr(document, key) for key in _HEADER_KEYS}
    if document.data is None:
        raise BadInput('has no object "data"', where=path, hint=_EXPECTED)
    return Entries(header, document.data, raw=True)


def _quote_specials(blob: bytes) -> bytes:
    """Put NaN and Infinity in quotes where they are the value of a statistic.

    A stat key directly before the token cannot be the inside of a string, since the quote before the key is not
    escaped; any other place is left alone, and the strict parser then hands over to the tolerant one.
    """
    pieces: list[bytes] = []
    done = 0
    for at, token in _special_tokens(blob):
        begin = at - 1 if blob[at - 1 : at] == b"-" else at
        before = blob[max(0, begin - 9) : begin]
        key = next((key for key in _STAT_KEYS if before.endswith(key)), None)
        if key is None or before[: -len(key)].endswith(b"\\"):
            continue
        end = at + len(token)
        pieces += [blob[done:begin], b'"', blob[begin:end], b'"']
        done = end
    if not pieces:
        return blob
    pieces.append(blob[done:])
    return b"".join(pieces)


def _special_tokens(blob: bytes) -> list[tuple[int, bytes]]:
    found = []
    for token in _SPECIALS:
        at = blob.find(token)
        while at >= 0:
            found.append((at, token))
            at = blob.find(token, at + len(token))
    return sorted(found)


def _tolerant(path: Path, blob: bytes) -> Entries:
    """The standard library's parser: it knows NaN and Infinity everywhere. Then, for a cut file, what is whole."""
    try:
        text = blob.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise BadInput(f"is not JSON: byte {error.start} is not UTF-8", where=path) from error
    try:
        document = _loads(text)
    except (json.JSONDecodeError, RecursionError, ValueError) as error:
        return _salvage(path, text, error)
    if not isinstance(document, dict):
        raise BadInput(f"is not a dump: the top level is {type(document).__name__}", where=path, hint=_EXPECTED)
    data = document.pop("data", None)
    if not isinstance(data, dict):
        raise BadInput('has no object "data"', where=path, hint=_EXPECTED)
    return Entries(_header(path, document), data, raw=False)


def _header(path: Path, document: dict[str, Any]) -> dict[str, Any]:
    for key in _HEADER_KEYS:
        if not isinstance(document.get(key), str | None):
            raise BadInput(f'"{key}" is not text', where=path, hint=_EXPECTED)
    return {key: document.get(key) for key in _HEADER_KEYS}


def _salvage(path: Path, text: str, error: Exception) -> Entries:
    """Read a file that breaks off: the header and every entry before the break."""
    decoder = json.JSONDecoder()
    header: dict[str, Any] = {}
    data: dict[str, Any] = {}
    try:
        at = _expect(text, 0, "{")
        while True:
            key, at = _key(decoder, text, at)
            if key == "data":
                break
            header[key], at = _value(decoder, text, at)
            at = _expect(text, at, ",")
        at = _expect(text, at, "{")
        while True:
            name, at = _key(decoder, text, at)
            data[name], at = _value(decoder, text, at)
            at = _expect(text, at, ",")
    except (ValueError, RecursionError, IndexError):
        if not data:
            raise BadInput(f"is not JSON: {error}", where=path) from error
    broken = len(text) - len(text.rstrip())
    at_end = isinstance(error, json.JSONDecodeError) and error.pos >= len(text) - broken - 1
    how = "breaks off" if at_end or "Unterminated" in str(error) else "is damaged"
    note = f"{path}: the file {how} after {len(data)} whole entries (last: {next(reversed(data))}); the rest is lost"
    return Entries(_header(path, header), data, raw=False, notes=[note])


def _skip(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at


def _expect(text: str, at: int, sign: str) -> int:
    at = _skip(text, at)
    if text[at] != sign:
        raise ValueError(f"expected {sign!r} at {at}")
    return at + 1


def _value(decoder: json.JSONDecoder, text: str, at: int) -> tuple[Any, int]:
    value, at = decoder.raw_decode(text, _skip(text, at))
    return _without_surrogates(value), at


def _key(decoder: json.JSONDecoder, text: str, at: int) -> tuple[str, int]:
    key, at = _value(decoder, text, at)
    if not isinstance(key, str):
        raise ValueError("a key must be text")
    return key, _expect(text, at, ":")


def _read_lines(path: Path, blob: bytes) -> Entries:
    """dump.json.part: a header line, then one line per entry; a half-written last line is left out."""
    header: dict[str, Any] | None = None
    data: dict[str, Any] = {}
    notes: list[str] = []
    lines = blob.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            item = _loads(line.decode("utf-8", "surrogatepass"))
            if not isinstance(item, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError) as error:
            if header is None:
                raise BadInput(f"is not a dump: line {number}: {error}", where=path) from error
            whole = "the last line is half written" if number == len(lines) else f"line {number} is damaged"
            notes.append(f"{path}: {whole}; {len(data)} whole entries were read")
            break
        if header is None:
            header = item
            continue
        for name, entry in item.items():
            data.pop(name, None)
            data[name] = entry
    if header is None:
        raise BadInput("is empty", where=path)
    notes.insert(0, f"{path}: the recorder did not finish; {len(data)} whole entries are there")
    return Entries(_header(path, header), data, raw=False, notes=notes)


def _loads(text: str) -> Any:
    document = json.loads(text)
    return _without_surrogates(document) if "\\u" in text or not text.isascii() else document


def _without_surrogates(value: Any, depth: int = 0) -> Any:
    """Halves of characters, which no table can hold, spelled out: ``\\ud800``."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if depth > _MAX_DEPTH:
        raise ValueError(f"nested deeper than {_MAX_DEPTH} levels")
    if isinstance(value, list):
        return [_without_surrogates(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item, depth + 1) for key, item in value.items()}
    return value
