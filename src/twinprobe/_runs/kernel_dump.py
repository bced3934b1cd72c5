"""Kernel dumps of a static graph: ``rank_<R>/<net>/<graph>/<step>`` with npy files or a statistic.csv."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from twinprobe._runs.json_pieces import ENTRY, Budget
from twinprobe._runs.table import TENSOR, Leaf, Stat
from twinprobe._runs.whole_files import csv_rows, scan
from twinprobe.errors import BadInput

# Names of kernels in a static graph's dump: the fields of a file name, and the list of names that were too long.

MAPPING = "mapping.csv"
LARGEST_MAPPING = 256 << 20
_LONGEST_NAME = 4096
_NAME = re.compile(
    r"(?P<type>[^.]+)\.(?P<op>.+?)\.(?P<task>\d+)\.(?P<stream>\d+)\.(?P<time>\d+(?:\.\d+)*)"
    r"\.(?P<io>input|output)\.(?P<slot>\d+(?:\.\d+)*)(?P<form>(?:\.[^.]+)*)"
)


@dataclass(frozen=True, slots=True)
class KernelName:
    """One input or output of one kernel, as its file name spells it. ``time`` orders repeated runs of a kernel."""

    op_type: str
    op: str
    task: str
    time: int
    io: str
    slot: str

    @property
    def shown(self) -> str:
        """The name of a row that has no file."""
        return f"{self.op}.{self.task}.{self.io}.{self.slot}"


def parse_kernel_name(name: str) -> KernelName | None:
    """Take ``type.op.task.stream.time.output.0.format.dtype.npy`` apart; None for any other name."""
    match = _NAME.fullmatch(name.removesuffix(".npy")) if len(name) <= _LONGEST_NAME else None
    if match is None:
        return None
    time = int(match["time"].partition(".")[0])
    return KernelName(match["type"], match["op"], match["task"], time, match["io"], match["slot"])


def read_name_list(folder: Path) -> tuple[dict[str, str], list[str]]:
    """mapping.csv of a folder: the real name of each file whose own would have been too long."""
    path = folder / MAPPING
    if not path.is_file():
        return {}, []
    if path.stat().st_size > LARGEST_MAPPING:
        raise BadInput(f"is larger than {LARGEST_MAPPING >> 20} MiB", where=path, hint="is this a list of file names?")
    names: dict[str, str] = {}
    short = 0
    try:
        budget = Budget(path.stat().st_size)
        for row in csv_rows(path):
            if len(row) < 2:
                short += bool(row)
                continue
            # Some writers leave the ending off; the file in the folder has it.
            short_name, name = row[0].strip().removesuffix(".npy") + ".npy", row[1].strip()
            budget.take((short_name, name), ENTRY)
            names[short_name] = name
    except (OSError, csv.Error, ValueError) as error:
        raise BadInput(f"cannot be read: {error}", where=path) from None
    return names, [f"{path}: {short} lines without two columns were left out"] if short else []


# statistic.csv of a static graph's dump: one line per input or output of a kernel.

STATISTIC = "statistic.csv"
LARGEST = 4 << 30
FEWEST_COLUMNS = 13
# Where a column stands if the header does not name it.
_PLACES = {"Op Type": 0, "Op Name": 1, "Task ID": 2, "Timestamp": 4, "IO": 5, "Slot": 6}
_VALUES = ("Data Type", "Shape", "Max Value", "Min Value", "Avg Value", "L2Norm Value")
_NUMBERS = re.compile(r"\d{1,15}")
NULL = "null"


def read_statistics(path: Path, notes: list[str]) -> Iterator[tuple[KernelName, Leaf]]:
    """The lines of a statistic.csv; a line that is cut off is left out and noted."""
    if path.stat().st_size > LARGEST:
        raise BadInput(f"is larger than {LARGEST >> 30} GiB", where=path)
    try:
        yield from _lines(path, csv_rows(path), notes)
    except (OSError, csv.Error) as error:
        raise BadInput(f"cannot be read: {error}", where=path) from None


def _lines(path: Path, reader: Iterator[list[str]], notes: list[str]) -> Iterator[tuple[KernelName, Leaf]]:
    header = [title.strip().casefold().replace(" ", "") for title in next(reader, [])]
    if len(header) < FEWEST_COLUMNS:
        what = f"has {len(header)} columns, at least {FEWEST_COLUMNS} are needed"
        raise BadInput(what, where=path, hint="is this a statistic.csv of a kernel dump?")
    titles = {title: title.casefold().replace(" ", "") for title in (*_PLACES, *_VALUES)}
    places = {title: header.index(plain) if plain in header else _PLACES.get(title) for title, plain in titles.items()}
    lacking = [title for title in _VALUES if places[title] is None]
    if lacking:
        notes.append(f"{path}: no column {', '.join(lacking)}; these values count as not recorded")
    left_out = 0
    for row in reader:
        cells = {title: row[place].strip() for title, place in places.items() if place is not None and place < len(row)}
        whole = len(row) >= FEWEST_COLUMNS and all(title in cells for title in _PLACES)
        if not whole or cells["IO"].lower() not in ("input", "output"):
            left_out += bool(row)
            continue
        time = cells["Timestamp"]
        number = int(time) if time.isdecimal() and len(time) < 30 else 0
        kind, op, task, slot = (cells[title] for title in ("Op Type", "Op Name", "Task ID", "Slot"))
        yield KernelName(kind, op, task, number, cells["IO"].lower(), slot), _leaf(cells)
    if left_out:
        notes.append(f"{path}: {left_out} lines that are cut off or name neither input nor output were left out")


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


NPY = "npy files"
_DEEPEST = 8
_RANK = re.compile(r"rank_(\d{1,9})")
_NUMBER = re.compile(r"\d{1,9}")
# Folders of tensors that other recorders write; they may hold very many files.
_NOT_OURS = frozenset({"dump_tensor_data"})


@dataclass(frozen=True, slots=True)
class KernelFolder:
    """The kernels of one graph in one step on one rank."""

    rank: int
    step: int
    graph: str
    path: Path


@dataclass(slots=True)
class KernelRow:
    """One recorded input or output. ``file`` is relative to the dump; ``leaf`` has the statistics, if recorded."""

    name: KernelName
    graph: str
    file: str | None
    source: Path
    leaf: Leaf


def is_kernel_folder(path: Path) -> bool:
    """Whether a folder holds kernel dumps, by its layout; stops at the first one found."""
    return path.is_dir() and next(_walk(path), None) is not None


def kernel_folders(root: Path) -> list[KernelFolder]:
    """All kernel folders under a dump, by rank, step and graph."""
    return sorted(_walk(root), key=lambda folder: (folder.rank, folder.step, folder.path))


def read_kernels(root: Path, folders: list[KernelFolder]) -> tuple[str, list[KernelRow], list[str]]:
    """The kind of a rank's step, its rows in the order they were recorded, and notes on what was left out."""
    notes: list[str] = []
    kinds = {folder.path: _kind(folder.path) for folder in folders}
    first, kind = next(iter(kinds.items()))
    for path, own in kinds.items():
        if own != kind:
            raise BadInput(f"holds {own}, but {first} holds {kind}", where=path)
    rows: list[KernelRow] = []
    for folder in folders:
        if kind == NPY:
            rows += _npy_rows(root, folder, notes)
            continue
        source = folder.path / STATISTIC
        rows += (KernelRow(name, folder.graph, None, source, leaf) for name, leaf in read_statistics(source, notes))
    rows.sort(key=lambda row: row.name.time)
    return kind, rows, notes


def _kind(path: Path) -> str:
    """The kind of a folder: npy files take precedence over a statistic.csv next to them."""
    with scan(path) as entries:
        if any(entry.name.endswith(".npy") for entry in entries):
            return NPY
    if (path / STATISTIC).is_file():
        return STATISTIC
    hint = "raw .bin files must be converted to npy first"
    raise BadInput(f"holds neither npy files nor {STATISTIC}", where=path, hint=hint)


def _npy_rows(root: Path, folder: KernelFolder, notes: list[str]) -> Iterator[KernelRow]:
    real_names, more = read_name_list(folder.path)
    notes += more
    relative = folder.path.relative_to(root)
    unknown = []
    with scan(folder.path) as entries:
        files = sorted(entry.name for entry in entries if entry.name.endswith(".npy"))
    for file in files:
        name = parse_kernel_name(real_names.get(file, file))
        if name is None:
            unknown.append(file)
            continue
        leaf = Leaf("kernel", kind=TENSOR, data_name=(relative / file).as_posix())
        yield KernelRow(name, folder.graph, leaf.data_name, folder.path / file, leaf)
    if unknown:
        shown = ", ".join(unknown[:3]) + (" ..." if len(unknown) > 3 else "")
        notes.append(f"{folder.path}: {len(unknown)} files are not called as kernels are, and were left out: {shown}")


def _walk(root: Path) -> Iterator[KernelFolder]:
    """Every folder with dumped files whose path names a rank and a step. Links are not followed."""
    waiting = [(root.absolute(), 0)]
    while waiting:
        path, depth = waiting.pop()
        folder = _kernel_folder(root, path)
        if folder is not None and _holds_dump(path):
            yield folder
        elif depth < _DEEPEST:
            with suppress(OSError), scan(path) as entries:
                folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
                names = [name for name in sorted(folders, reverse=True) if name[0] != "." and name not in _NOT_OURS]
                waiting += [(path / name, depth + 1) for name in names]


def _kernel_folder(root: Path, path: Path) -> KernelFolder | None:
    parts = path.parts
    if len(parts) < 4 or not _NUMBER.fullmatch(parts[-1]):
        return None
    rank = _RANK.fullmatch(parts[-4])
    number = rank[1] if rank else next((part for part in (parts[-4], parts[-3]) if _NUMBER.fullmatch(part)), None)
    if number is None:
        return None
    graph = "/".join(parts[-3:-1])
    return KernelFolder(int(number), int(parts[-1]), graph, root / path.relative_to(root.absolute()))


def _holds_dump(path: Path) -> bool:
    try:
        with scan(path) as entries:
            return any(entry.name.endswith((".npy", ".bin")) or entry.name == STATISTIC for entry in entries)
    except OSError:
        return False
