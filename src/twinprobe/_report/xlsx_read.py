"""Reading rows of a workbook without loading it: only wanted rows are parsed, only wanted columns kept.

A sheet is cut at its row ends as bytes and a row is parsed only if it can be wanted, which is many times faster than
parsing all of it. A workbook is untrusted: no document type, comment or CDATA is accepted, no row may be huge.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from twinprobe._report.xlsx import column_letters
from twinprobe._runs.whole_files import open_file
from twinprobe.errors import BadInput

Row = list[str | None]


class _Damaged(RuntimeError):
    """What is wrong with a workbook."""


_CHUNK = 1 << 20
LONGEST_ITEM = 16 << 20
LARGEST_MEMBER = 8 << 30
_SHEET = re.compile(r"xl/worksheets/sheet(\d+)\.xml")
_TEXTS = "xl/sharedStrings.xml"
_RUN = re.compile(rb"<(?:\w+:)?r[\s>]")
_SPELLED = re.compile(r"_x([0-9A-Fa-f]{4})_")


def read_titles(path: Path) -> list[str]:
    """The header of the first sheet that has rows."""
    with _open(path) as archive:
        for sheet in _sheets(archive):
            cells = next(_cells(archive, sheet, lambda _: True), None)
            if cells:
                return _titles(archive, cells)
    return []


def read_rows(path: Path, columns: list[str], key: str, wanted: Callable[[str], bool], needles: list[str]) -> list[Row]:
    """The cells of ``columns`` (None where blank) in each row of all sheets whose ``key`` cell is wanted.

    Every wanted key must contain one of the ``needles``: rows without any are skipped unparsed.
    """
    marks = [escape(needle).encode() for needle in needles]
    rows: list[Row] = []
    with _open(path) as archive:
        keys = _find_texts(archive, lambda raw: _may_hold(raw, marks))
        for sheet in _sheets(archive):
            rows += _sheet_rows(archive, sheet, columns, key, wanted, marks, keys)
    return rows


def _sheet_rows(
    archive: zipfile.ZipFile, sheet: str, columns: list[str], key: str, wanted: Callable[[str], bool],
    marks: list[bytes], keys: dict[int, str],
) -> list[Row]:  # fmt: skip
    header = next(_cells(archive, sheet, lambda _: True), None)
    if not header:
        return []
    titles = _titles(archive, header)
    if key not in titles:
        return []
    key_at = titles.index(key)
    places = [titles.index(column) if column in titles else None for column in columns]
    probe = _probe(key_at, marks, keys)
    needed = {column_letters(place): place for place in (key_at, *places) if place is not None}
    rows: list[list[_Cell | None]] = []
    for cells in _cells(archive, sheet, probe, skip=1, needed=needed):
        at_key = cells.get(key_at)
        name = None if at_key is None else keys.get(at_key) if isinstance(at_key, int) else at_key
        if name is not None and wanted(name):
            rows.append([None if place is None else cells.get(place) for place in places])
    numbers = {cell for row in rows for cell in row if isinstance(cell, int)}
    texts = _find_texts(archive, lambda _: True, numbers) if numbers else {}
    return [[_resolved(cell, texts) for cell in row] for row in rows]


def _probe(key_at: int, marks: list[bytes], keys: dict[int, str]) -> Callable[[bytes], bool]:
    """Whether a row can be wanted, by its bytes: its key is one of the shared texts, or a mark stands in it."""
    key = re.compile(rb'<(?:\w+:)?c r="%s\d+"([^>]*)>(?:<(?:\w+:)?v>(\d{1,10})<)?' % column_letters(key_at).encode())

    def possible(row: bytes) -> bool:
        match = key.search(row)
        if match is None:
            return True  # a writer that spells its cells in another way: the parser will tell
        if match[2] and b't="s"' in match[1]:
            return int(match[2]) in keys
        return _may_hold(row, marks)

    return possible


def _may_hold(raw: bytes, marks: list[bytes]) -> bool:
    """Whether a mark can be in the text of these bytes: runs of rich text and spelled characters may hide it."""
    return any(mark in raw for mark in marks) or b"&#" in raw or _RUN.search(raw) is not None


# A cell is its text, or the place of its text among the shared ones.
_Cell = str | int


def _cells(
    archive: zipfile.ZipFile, sheet: str, possible: Callable[[bytes], bool], *, skip: int = 0,
    needed: dict[str, int] | None = None,
) -> Iterator[dict[int, _Cell]]:  # fmt: skip
    with archive.open(sheet) as file:
        for number, row in enumerate(_pieces(file, b"row")):
            if number >= skip and possible(row):
                yield _parse_row(row, needed)


def _parse_row(row: bytes, needed: dict[str, int] | None) -> dict[int, _Cell]:
    """The cells of a row by column; with ``needed``, only those of these columns (letters and number)."""
    cells: dict[int, _Cell] = {}
    column = -1
    for cell in _parse(row):
        if _plain_tag(cell) != "c":
            continue
        place = cell.get("r")
        if place is None:
            column += 1
        elif needed is None:
            column = _column(place)
        else:
            column = needed.get(place.rstrip("0123456789"), -1)
            if column < 0:
                continue
        value = _value(cell)
        if value is not None:
            cells[column] = value
    return cells


def _value(cell: ElementTree.Element) -> _Cell | None:
    kind = cell.get("t", "n")
    if kind == "inlineStr":
        return next((_text(child) for child in cell if _plain_tag(child) == "is"), None)
    value = next((child.text or "" for child in cell if _plain_tag(child) == "v"), None)
    if value is None:
        return None
    if kind == "s":
        if not value.isdigit() or len(value) > 10:
            raise _Damaged(f"names the shared text {value[:20]!r}")
        return int(value)
    return ("True" if value == "1" else "False") if kind == "b" else value


def _find_texts(
    archive: zipfile.ZipFile, possible: Callable[[bytes], bool], numbers: set[int] | None = None
) -> dict[int, str]:
    """The shared texts that are possible and, where numbers are given, among these."""
    if _TEXTS not in archive.namelist():
        return {}
    texts: dict[int, str] = {}
    with archive.open(_TEXTS) as file:
        for number, item in enumerate(_pieces(file, b"si")):
            if (numbers is None or number in numbers) and possible(item):
                texts[number] = _text(_parse(item))
                if numbers is not None and len(texts) == len(numbers):
                    break
    return texts


def _text(item: ElementTree.Element) -> str:
    """All text of an element but for pronunciation hints; characters that XML lacks are spelled _x001B_ there."""
    runs = [run for child in item for run in (child if _plain_tag(child) == "r" else [child])]
    parts = [run.text or "" for run in runs if _plain_tag(run) == "t"]
    return _SPELLED.sub(lambda match: chr(int(match[1], 16)), "".join(parts))


def _titles(archive: zipfile.ZipFile, cells: dict[int, _Cell]) -> list[str]:
    numbers = {cell for cell in cells.values() if isinstance(cell, int)}
    texts = _find_texts(archive, lambda _: True, numbers) if numbers else {}
    last = max(cells)
    if last > 16_383:
        raise _Damaged("has more columns than a sheet can have")
    return [_resolved(cells.get(index), texts) or "" for index in range(last + 1)]


def _resolved(cell: _Cell | None, texts: dict[int, str]) -> str | None:
    if not isinstance(cell, int):
        return cell
    if cell not in texts:
        raise _Damaged(f"names the shared text {cell}, which it lacks")
    return texts[cell]


def _pieces(file: IO[bytes], tag: bytes) -> Iterator[bytes]:
    """Each ``<tag ...>...</tag>`` (or ``<tag/>``) of a stream, as bytes."""
    start = re.compile(rb"<((?:\w+:)?)%s(?=[\s/>])" % tag)
    empty = re.compile(rb"<(?:\w+:)?%s(?:\s[^>]*)?/>" % tag)
    end, rest = b"", b""
    while chunk := file.read(_CHUNK):
        if b"<!" in rest[-1:] + chunk:
            raise _Damaged("holds a document type, a comment or CDATA, which are not accepted")
        rest += chunk
        if not end:
            first = start.search(rest)
            if first is None:
                rest = rest[-64:]
                continue
            end = b"</" + first[1] + tag + b">"
        *whole, rest = rest.split(end)
        for piece in whole:
            begin = piece.rfind(b"<" + end[2:-1])
            if begin > 0:
                yield from empty.findall(piece, 0, begin)
            yield piece[begin:] + end
        if len(rest) > LONGEST_ITEM:
            raise _Damaged(f"has a {tag.decode()} of more than {LONGEST_ITEM >> 20} MiB, or none")


def _parse(piece: bytes) -> ElementTree.Element:
    # Cut out of its document, a piece lacks the declarations of its prefixes; the tags' last parts are enough.
    if b":" in piece[: piece.find(b">")].split(b" ", 1)[0]:
        piece = re.sub(rb"(</?)\w+:", rb"\1", piece)
    piece = piece.replace(b" xml:space=", b" space=")
    try:
        return ElementTree.fromstring(piece)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise _Damaged(f"is not valid XML: {error}") from None


def _plain_tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _column(place: str) -> int:
    """The number of a cell's column from its place: A7 is in column 0, AA7 in column 26."""
    number = 0
    for letter in place:
        if not "A" <= letter <= "Z":
            break
        number = number * 26 + ord(letter) - 64
    return number - 1


def _sheets(archive: zipfile.ZipFile) -> list[str]:
    sheets = {name: match for name in archive.namelist() if (match := _SHEET.fullmatch(name))}
    return sorted(sheets, key=lambda name: int(sheets[name][1]))


@contextmanager
def _open(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        # Of a remote workbook only the members that are read are fetched.
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                if info.file_size > LARGEST_MEMBER:
                    raise _Damaged(f"claims {info.file_size >> 30} GiB for {info.filename!r}")
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, UnicodeError) as error:
        what = str(error) if isinstance(error, _Damaged) else f"is not a valid xlsx file: {error}"
        raise BadInput(what, where=path, hint="write the result again, or as csv") from None
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror or error}", where=path) from None
