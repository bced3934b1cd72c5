"""Names of kernels in a static graph's dump: what a file name says, and the list that stands in for long ones."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path

from twinprobe.errors import BadInput
from twinprobe.runs.csv_rows import csv_rows
from twinprobe.runs.member_pieces import ENTRY, Budget
from twinprobe.runs.whole_file import open_file

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
        """How a row without a file of its own is called."""
        return f"{self.op}.{self.task}.{self.io}.{self.slot}"


def parse_kernel_name(name: str) -> KernelName | None:
    """Take ``type.op.task.stream.time.output.0.format.dtype.npy`` apart; None for any other name."""
    if len(name) > _LONGEST_NAME:
        return None
    match = _NAME.fullmatch(name.removesuffix(".npy"))
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
        with TextIOWrapper(open_file(path), encoding="utf-8-sig", errors="replace", newline="") as file:
            budget = Budget(path.stat().st_size)
            for row in csv_rows(file):
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
