"""A rank's step of a kernel dump as a Run, so that kernels are measured and judged like any other call."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from twinprobe.errors import DamagedTensor, NothingToCompare
from twinprobe.measure.statistics import statistics
from twinprobe.runs.kernel.dump import NPY, KernelFolder, KernelRow, read_kernels
from twinprobe.runs.kernel.statistics import STATISTIC
from twinprobe.runs.read_ahead import tensor_loaders
from twinprobe.runs.run import STATISTICS, TENSORS, Run
from twinprobe.runs.table import INPUT, OUTPUT, POINT, TableBuilder

_COLLECTIVES = ("allreduce", "allgather", "reducescatter", "broadcast", "alltoall", "send", "receive", "allsum")


@dataclass
class KernelRun(Run):
    """The kernels of one rank and step: a Run whose tensor files lie in the dump itself."""

    root: Path = Path()
    rows: list[KernelRow] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """What the dump keeps of its tensors."""
        return NPY if self.task == TENSORS else STATISTIC

    @property
    def tensor_folder(self) -> Path:
        """Files are named relative to the dump."""
        return self.root

    @property
    def single_points(self) -> bool:
        """Kernels are calls."""
        return False


def open_kernel_run(root: Path, folders: list[KernelFolder]) -> KernelRun:
    """Read one rank's step; statistics of npy files are computed here, a damaged file costs its own row."""
    kind, rows, notes = read_kernels(root, folders)
    if not rows:
        raise NothingToCompare("holds no kernels: nothing to compare", where=folders[0].path)
    calls, rows = _by_call(rows)
    if kind == NPY:
        _measure(root, rows)
    builder = TableBuilder()
    for at, row in zip(calls, rows, strict=True):
        shown = str(row.source) if kind == NPY else row.name.shown
        builder.add(at, _role(row), shown, row.leaf)
    task = TENSORS if kind == NPY else STATISTICS
    ops = _op_names(calls, rows)
    return KernelRun(folders[0].path, task, "L2", "mindspore", ops, builder.build(), notes, root, rows)


def _by_call(rows: list[KernelRow]) -> tuple[list[int], list[KernelRow]]:
    """The call of each row, calls in the order they began, inputs of a call before its outputs.

    A kernel that runs again begins a new call when one of its inputs or outputs comes for the second time.
    """
    seen: dict[tuple[str, ...], int] = {}
    calls: dict[tuple[object, ...], int] = {}
    of_row = []
    for row in rows:
        name = row.name
        place = (row.graph, name.op, name.task, name.io, name.slot)
        seen[place] = seen.get(place, -1) + 1
        of_row.append(calls.setdefault((row.graph, name.op, name.task, seen[place]), len(calls)))
    order = sorted(range(len(rows)), key=lambda at: (of_row[at], _role(rows[at])))
    return [of_row[at] for at in order], [rows[at] for at in order]


def _role(row: KernelRow) -> int:
    if row.name.op_type == "Parameter":
        return POINT  # its value at the time of the dump, not the result of a call
    return INPUT if row.name.io == "input" else OUTPUT


def _op_names(calls: list[int], rows: list[KernelRow]) -> list[str]:
    """One name per call. A collective's says so in the recorders' way: its output may have begun on another rank."""
    names: dict[int, str] = {}
    for at, row in zip(calls, rows, strict=True):
        kind = row.name.op_type
        plain = f"{kind}.{row.name.op}"
        is_collective = kind.lower().removeprefix("hcom").replace("_", "") in _COLLECTIVES
        names.setdefault(at, f"Distributed.{plain}.{at}.forward" if is_collective else plain)
    return [names[at] for at in range(len(names))]


def _measure(root: Path, rows: list[KernelRow]) -> None:
    for row, load in zip(rows, tensor_loaders([(root, str(row.file)) for row in rows]), strict=True):
        try:
            tensor = load()
        except DamagedTensor:
            continue  # the comparison of its pair says what is wrong with it
        found = statistics(tensor)
        leaf = row.leaf
        leaf.dtype, leaf.shown_shape = tensor.dtype, str(list(tensor.shape))
        leaf.Max, leaf.Min, leaf.Mean, leaf.Norm = found.max, found.min, found.mean, found.norm
