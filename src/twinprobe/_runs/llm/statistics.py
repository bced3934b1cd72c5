"""Statistics that an inference dump keeps instead of tensors, or beside them."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from twinprobe._runs.llm.files import INPUT, OUTPUT, TORCH, Files, TensorFile, TokenFolder
from twinprobe._runs.whole_files import csv_rows
from twinprobe.errors import DamagedTensor

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
