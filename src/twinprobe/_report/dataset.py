"""Results of many ranks as one parquet dataset, cut by step and rank: ``step=0/rank=3/part.parquet``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from twinprobe._report.files import Staging, prepare_folder
from twinprobe._report.tables import fill_parquet
from twinprobe._runs.remote.contents import has_utf8_name, local_copy
from twinprobe._runs.whole_files import remote
from twinprobe.errors import BadInput

if TYPE_CHECKING:
    import polars as pl

# A dataset that polars cannot open as one lazy table: parts are fetched one at a time, as far as a filter leaves
# them.
#
# It lies behind a URL, or in a folder whose name is not UTF-8.

_KEYS = ("mode", "step", "rank")


def scan_elsewhere(dataset: Path, parts: Sequence[Place], name: str) -> pl.LazyFrame:
    """All parts with the columns that their folders tell; the first part says which columns there are."""
    import polars as pl
    from polars.io.plugins import register_io_source

    with local_copy(dataset / parts[0].folder / name, only_ends=True) as copy:
        schema = pl.Schema(pl.scan_parquet(copy, hive_partitioning=False).collect_schema())
    for key, value in _told(parts[0]).items():
        schema[key] = pl.String() if isinstance(value, str) else pl.Int64()

    def read(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, _batch: int | None
    ) -> Iterator[pl.DataFrame]:
        left = n_rows
        for part in parts:
            if left == 0:
                return
            if predicate is not None and not _may_hold(part, predicate):
                continue
            with local_copy(dataset / part.folder / name) as copy:
                frame = _part(copy, part, schema).select(with_columns or schema.names())
                rows = frame.filter(predicate) if predicate is not None else frame
                found = (rows if left is None else rows.head(left)).collect()
            left = None if left is None else left - found.height
            yield found

    return register_io_source(read, schema=schema)


def _part(file: Path, part: Place, schema: pl.Schema) -> pl.LazyFrame:
    """One part with all columns of the dataset; what it lacks is empty."""
    import polars as pl

    scan = pl.scan_parquet(file, hive_partitioning=False)
    have = set(scan.collect_schema().names())
    told = _told(part)
    return scan.select(
        pl.col(column) if column in have else pl.lit(told.get(column)).cast(kind).alias(column)
        for column, kind in schema.items()
    )


def _told(part: Place) -> dict[str, str | int]:
    known: dict[str, str | int] = {"mode": part.mode, "step": part.step, "rank": part.rank}
    return {key: known[key] for key in _KEYS if key != "mode" or part.mode}


def _may_hold(part: Place, predicate: pl.Expr) -> bool:
    """Whether a part can have such rows, as far as its folder tells."""
    import polars as pl

    told = _told(part)
    row = pl.DataFrame({key: [value] for key, value in told.items()})
    tests = [test for test in _conditions(predicate) if set(test.meta.root_names()) <= told.keys()]
    return all(row.filter(test).height for test in tests)


def _conditions(predicate: pl.Expr) -> list[pl.Expr]:
    """The conditions that must all hold."""
    inputs = predicate.meta.pop()
    if len(inputs) == 2:
        for one, other in (inputs, inputs[::-1]):
            if (one & other).meta.eq(predicate):
                return [*_conditions(one), *_conditions(other)]
    return [predicate]


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
    import polars as pl

    folder = prepare_folder(dataset / place.folder)
    files = [folder / (DEBUG if debug else PART)]
    with Staging() as staging:
        fill_parquet(table, staging.file(files[0]))
        if not debug:
            files.append(folder / MEETINGS)
            frame = pl.DataFrame(meetings, schema={"order": pl.Int32, "key": pl.String}, orient="row")
            fill_parquet(frame, staging.file(files[1]))
    return files


def scan_dataset(dataset: Path, name: str = PART) -> pl.LazyFrame:
    """All parts as one lazy table with the columns step and rank; nothing is read before it is asked for."""
    import polars as pl

    parts = places(dataset, name)
    if not parts:
        raise BadInput("holds no part of a dataset", where=dataset)
    if remote(dataset) is not None or not has_utf8_name(dataset):
        return scan_elsewhere(dataset, parts, name)
    files = [dataset / part.folder / name for part in parts]
    return pl.scan_parquet(files, hive_partitioning=True, missing_columns="insert", extra_columns="ignore")


def places(dataset: Path, name: str = PART) -> list[Place]:
    """The parts that a dataset has, in order."""
    found = []
    for pattern in (f"step=*/rank=*/{name}", f"mode=*/step=*/rank=*/{name}"):
        for path in dataset.glob(pattern):
            match = _PLACE.fullmatch(path.parent.relative_to(dataset).as_posix())
            if match and path.is_file():
                found.append(Place(match["mode"] or "", int(match["step"]), int(match["rank"])))
    return sorted(found)


def find_dataset(folder: Path) -> Path | None:
    """The dataset that a path names: itself, or the newest in this folder; None where there is none."""
    if any(folder.glob("step=*/rank=*/")) or any(folder.glob("mode=*/step=*/")):
        return folder
    named = [path for path in folder.glob(f"{DATASET}_*/") if _NAME.fullmatch(path.name)]
    return max(named, key=lambda path: path.name, default=None)
