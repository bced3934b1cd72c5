"""The tensor files of one token, by operator, and the statistics that a dump may keep instead of them."""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from twinprobe._runs.tensors.atb_file import AtbHeader, read_header, tensor_of
from twinprobe._runs.tensors.elements import HostTensor, contents, damage_of
from twinprobe._runs.tensors.tensor_files import open_tensor
from twinprobe._runs.whole_files import Entry, csv_rows, expect_all, inside, remote, scan
from twinprobe.errors import DamagedTensor

TORCH, ATB = "torch", "atb"
INPUT, OUTPUT = "input", "output"
_TORCH = re.compile(r"(?P<io>input|output)(?:_(?P<place>.+))?\.(?:pth|pt|npy)")
_ATB = re.compile(r"(?P<io>in|out)tensor(?P<place>\d{1,9})(?:_(?P<label>[^/]*))?\.bin")
_OPERATOR = re.compile(r"\d+_.+")
_DEEPEST = 64

# The kinds of a folder's entries. A folder that is named like a tensor is a damaged one.
_FOLDER, _FILE, _LINK = "folder", "file", "link"
Entries = tuple[tuple[str, str], ...]


class TensorFile(NamedTuple):
    """One tensor of an operator. ``place`` orders its inputs or outputs; ``file`` is under the token's folder."""

    io: str
    place: tuple[int | str, ...]
    file: str
    linked: bool = False
    """Whether it is a symbolic link, which has to be checked before it is followed."""

    @property
    def is_nested(self) -> bool:
        """Whether it comes from a container inside the outputs, such as a key/value cache."""
        return len(self.place) > 1

    @property
    def order(self) -> tuple[tuple[int, int, str], ...]:
        return tuple((0, part, "") if isinstance(part, int) else (1, 0, part) for part in self.place)


# By operator. Tokens whose folders hold the same names share the tuples.
Files = dict[str, tuple[TensorFile, ...]]


@dataclass(frozen=True)
class TokenFolder:
    """One token on one device: the dump's kind and root, the token's folder, and its folders on all cards."""

    kind: str
    root: Path
    folder: str
    cards: tuple[str, ...] = ()

    @cached_property
    def files(self) -> Files:
        """The tensor files by operator; none where their names are given and not listed."""
        list_files = {TORCH: torch_files, ATB: atb_files}.get(self.kind)
        return list_files(self.root, self.folder) if list_files is not None else {}

    @property
    def base(self) -> str:
        """What stands before the names of the files."""
        return f"{self.root}/{self.folder}/" if self.folder else f"{self.root}/"

    def name(self, file: TensorFile) -> str:
        """The path of a file from the dump's root on."""
        return f"{self.folder}/{file.file}" if self.folder else file.file

    def names(self, files: Iterable[TensorFile]) -> str:
        """The paths of several."""
        return ";".join(map(self.name, files))

    def open(self, file: TensorFile, *, enough: int | None = None) -> HostTensor:
        """One tensor; ``enough`` is how many bytes of it will be looked at."""
        return open_llm_tensor(self.root, self.name(file), linked=file.linked, enough=enough)

    def shape(self, file: TensorFile) -> tuple[int, ...]:
        """The shape of a tensor, without its elements."""
        return self.header(file).shape if file.file.endswith(".bin") else self.open(file, enough=0).shape

    def header(self, file: TensorFile) -> AtbHeader:
        """The header of an ATB file."""
        return open_llm_header(self.root, self.name(file), linked=file.linked)

    def shards(self, file: TensorFile) -> list[HostTensor]:
        """The tensor of every card, in their order."""
        return [open_llm_tensor(self.root, f"{folder}/{file.file}") for folder in self.cards]

    def cut_widths(self, file: TensorFile, width: int) -> list[int]:
        """How an operator beside this tensor's own cuts a tensor of this width: fused q, k and v have three widths."""
        operator = file.file.rsplit("/", 2)[0]
        parent = operator.rpartition("/")[0]
        for folder, files in self.files.items():
            if folder.rpartition("/")[0] == parent and "split" in folder.rpartition("/")[2].lower():
                outputs = [file for file in files if file.io == OUTPUT] if len(files) > 1 else []
                widths = [shape[-1] for shape in (self.open(output).shape for output in outputs) if shape]
                if len(widths) > 1 and sum(widths) == width:
                    return widths
        return []


def torch_files(root: Path, token: str) -> Files:
    """Files of one token by module folder."""
    top = _Folder(root, token)
    return {name: _module_files(name, top.listed(name)) for name, kind in top.listed() if kind == _FOLDER}


@lru_cache(maxsize=1 << 16)
def _module_files(folder: str, entries: Entries) -> tuple[TensorFile, ...]:
    files = []
    for name, kind in entries:
        match = _TORCH.fullmatch(name)
        if match is not None:
            files.append(TensorFile(match["io"], _place(match["place"]), f"{folder}/{name}", kind == _LINK))
    return _sorted(files)


def atb_files(root: Path, round_folder: str) -> Files:
    """Files of one execution round by operator folder."""
    files: Files = {}
    top = _Folder(root, round_folder)
    waiting = [("", 0)]
    while waiting:
        folder, depth = waiting.pop()
        before, after, below = _parts(top.listed(folder))
        if folder:
            taken = top.listed(f"{folder}/before") if before else ()
            given = top.listed(f"{folder}/after") if after else ()
            files[folder] = _operator_files(folder, taken, given)
        if depth < _DEEPEST and below:
            front = f"{folder}/" if folder else ""
            waiting += [(front + name, depth + 1) for name in below]
    return files


@lru_cache(maxsize=1 << 10)
def _parts(entries: Entries) -> tuple[bool, bool, tuple[str, ...]]:
    """What an operator's folder holds: inputs, outputs, and the folders of inner operators."""
    folders = [name for name, kind in entries if kind == _FOLDER]
    return "before" in folders, "after" in folders, tuple(name for name in folders if _OPERATOR.fullmatch(name))


@lru_cache(maxsize=1 << 16)
def _operator_files(folder: str, before: Entries, after: Entries) -> tuple[TensorFile, ...]:
    """Inputs from ``before``, outputs from ``after``; what one of them lacks is taken from the other."""
    kept: dict[tuple[str, int], TensorFile] = {}
    for when, entries in (("before", before), ("after", after)):
        for name, kind in entries:
            match = _ATB.fullmatch(name)
            if match is None:
                continue
            io = INPUT if match["io"] == "in" else OUTPUT
            key = (io, int(match["place"]))
            if key not in kept or (io == OUTPUT) == (when == "after"):
                kept[key] = TensorFile(io, (key[1],), f"{folder}/{when}/{name}", kind == _LINK)
    return _sorted(list(kept.values()))


def _place(text: str | None) -> tuple[int | str, ...]:
    """``1_0`` is (1, 0); a keyword or a dict's key stays a text: ``past_key_values_0`` is (past_key_values, 0)."""
    if text is None:
        return ()
    parts: list[int | str] = []
    for part in text.split("_"):
        if part.isdecimal() and len(part) < 10:
            parts.append(int(part))
        elif parts and isinstance(parts[-1], str):
            parts[-1] = f"{parts[-1]}_{part}"
        else:
            parts.append(part)
    return tuple(parts)


def _sorted(files: list[TensorFile]) -> tuple[TensorFile, ...]:
    return tuple(sorted(files, key=lambda file: (file.io, file.order)))


class _Folder:
    """A folder whose subfolders are listed by the thousand: on this machine their paths are put together as texts."""

    def __init__(self, root: Path, name: str) -> None:
        self._path = root / name
        self._text = None if remote(root) is not None else str(self._path)
        expect_all(self._path)

    def listed(self, name: str = "") -> Entries:
        """What a folder holds, in the order of the names; links to folders are not followed."""
        try:
            with scan(self._path / name) if self._text is None else os.scandir(f"{self._text}/{name}") as entries:
                listing = [(entry.name, _kind(entry)) for entry in entries]
        except OSError:
            return ()
        if len(listing) > 1:
            listing.sort()
        return tuple(listing)


def _kind(entry: Entry | os.DirEntry[str]) -> str:
    if entry.is_dir(follow_symlinks=False):
        return _FOLDER
    return _LINK if entry.is_symlink() else _FILE


# One tensor file, whatever wrote it: torch, numpy or ATB.

_MOST_ALIASES, _LONGEST_ALIAS = 8, 255
_ALIAS = re.compile(r"(?P<op>\d+(?:_\d+)*)_(?P<file>(?:in|out)tensor\d+\w*\.bin)")


def open_llm_tensor(root: Path, name: str, *, linked: bool = True, enough: int | None = None) -> HostTensor:
    """Open ``name`` under ``root``. Links must stay under the root; ATB aliases are followed there too.

    ``linked=False`` says that the name comes from a listing of the folder and is no link, which saves the check.
    ``enough`` says how many bytes of the elements will be looked at, if not all: no more of a remote file is fetched.
    """
    if not name.endswith(".bin"):
        return open_tensor(inside(root, name) if linked else root / name, enough=enough)
    path = _path(root, name, linked=linked)
    seen: list[str] = []
    while True:
        try:
            data = contents(path, enough=enough)
            header = read_header(data)
            if header.alias is None:
                return tensor_of(data, header)
        except (DamagedTensor, OSError, MemoryError) as error:
            raise damage_of(path, error) from None
        seen.append(name)
        name = alias_target(root, name, header.alias)
        if name in seen or len(seen) > _MOST_ALIASES:
            raise DamagedTensor(f"names another file for its elements, which leads back to {name}", where=path)
        path = inside(root, name)


def open_llm_header(root: Path, name: str, *, linked: bool = True) -> AtbHeader:
    """The header of an ATB file, for statistics and descriptions."""
    path = _path(root, name, linked=linked)
    try:
        return read_header(contents(path, enough=0))
    except (DamagedTensor, OSError) as error:
        raise damage_of(path, error) from None


def _path(root: Path, name: str, *, linked: bool) -> Path | str:
    """Where a file is; a text on this machine, since there are very many of them."""
    if linked:
        return inside(root, name)
    return f"{root}/{name}" if remote(root) is None else root / name


def alias_target(root: Path, name: str, alias: str) -> str:
    """The file that an alias means: a path beside the file, or ``{op}_{child}_outtensor{i}.bin`` of the same round."""
    beside = f"{name.rpartition('/')[0]}/{alias}" if "/" in name else alias
    match = _ALIAS.fullmatch(alias) if len(alias) <= _LONGEST_ALIAS else None
    if match is None:
        return beside
    path = root / _round_folder(name)
    for number in match["op"].split("_"):
        nested = [entry for entry in folders_in(path, links=False) if entry.partition("_")[0] == number]
        if not nested:
            raise DamagedTensor(f"names {alias} for its elements, but there is no operation {match['op']}", where=name)
        path = path / nested[0]
    places = ("before", "after") if match["file"].startswith("intensor") else ("after", "before")
    files = [path / place / match["file"] for place in places]
    return str(next((file for file in files if file.exists()), files[0]).relative_to(root))


def _round_folder(name: str) -> str:
    """The path up to the first operation folder: ``tensors/0_123/0`` of ``tensors/0_123/0/1_Op/after/x.bin``."""
    kept: list[str] = []
    for part in name.split("/")[:-1]:
        if re.match(r"\d+_\D", part) and (not kept or kept[-1].isdecimal()):
            break
        kept.append(part)
    else:
        return "."
    return "/".join(kept)


def folders_in(path: Path, *, links: bool = True) -> list[str]:
    """The names of the folders in a folder, with those that are links or without."""
    try:
        with scan(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=links))
    except OSError:
        return []


# Statistics that an inference dump keeps instead of tensors, or beside them.

STATS = ("max", "min", "mean", "l2norm")
_TORCH_FILE, _ROUND_FILE = "statistics.csv", "statistic.csv"
_MOST_BYTES = 256 << 20
# A row becomes some hundred bytes of memory. Recorders write as many for it, and few rows to a file.
_ROWS, _BYTES_PER_ROW = 1 << 16, 200


@dataclass(frozen=True, slots=True)
class RecordedTensor:
    """What was recorded of one tensor."""

    dtype: str
    shape: tuple[int, ...]
    values: tuple[float | None, ...]


def recorded_statistics(token: TokenFolder) -> tuple[Files, dict[str, RecordedTensor]]:
    """The statistics that were kept of a token's tensors, by file name, and these tensors by operator folder.

    Operators without statistics have their tensor files.
    """
    return _torch(token) if token.kind == TORCH else _atb(token)


def _torch(token: TokenFolder) -> tuple[Files, dict[str, RecordedTensor]]:
    files = dict(token.files)
    statistics: dict[str, RecordedTensor] = {}
    for folder in token.files:
        listed: list[TensorFile] = []
        count: Counter[str] = Counter()
        for row in _rows(token.root / token.folder / folder / _TORCH_FILE):
            io = INPUT if row.get("InputOutput", "").lower() == INPUT else OUTPUT
            # The file's own index is that of the innermost tuple, not unique: rows stand in the order of the tensors.
            index = count[io]
            count[io] += 1
            file = TensorFile(io, (index,), f"{folder}/{_TORCH_FILE}#{io}.{index}")
            values = tuple(_number(row.get(name)) for name in ("Max", "Min", "Mean", "L2Norm"))
            statistics[file.file] = RecordedTensor(row.get("DataType", ""), _shape(row.get("Shape", "")), values)
            listed.append(file)
        if listed:
            files[folder] = tuple(listed)
    return files, statistics


def _atb(token: TokenFolder) -> tuple[Files, dict[str, RecordedTensor]]:
    files = dict(token.files)
    statistics: dict[str, RecordedTensor] = {}
    for listed in files.values():
        for file in listed:
            try:
                header = token.header(file)
            except DamagedTensor:
                continue
            if header.statistics:
                values = tuple(header.statistics.get(name) for name in STATS)
                statistics[file.file] = RecordedTensor(header.dtype_text, header.shape, values)
    if not statistics:
        _from_round_file(token.root / token.folder / _ROUND_FILE, files, statistics)
    return files, statistics


def _from_round_file(path: Path, files: Files, statistics: dict[str, RecordedTensor]) -> None:
    """The successor's statistic.csv: operators by their numbers, tensors by input or output and index."""
    # 1_Layer/0_Linear is operator 1_0 there.
    folders = {"/".join(part.partition("_")[0] for part in folder.split("/")): folder for folder in files}
    file_at = {(folder, file.io, file.place): file for folder, listed in files.items() for file in listed}
    added: dict[str, list[TensorFile]] = {}
    for row in _rows(path):
        folder = folders.get(row.get("Op Id", "").replace("_", "/"))
        if folder is None:
            continue
        io = INPUT if "in" in row.get("Input/Output", "").lower() else OUTPUT
        index = row.get("Index", "0")
        place = (int(index) if index.isdecimal() and len(index) < 10 else 0,)
        file = file_at.get((folder, io, place))
        if file is None:
            file = file_at[folder, io, place] = TensorFile(io, place, f"{_ROUND_FILE}#{folder}.{io}.{place[0]}")
            added.setdefault(folder, []).append(file)
        values = tuple(_number(row.get(name)) for name in ("Max", "Min", "Mean", "Norm"))
        statistics[file.file] = RecordedTensor(row.get("Dtype", ""), _shape(row.get("Shape", "")), values)
    for folder, more in added.items():
        files[folder] += tuple(more)


def _rows(path: Path) -> Iterator[dict[str, str]]:
    """The rows by their titles, as far as the file can be used."""
    try:
        size = path.stat().st_size
        if size > _MOST_BYTES:
            return
        rows = csv_rows(path)
        titles = [title.strip() for title in next(rows, [])]
        for row in islice(filter(None, rows), _ROWS + size // _BYTES_PER_ROW):
            yield {title: cell.strip() for title, cell in zip(titles, row, strict=False)}
    except (OSError, csv.Error):
        return


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _shape(text: str) -> tuple[int, ...]:
    parts = map(str.strip, text.strip("[]()").replace("x", ",").split(","))
    return tuple(int(part) for part in parts if part.isdecimal() and len(part) < 16)
