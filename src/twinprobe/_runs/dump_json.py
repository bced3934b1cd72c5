"""dump.json and debug.json: from bytes to a header and op entries, as far as the file is whole."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import msgspec

from twinprobe._runs.json_pieces import (
    ENTRY,
    PIECE,
    VALUE,
    Budget,
    Bytes,
    FileBlocks,
    lines_of,
    loads,
    members_of,
    pieces_of,
    quote_specials,
    without_surrogates,
)
from twinprobe._runs.names import LONGEST_NAME
from twinprobe.errors import BadInput

Batch = tuple[bool, dict[str, Any], int]  # whether the entries are still JSON, the entries, and how long their text is

# A call with more JSON values than this, or a longer text, is no call.
MOST_VALUES = 1 << 18
LONGEST = 8 << 20
_LONGEST_WIDE = LONGEST // 4  # Python has four bytes for each character of a text with one that needs them
# Values are counted in an entry that is longer than this, and in a piece that is longer than most.
_FEW, _USUAL = 1 << 18, PIECE + (1 << 18)
_SHOWN = 200
REST_LOST = "the rest is lost"  # how the note on a file that breaks off ends
# Between two entries: the end of an object, then a key that names a call (or a point) and begins a container.
_CUT = re.compile(
    rb'\}(\s*,\s*)(?="[^"\\]{0,4096}\.(?:forward|backward|parameters_grad|debug)(?:\.\d{1,18})?"\s*:\s*[{\[])'
)
_FIRST_KEY = re.compile(rb'\s*\{?\s*"([^"\\]{0,200})')

_decode_entries = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def batches_of(path: Path, members: Bytes) -> Iterator[Batch]:
    """The entries of the inside of a JSON object that is known to be whole."""
    waiting: bytes = b""
    for piece, _ in _pieces_of(path, iter((members,))):
        text = b"".join((b"{", waiting, piece, b"}"))
        batch = batch_of(path, text)
        if batch is None:
            waiting = text[1:-1] + b","  # the cut was inside of an entry
            continue
        yield batch
        waiting = b""
    if waiting.strip(b", \t\r\n"):
        raise BadInput("is not JSON", where=f"{path}: data[{first_key(waiting)!r}]")


def _batches_up_to_damage(
    path: Path, blocks: Iterator[Bytes], entries: Entries, error: Exception | None
) -> Iterator[Batch]:
    """The entries as far as they are whole; damage to the rest becomes a note. Blocks reach to the end of the file."""
    waiting = b""
    for piece, _ in _pieces_of(path, blocks):
        waiting += piece
        # The last piece has the two braces that end the file: one of them ends the entries.
        last = b"{" + waiting.rstrip().removesuffix(b"}")
        batch = batch_of(path, b"".join((b"{", waiting, b"}"))) or batch_of(path, last)
        if batch is not None:
            yield batch
            waiting = b""
        elif len(waiting) < 4 * PIECE:
            waiting += b","  # perhaps the cut was inside of an entry
        else:
            break
    if not waiting:
        return
    check_values(path, waiting)
    text = waiting.decode("utf-8", "replace")
    yield False, saved(text), len(waiting)
    if not entries.count:
        raise BadInput(f"is not JSON: {error or 'its first entry is damaged'}", where=path)
    damage = "breaks off" if _ends_early("{" + text.rstrip(", \t\r\n")) else "is damaged"
    whole = f"after {entries.count} whole entries (last: {entries.last})"
    entries.notes.append(f"{path}: the file {damage} {whole}; {REST_LOST}")


def _ends_early(text: str) -> bool:
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.pos >= len(text) - 1 or "Unterminated" in str(error)
    except (ValueError, RecursionError):
        return False
    return True


def batch_of(path: Path, text: bytes) -> Batch | None:
    """The members of one JSON object; None for other text. BadInput where it holds too many values for its size."""
    if len(text) > _USUAL:
        check_values(path, text)
    entries = _strict_entries(text)
    if entries is None and (quoted := quote_specials(text)) is not text:
        entries = _strict_entries(quoted)
    if entries is not None:
        return True, entries, len(text)
    members = _object(path, text)
    return None if members is None else (False, members, len(text))


def _strict_entries(text: bytes | bytearray) -> dict[str, Any] | None:
    """The members as JSON; None where this is no JSON object."""
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
    match = _FIRST_KEY.match(text)
    return match[1].decode("utf-8", "replace")[:_SHOWN] if match else ""


def saved(text: str) -> dict[str, Any]:
    """The members of an object before the place where its text cannot be read further."""
    decoder, members, position = json.JSONDecoder(), dict[str, Any](), 0
    try:
        while True:
            name, position = decoder.raw_decode(text, _next(text, position))
            entry, position = decoder.raw_decode(text, _next(text, position, ":"))
            if not isinstance(name, str):
                break
            members[without_surrogates(name)] = without_surrogates(entry)
            position = _next(text, position, ",")
    except (ValueError, RecursionError, IndexError):
        pass
    return members


def _next(text: str, position: int, sign: str = "") -> int:
    """The next place that is not empty, or the one after this sign, which must come next."""
    while text[position] in " \t\r\n":
        position += 1
    if not sign:
        return position
    if text[position] != sign:
        raise ValueError(f"expected {sign!r} at {position}")
    return _next(text, position + 1)


def _pieces_of(path: Path, blocks: Iterator[Bytes]) -> Iterator[tuple[memoryview, bool]]:
    return pieces_of(blocks, _CUT, lambda held: check_values(path, held) if len(held) > LONGEST else None)


_HEADER_KEYS = ("task", "level", "framework", "dump_data_dir")
_EXPECTED = 'expected an object with "task", "level", "framework" and "data"'
_DATA = re.compile(rb'"data"\s*:\s*\{')
# A writer that sorts its keys puts the header behind the data.
_HEADER_BEHIND = re.compile(rb'\}\s*\}\s*(,\s*(?="(?:task|level|framework|dump_data_dir)"\s*:))')
_BEHIND = 1 << 16
# Up to here a file is read as a whole.
_WHOLE = 8 << 20
_EMPTY = msgspec.Raw(b"")


class Document(msgspec.Struct):
    """The top level of the file; the entries stay as they are until they are walked one by one."""

    task: str | None = None
    level: str | None = None
    framework: str | None = None
    dump_data_dir: str | None = None
    settings: dict[str, Any] | None = None
    data: msgspec.Raw = _EMPTY


class Entries:
    """The header of a dump and its entries, to be iterated over once."""

    def __init__(self, header: dict[str, Any], size: int, batches: Iterator[Batch]) -> None:
        self.header = header
        self.size = size
        """Bytes of the file, which bound the memory that its entries may take."""
        self.notes: list[str] = []
        """Damage to the file, complete once all entries have been read."""
        self.raw = True
        """Whether the entry that was given last is still JSON."""
        self.count = 0
        self.last = ""
        self.place = 0
        """How many bytes of the file the entries up to this one take."""
        self.batches = batches

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for raw, entries, length in self.batches:
            self.raw = raw
            self.place += length
            self.count += len(entries)
            self.last = next(reversed(entries), self.last)
            yield from entries.items()


def read_entries(path: Path) -> Entries:
    """Read dump.json, debug.json or a dump.json.part; raise BadInput for anything else."""
    file = FileBlocks(path)
    if path.suffix == ".part":
        return _read_lines(path, file)
    return read_document(path, file.range(0, file.size)) if file.size <= _WHOLE else _by_pieces(path, file)


def read_document(path: Path, blob: bytes) -> Entries:
    """Read the text of a dump.json or debug.json."""
    try:
        document = _strict_document(blob)
    except msgspec.ValidationError as error:
        raise BadInput(f"is not a dump: {error}", where=path, hint=_EXPECTED) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _tolerant(path, blob) if len(blob) <= PIECE else _by_pieces(path, FileBlocks(path))
    members = memoryview(document.data)
    if bytes(members[:1]) != b"{":
        absent = bytes(members[:5]) in (b"", b"null")
        raise BadInput(
            'has no object "data"' if absent else 'is not a dump: "data" is not an object', where=path, hint=_EXPECTED
        )
    header = {key: getattr(document, key) for key in _HEADER_KEYS} | {"settings": document.settings or {}}
    return Entries(header, len(blob), batches_of(path, members[1:-1]))


def _strict_document(blob: bytes) -> Document:
    # NaN and Infinity are looked for only when they, or something else, stood in the way: most files have none.
    try:
        return msgspec.json.decode(blob, type=Document)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        quoted = quote_specials(blob)
        if quoted is blob:
            raise
    return msgspec.json.decode(quoted, type=Document)


def _tolerant(path: Path, blob: bytes) -> Entries:
    """A small file that is no proper JSON: NaN and Infinity in other places, or cut off."""
    try:
        text = blob.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise BadInput(f"is not JSON: byte {error.start} is not UTF-8", where=path) from error
    try:
        document = loads(text)
    except (json.JSONDecodeError, RecursionError, ValueError) as error:
        return _by_pieces(path, FileBlocks(path), error)
    if not isinstance(document, dict):
        raise BadInput(f"is not a dump: the top level is {type(document).__name__}", where=path, hint=_EXPECTED)
    data = document.pop("data", None)
    if not isinstance(data, dict):
        raise BadInput('has no object "data"', where=path, hint=_EXPECTED)
    return Entries(_header(path, document), len(blob), iter([(False, data, len(blob))]))


def _by_pieces(path: Path, file: FileBlocks, error: Exception | None = None) -> Entries:
    """Read a file that is large or breaks off: the header, and every entry before the break."""
    head = file.range(0, PIECE)
    begin = _DATA.search(head)
    header = _object(path, head[: begin.start()].rstrip().removesuffix(b",") + b"}") if begin else None
    if begin is None or header is None:
        raise BadInput(f"is not JSON: {error or 'neither a header nor entries can be found'}", where=path)
    stop, behind = _header_behind(path, file)
    entries = Entries(_header(path, header | behind), file.size, iter(()))
    blocks = chain(file.blocks(begin.end(), stop), (b"}",) if behind else ())
    entries.batches = _batches_up_to_damage(path, blocks, entries, error)
    return entries


def _header_behind(path: Path, file: FileBlocks) -> tuple[int, dict[str, Any]]:
    """Where the data end, and the keys that stand after them."""
    start = max(file.size - _BEHIND, 0)
    tail = file.range(start, file.size)
    for match in _HEADER_BEHIND.finditer(tail):
        # Inside of an entry, what follows has more braces than it opens.
        keys = _object(path, b"{" + tail[match.end() :])
        if keys is not None:
            return start + match.start(1), keys
    return file.size, {}


def _object(path: Path, text: bytes) -> dict[str, Any] | None:
    """The header's keys; None where this is no JSON object."""
    check_values(path, text)
    try:
        document = loads(text.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _header(path: Path, document: dict[str, Any]) -> dict[str, Any]:
    for key in _HEADER_KEYS:
        if not isinstance(document.get(key), str | None):
            raise BadInput(f'"{key}" is not text', where=path, hint=_EXPECTED)
    settings = document.get("settings") or {}
    if not isinstance(settings, dict):
        raise BadInput('"settings" is not an object', where=path, hint=_EXPECTED)
    return {key: document.get(key) for key in _HEADER_KEYS} | {"settings": settings}


def _read_lines(path: Path, file: FileBlocks) -> Entries:
    """dump.json.part: a header line, then one line per entry; a half-written last line is left out."""
    all_lines = enumerate(lines_of(file.blocks(0, file.size), LONGEST), start=1)
    lines = ((number, line) for number, line in all_lines if line.strip())
    for number, line in lines:
        header = _object(path, line)
        if header is None:
            raise BadInput(f"is not a dump: line {number} is not a JSON object", where=path)
        entries = Entries(_header(path, header), file.size, iter(()))
        entries.batches = _line_batches(path, lines, entries)
        return entries
    raise BadInput("is empty", where=path)


def _line_batches(path: Path, lines: Iterator[tuple[int, bytes]], entries: Entries) -> Iterator[Batch]:
    damage = []
    for number, line in lines:
        batch = batch_of(path, line)
        if batch is None:
            where = "the last line is half written" if next(lines, None) is None else f"line {number} is damaged"
            damage = [f"{path}: {where}; {entries.count} whole entries were read"]
            break
        yield batch
    entries.notes += [f"{path}: the recorder did not finish; {entries.count} whole entries are there", *damage]


# construct.json: which module call encloses a call, and in which round of a step it ran.

_MICRO_STEPS = "megatron_micro_step_number"
_PARENT_CUT = re.compile(rb'(,\s*)(?="[^"\\]{0,4096}"\s*:)')

Value = str | int | float | None  # what a list in these files may hold
_parent_decoder = msgspec.json.Decoder(dict[str, Value | list[Value]])


_UNUSABLE = (OSError, BadInput, msgspec.DecodeError, RecursionError, ValueError, TypeError)


def read_parents(path: Path) -> tuple[dict[str, str | None], str | None]:
    """Read construct.json in both value forms. A file that cannot be used is a note, not an error."""
    parents: dict[str, str | None] = {}
    shared: dict[str, str] = {}  # a parent is that of many calls
    try:
        file = FileBlocks(path)
        budget = Budget(file.size)
        for members in members_of(file, _parent_decoder, _PARENT_CUT, budget):
            members.pop(_MICRO_STEPS, None)
            budget.take(members, ENTRY)
            before = len(shared)
            parents.update(_parents(members, shared))
            budget.take(list(islice(shared, before, None)), ENTRY)
        return parents, None
    except _UNUSABLE as error:
        return {}, _note(path, "no hierarchy is known", error)


def _note(path: Path, loss: str, error: Exception) -> str | None:
    """The note on a file that cannot be used, and what is lost with it; None where it does not exist."""
    reason = error.what if isinstance(error, BadInput) else error
    missing = isinstance(error.__cause__, FileNotFoundError)
    return None if missing else f"{path}: {loss}, the file cannot be used: {reason}"


def _parents(members: dict[str, Any], shared: dict[str, str]) -> Iterator[tuple[str, str | None]]:
    for name, value in members.items():
        if len(name) > LONGEST_NAME:
            raise ValueError(f"a name has more than {LONGEST_NAME} characters")
        parent = (value[0] if value else None) if isinstance(value, list) else value
        if parent is None:
            yield name, None
        elif isinstance(parent, str):
            yield name, shared.setdefault(parent, parent)
        else:
            raise ValueError("a parent must be a name or null")


def read_micro_steps(path: Path) -> dict[str, int]:
    """The numbers that Megatron dumps give to calls, as [parent, number]; nothing where the file has none."""
    numbers: dict[str, int] = {}
    try:
        file = FileBlocks(path)
        if not _holds(file, _MICRO_STEPS.encode()):
            return {}
        budget = Budget(file.size)
        for members in members_of(file, _parent_decoder, _PARENT_CUT, budget):
            pairs = [(name, value[1]) for name, value in members.items() if isinstance(value, list) and len(value) == 2]
            numbered = {name: number for name, number in pairs if isinstance(number, int) and 0 <= number < 1 << 31}
            budget.take(numbered, ENTRY)
            numbers.update(numbered)
    except _UNUSABLE:
        return {}
    return numbers


def _holds(file: FileBlocks, words: bytes) -> bool:
    end = b""
    for block in file.blocks(0, file.size):
        if words in block or words in end + block[: len(words)]:
            return True
        end = block[-len(words) :]
    return False


# stack.json: from which lines of code a call was made.

_STACK_CUT = re.compile(rb'(,\s*)(?="[^"\\]{0,4096}"\s*:\s*\[)')

_SITE = 150  # bytes of a site, beside its lines

_stack_decoder = msgspec.json.Decoder(dict[str, list[Value | list[Value]]])


@dataclass
class Stacks:
    """Call sites, each kept once, and which call belongs to which."""

    frames: list[list[str]] = field(default_factory=list)
    of_op: dict[str, int] = field(default_factory=dict)

    def __getitem__(self, op: str) -> Sequence[str]:
        """The frames of a call, innermost first; empty where none were recorded."""
        site = self.of_op.get(op)
        return self.frames[site] if site is not None else ()


def read_stacks(path: Path) -> tuple[Stacks, str | None]:
    """Read stack.json in its old or new form. A file that cannot be used is a note, not an error."""
    stacks = Stacks()
    by_site: bool | None = None
    try:
        file = FileBlocks(path)
        budget = Budget(file.size)
        for members in members_of(file, _stack_decoder, _STACK_CUT, budget):
            if by_site is None:
                by_site = bool(members.get("0"))
            for name, value in members.items():
                names, frames = map(_texts, value if by_site else ([name], value))
                budget.take(names, ENTRY)
                budget.take(frames, VALUE, more=_SITE)
                stacks.of_op.update(zip(names, repeat(len(stacks.frames))))
                stacks.frames.append(frames)
    except _UNUSABLE as error:
        return Stacks(), _note(path, "no stacks are shown", error)
    return stacks, None


def _texts(items: Any) -> list[str]:
    if not isinstance(items, list):
        raise ValueError("a list of lines was expected")
    return [item if isinstance(item, str) else str(item) for item in items]
