"""Mapping files: YAML read as text with line numbers, bounded in every direction."""

from __future__ import annotations

import codecs
import io
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from twinprobe._runs.json_pieces import memory_budget
from twinprobe._runs.whole_files import open_file
from twinprobe.errors import BadInput, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator

# Mapping files are written by people. What is generated for all values of a run is plain lines, and may be larger.
MAX_BYTES = 8 << 20
_MOST_PLAIN = 256 << 20
MAX_DEPTH = 20
# What aliases may add to what is written out. A mapping file has no use for more.
MAX_ALIASED = 100_000
# A value costs some 200 bytes. Large files of names have fifty for each.
_VALUES, _BYTES_PER_VALUE = 1 << 17, 32
_PIECE = 1 << 20
# Memory for a small file of plain lines; and what a line takes beside its names.
_ROOM, _LINE = 48 << 20, 220
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_PLAIN_LINE = re.compile(rb"([A-Za-z_][\w./-]*): ([A-Za-z_][\w./-]*)").fullmatch


@dataclass(slots=True)
class Text:
    """A scalar, as it is written: numbers and yes/no stay text."""

    value: str
    line: int
    is_null: bool = False


@dataclass(slots=True)
class Sequence:
    """A list."""

    line: int
    items: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class Mapping:
    """Keys and values in the order of the file; no key occurs twice."""

    line: int
    items: dict[str, tuple[int, Node]] = field(default_factory=dict)


Node = Text | Sequence | Mapping
KINDS = {Text: "a single value", Sequence: "a list", Mapping: "a mapping"}


def read_yaml(path: Path) -> Node:
    """Read one mapping file. Whatever is wrong with it is a BadInput that names the line."""
    return _parse(path, _read_bytes(path))


def _parse(path: Path, text: bytes) -> Node:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        events = yaml.parse(text, Loader=loader)
        return _Builder(path, len(text)).build(events)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = location(path, mark.line + 1) if mark is not None else path
        raise BadInput(f"is not YAML: {error.problem or error.context}", where=where) from error
    except yaml.YAMLError as error:
        raise BadInput(f"is not YAML: {error}", where=path) from error


class Line(NamedTuple):
    """One ``left: right`` of a flat mapping file."""

    left: str
    right: str
    number: int


class FlatFile(NamedTuple):
    """A mapping file of such lines."""

    path: Path
    lines: list[Line]


def flat_lines(path: Path, node: Node, what: str) -> list[Line]:
    """The entries of a mapping from names to names; BadInput where it is something else."""
    if not isinstance(node, Mapping):
        raise BadInput(f"holds {KINDS[type(node)]}, a mapping was expected", where=location(path, node.line), hint=what)
    return [
        Line(left, text_of(path, value, f"the value of {left!r}"), number)
        for left, (number, value) in node.items.items()
    ]


def read_flat(path: Path, what: str) -> list[Line]:
    """Read a file of ``left: right`` lines. Large generated files of plain names need no YAML parser."""
    size = _size(path, _MOST_PLAIN)
    if size > MAX_BYTES:
        try:
            with open_file(path) as file:
                lines = _plain_lines(path, size, iter(partial(file.readline, _PIECE), b""))
        except OSError as error:
            raise _cannot_be_read(path, error) from error
        if lines is None:
            what = f"is {size} bytes long, more than {MAX_BYTES} are read only of plain lines 'name: name', none twice"
            raise BadInput(what, where=path)
        return lines
    text = _read_bytes(path)
    return _plain_lines(path, len(text), io.BytesIO(text)) or flat_lines(path, _parse(path, text), what)


def _plain_lines(path: Path, size: int, written_lines: Iterable[bytes]) -> list[Line] | None:
    """The entries where every line is a plain ``name: name``; None where YAML has to be asked, or to complain."""
    lines: list[Line] = []
    most, room = _most_values(size) // 2, memory_budget(size, _ROOM)
    for number, whole_line in enumerate(written_lines, start=1):
        written = whole_line.removesuffix(b"\n")
        found = _PLAIN_LINE(written)
        if found is None:
            if written.strip() and not written.startswith(b"#"):
                return None
            continue
        left, right = found[1].decode(), found[2].decode()
        if left in _NULLS or right in _NULLS:
            return None
        lines.append(Line(left, right, number))
        room -= _LINE + len(written)
        if len(lines) > most or room < 0:
            raise _too_many(location(path, number), 2 * most)
    # Two equal names have equal hashes, which take less room than a dict.
    hashes = np.sort(np.fromiter((hash(line.left) for line in lines), np.int64, len(lines)))
    return None if (hashes[1:] == hashes[:-1]).any() else lines


def _most_values(size: int) -> int:
    return _VALUES + size // _BYTES_PER_VALUE


def _too_many(where: str, most: int) -> BadInput:
    return BadInput(f"more than {most} values so far, out of proportion to the size of the file", where=where)


def location(path: Path, line: int) -> str:
    """How a place in a mapping file is named in messages."""
    return f"{path}, line {line}"


def text_of(path: Path, node: Node, what: str) -> str:
    """The text of a scalar; BadInput where it is empty or no scalar."""
    if not isinstance(node, Text):
        raise BadInput(f"{what} is {KINDS[type(node)]}, a name was expected", where=location(path, node.line))
    if node.is_null:
        raise BadInput(f"{what} is empty, a name was expected", where=location(path, node.line))
    return node.value


def _size(path: Path, most: int) -> int:
    """How long the file is, if it can be read."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise _cannot_be_read(path, error) from error
    if size > most:
        raise BadInput(f"is {size} bytes long, more than {most} are not read", where=path)
    return size


def _cannot_be_read(path: Path, error: OSError) -> BadInput:
    return BadInput(f"the mapping file cannot be read: {error.strerror}", where=path)


def _read_bytes(path: Path) -> bytes:
    """The contents of a file of UTF-8 text."""
    size = _size(path, MAX_BYTES)
    try:
        with open_file(path) as file:
            # No more is asked for than is there: the memory for it is taken before it is read.
            text = file.read(size or MAX_BYTES)  # files of /proc tell no size
    except OSError as error:
        raise _cannot_be_read(path, error) from error
    decoder, at = codecs.getincrementaldecoder("utf-8")(), 0
    try:
        for at in range(0, len(text), _PIECE):
            decoder.decode(text[at : at + _PIECE])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise BadInput(f"is not UTF-8 text: {error.reason} near byte {at + error.start}", where=path) from error
    return text.removeprefix(codecs.BOM_UTF8)


@dataclass(slots=True)
class _Open:
    """A container whose end has not been read yet."""

    node: Sequence | Mapping
    anchor: str | None
    key: Text | None = None
    size: int = 1


class _Builder:
    """Builds the tree from parser events without recursion, so that no depth of nesting can hurt."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._most = self._left = _most_values(size)
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._stack: list[_Open] = []
        self._root: Node | None = None
        self._aliased = 0

    def build(self, events: Iterator[Any]) -> Node:
        import yaml

        documents = 0
        for event in events:
            kind = type(event)
            if kind is yaml.ScalarEvent:
                is_null = not event.style and event.value in _NULLS
                self._place(Text(event.value, event.start_mark.line + 1, is_null), event.anchor, 1)
            elif kind is yaml.MappingStartEvent:
                self._open(Mapping(event.start_mark.line + 1), event.anchor)
            elif kind is yaml.SequenceStartEvent:
                self._open(Sequence(event.start_mark.line + 1), event.anchor)
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                done = self._stack.pop()
                self._place(done.node, done.anchor, done.size)
            elif kind is yaml.AliasEvent:
                self._alias(event)
            elif kind is yaml.DocumentStartEvent:
                documents += 1
                if documents > 1:
                    raise BadInput("a second document begins here, one was expected", where=self._location(event))
        if self._root is None or (isinstance(self._root, Text) and self._root.is_null):
            raise BadInput(
                "the mapping file is empty", where=self._path, hint="write at least one entry or leave it out"
            )
        return self._root

    def _open(self, node: Sequence | Mapping, anchor: str | None) -> None:
        if len(self._stack) >= MAX_DEPTH:
            raise BadInput(f"is nested deeper than {MAX_DEPTH} levels", where=location(self._path, node.line))
        self._stack.append(_Open(node, anchor))

    def _alias(self, event: Any) -> None:
        if event.anchor not in self._anchors:
            raise BadInput(
                f"*{event.anchor} refers to nothing above it, or to what encloses it", where=self._location(event)
            )
        node, size = self._anchors[event.anchor]
        self._aliased += size
        if self._aliased > MAX_ALIASED:
            raise BadInput(f"the anchors expand to more than {MAX_ALIASED} values", where=self._location(event))
        self._place(node, None, size)

    def _place(self, node: Node, anchor: str | None, size: int) -> None:
        self._left -= 1
        if self._left < 0:
            raise _too_many(location(self._path, node.line), self._most)
        if anchor is not None:
            self._anchors[anchor] = (node, size)
        if not self._stack:
            self._root = node
            return
        top = self._stack[-1]
        top.size += size
        if isinstance(top.node, Sequence):
            top.node.items.append(node)
        elif top.key is None:
            if not isinstance(node, Text):
                raise BadInput(
                    f"a key is {KINDS[type(node)]}, a name was expected", where=location(self._path, node.line)
                )
            top.key = node
        else:
            self._set(top.node, top.key, node)
            top.key = None

    def _set(self, mapping: Mapping, key: Text, value: Node) -> None:
        if key.value == "<<" and isinstance(value, Mapping):
            for name, entry in value.items.items():
                mapping.items.setdefault(name, entry)
            return
        if key.is_null:
            raise BadInput("a key is empty, a name was expected", where=location(self._path, key.line))
        if key.value in mapping.items:
            first = mapping.items[key.value][0]
            raise BadInput(f"the key {key.value!r} is here and in line {first}", where=location(self._path, key.line))
        mapping.items[key.value] = (key.line, value)

    def _location(self, event: Any) -> str:
        return location(self._path, event.start_mark.line + 1)


# Warnings about a mapping file: each names its line; a file full of mistakes does not flood the screen.

_SHOWN = 20
_MIRRORED = "its left side names the golden run, so the file is used the other way round"

Side = TypeVar("Side")


class Remarks:
    """Collects warnings about one mapping file, at most some of each kind."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kinds: dict[str, int] = {}
        self._texts: list[str] = []

    def add(self, line: int, text: str, kind: str = "", hint: Callable[[], str] | None = None) -> None:
        """Remember a warning; from the 21st of a kind on they are only counted, and no costly hint is looked for."""
        seen = self._kinds[kind] = self._kinds.get(kind, 0) + 1
        if seen <= _SHOWN:
            self._texts.append(f"{location(self._path, line)}: {text}{hint() if hint is not None else ''}")

    def whole_file(self, text: str) -> None:
        """Remember a remark on the file as a whole."""
        self._texts.append(f"{self._path}: {text}")

    def sides(self, target: Side, golden: Side, fits: Callable[[Side, Side], int]) -> tuple[Side, Side, bool]:
        """The run that the left side of the file names, the other one, and whether the left one is golden.

        ``fits`` counts what of the file fits two runs: it may have been written for the two the other way round.
        """
        if fits(golden, target) <= fits(target, golden):
            return target, golden, False
        self.whole_file(_MIRRORED)
        return golden, target, True

    def texts(self) -> list[str]:
        """All warnings, and how many more there were of each kind."""
        more = [
            f"{self._path}: {count - _SHOWN} more like these ({kind})"
            for kind, count in self._kinds.items()
            if count > _SHOWN
        ]
        return self._texts + more


# 'Did you mean': the real name nearest to one that exists nowhere.

# difflib costs some 20 us a pair; the words two names share pick the few that are worth it.
_CANDIDATES = 200


class Names:
    """A set of real names that can be asked for the nearest one. The index is built at the first question."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = dict.fromkeys(names)
        self._by_word: dict[str, list[str]] | None = None

    def hint(self, name: str) -> str:
        """``; did you mean 'x'?`` or nothing, to be put after a message."""
        meant = "" if name in self._names else did_you_mean(name, self._candidates(name))
        return f"; {meant.rstrip()}" if meant else ""

    def _candidates(self, name: str) -> list[str]:
        if len(self._names) <= _CANDIDATES:
            return list(self._names)
        if self._by_word is None:
            self._by_word = defaultdict(list)
            for known in self._names:
                for word in dict.fromkeys(_words(known)):
                    self._by_word[word].append(known)
        lists = sorted((self._by_word[word] for word in dict.fromkeys(_words(name)) if word in self._by_word), key=len)
        found: dict[str, None] = {}
        for names in lists:
            found.update(dict.fromkeys(names[: _CANDIDATES - len(found)]))
            if len(found) >= _CANDIDATES:
                break
        return list(found) or list(self._names)[:_CANDIDATES]


def _words(name: str) -> list[str]:
    return [name, *name.lower().replace("_", ".").split(".")]
