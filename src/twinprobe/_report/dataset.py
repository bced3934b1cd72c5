"""Results of many ranks as one parquet dataset, cut by step and rank: ``step=0/rank=3/part.parquet``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from twinprobe._lazy import polars as pl
from twinprobe._report.files import Staging, prepare_folder
from twinprobe._report.tables import fill_parquet

DATASET = "compare_dataset"
PART, DEBUG, MEETINGS = "part.parquet", "debug.parquet", "meetings.parquet"
_NAME = re.compile(rf"{DATASET}_(\d{{14}})")
_PLACE = re.compile(r"(?:mode=(?P<mode>\w+)/)?step=(?P<step>\d+)/rank=(?P<rank>\d+)")


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Which part of a dataset: the graph mode ("" where there is none), the step and the rank."""

    mode: str
    step: int
    rank: int

    @property
    def folder(self) -> str:
        """The part's folder inside the dataset."""
        return (f"mode={self.mode}/" if self.mode else "") + f"step={self.step}/rank={self.rank}"


def dataset_folder(output: Path, timestamp: str) -> Path:
    """The folder of a command's dataset."""
    return output / f"{DATASET}_{timestamp}"


def write_part(
    dataset: Path, place: Place, table: pl.DataFrame, meetings: Sequence[tuple[int, str]], *, debug: bool = False
) -> list[Path]:
    """Write one rank's table, and the exchanges it took part in as (order, key); whole or not at all."""
    folder = prepare_folder(dataset / place.folder)
    files = [folder / (DEBUG if debug else PART)]
    with Staging() as staging:
        fill_parquet(table, staging.file(files[0]))
        if not debug:
            files.append(folder / MEETINGS)
            frame = pl.DataFrame(meetings, schema={"order": pl.Int32, "key": pl.String}, orient="row")
            fill_parquet(frame, staging.file(files[1]))
    return files


def places(dataset: Path, name: str = PART) -> list[Place]:
    """The parts that a dataset has, in order."""
    parts = []
    for pattern in (f"step=*/rank=*/{name}", f"mode=*/step=*/rank=*/{name}"):
        for path in dataset.glob(pattern):
            match = _PLACE.fullmatch(path.parent.relative_to(dataset).as_posix())
            if match and path.is_file():
                parts.append(Place(match["mode"] or "", int(match["step"]), int(match["rank"])))
    return sorted(parts)


def find_dataset(folder: Path) -> Path | None:
    """The dataset that a path names: itself, or the newest in this folder; None where there is none."""
    if any(folder.glob("step=*/rank=*/")) or any(folder.glob("mode=*/step=*/")):
        return folder
    named = [path for path in folder.glob(f"{DATASET}_*/") if _NAME.fullmatch(path.name)]
    return max(named, key=lambda path: path.name, default=None)
