"""Kernel dumps of a static graph: ``rank_<R>/<net>/<graph>/<step>`` with npy files or a statistic.csv."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from twinprobe.errors import BadInput
from twinprobe.runs.kernel.names import KernelName, parse_kernel_name, read_name_list
from twinprobe.runs.kernel.statistics import STATISTIC, read_statistics
from twinprobe.runs.leaf import TENSOR, Leaf
from twinprobe.runs.scan import scan

NPY, STATISTICS = "npy files", "statistic.csv"
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
    for path, other in kinds.items():
        if other != kind:
            raise BadInput(f"holds {other}, but {first} holds {kind}", where=path)
    rows: list[KernelRow] = []
    for folder in folders:
        rows += _npy_rows(root, folder, notes) if kind == NPY else _statistic_rows(folder, notes)
    rows.sort(key=lambda row: row.name.time)
    return kind, rows, notes


def _kind(path: Path) -> str:
    kind = next(_kinds(path), None)
    if kind is None:
        raise BadInput(
            f"holds neither npy files nor {STATISTIC}",
            where=path, hint="raw .bin files must be converted to npy first",
        )  # fmt: skip
    return kind


def _kinds(path: Path) -> Iterator[str]:
    """The kind of a folder: npy files go before a statistic.csv that lies beside them."""
    with scan(path) as entries:
        if any(entry.name.endswith(".npy") for entry in entries):
            yield NPY
    if (path / STATISTIC).is_file():
        yield STATISTICS


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


def _statistic_rows(folder: KernelFolder, notes: list[str]) -> Iterator[KernelRow]:
    source = folder.path / STATISTIC
    for name, leaf in read_statistics(folder.path, notes):
        yield KernelRow(name, folder.graph, None, source, leaf)


def _walk(root: Path) -> Iterator[KernelFolder]:
    """Every folder whose path says rank and step and that holds dumped files. Links are not followed."""
    waiting = [(root.absolute(), 0)]
    while waiting:
        path, depth = waiting.pop()
        found = _place(root, path)
        if found is not None and _holds_dump(path):
            yield found
            continue
        if depth < _DEEPEST:
            waiting += [(child, depth + 1) for child in _children(path)]


def _children(path: Path) -> list[Path]:
    try:
        with scan(path) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [path / name for name in sorted(names, reverse=True) if name[0] != "." and name not in _NOT_OURS]


def _place(root: Path, path: Path) -> KernelFolder | None:
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
