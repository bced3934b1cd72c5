"""statistic.csv of a static graph's dump: one line per input or output of a kernel."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path

from twinprobe.errors import BadInput
from twinprobe.runs.csv_rows import csv_rows
from twinprobe.runs.kernel.names import KernelName
from twinprobe.runs.leaf import TENSOR, Leaf, Stat
from twinprobe.runs.whole_file import open_file

STATISTIC = "statistic.csv"
LARGEST = 4 << 30
FEWEST_COLUMNS = 13
# Where a column stands if the header does not name it.
_PLACES = {"Op Type": 0, "Op Name": 1, "Task ID": 2, "Timestamp": 4, "IO": 5, "Slot": 6}
_VALUES = ("Data Type", "Shape", "Max Value", "Min Value", "Avg Value", "L2Norm Value")
_NUMBERS = re.compile(r"\d{1,15}")
NULL = "null"


def read_statistics(folder: Path, notes: list[str]) -> Iterator[tuple[KernelName, Leaf]]:
    """The lines of a folder's statistic.csv; a line that is cut off is left out and noted."""
    path = folder / STATISTIC
    if path.stat().st_size > LARGEST:
        raise BadInput(f"is larger than {LARGEST >> 30} GiB", where=path)
    try:
        with TextIOWrapper(open_file(path), encoding="utf-8-sig", errors="replace", newline="") as file:
            yield from _lines(path, csv_rows(file), notes)
    except (OSError, csv.Error) as error:
        raise BadInput(f"cannot be read: {error}", where=path) from None


def _lines(path: Path, reader: Iterator[list[str]], notes: list[str]) -> Iterator[tuple[KernelName, Leaf]]:
    header = [title.strip().casefold().replace(" ", "") for title in next(reader, [])]
    if len(header) < FEWEST_COLUMNS:
        what = f"has {len(header)} columns, at least {FEWEST_COLUMNS} are needed"
        raise BadInput(what, where=path, hint="is this a statistic.csv of a kernel dump?")
    at = {title: _place(header, title) for title in (*_PLACES, *_VALUES)}
    lacking = [title for title in _VALUES if at[title] is None]
    if lacking:
        notes.append(f"{path}: no column {', '.join(lacking)}; these values count as not recorded")
    left_out = 0
    for row in reader:
        cells = {title: row[place].strip() for title, place in at.items() if place is not None and place < len(row)}
        whole = len(row) >= FEWEST_COLUMNS and all(title in cells for title in _PLACES)
        if not whole or cells["IO"].lower() not in ("input", "output"):
            left_out += bool(row)
            continue
        yield _name(cells), _leaf(cells)
    if left_out:
        notes.append(f"{path}: {left_out} lines that are cut off or name neither input nor output were left out")


def _place(header: list[str], title: str) -> int | None:
    wanted = title.casefold().replace(" ", "")
    return header.index(wanted) if wanted in header else _PLACES.get(title)


def _name(cells: dict[str, str]) -> KernelName:
    time = cells["Timestamp"]
    number = int(time) if time.isdecimal() and len(time) < 30 else 0
    return KernelName(cells["Op Type"], cells["Op Name"], cells["Task ID"], number, cells["IO"].lower(), cells["Slot"])


def _leaf(cells: dict[str, str]) -> Leaf:
    shape = cells.get("Shape")
    leaf = Leaf("kernel", cells.get("Data Type") or None, kind=TENSOR)
    leaf.Max, leaf.Min, leaf.Mean, leaf.Norm = (_number(cells.get(title, NULL)) for title in _VALUES[2:])
    leaf.shown_shape = None if shape is None else _shape(shape)
    return leaf


def _shape(text: str) -> str:
    """The shape as all tables show it: ``(2,3)`` is ``[2, 3]``."""
    inner = text[1:-1].replace(",", " ").split()
    if text[:1] + text[-1:] not in ("()", "[]", "(]", "[)") or not all(map(_NUMBERS.fullmatch, inner)):
        return text
    return str([int(number) for number in inner])


def _number(text: str) -> Stat:
    if text in ("True", "False"):
        return float(text == "True")
    if not text or text.casefold() == NULL:
        return NULL
    try:
        return float(text)
    except ValueError:
        return text
