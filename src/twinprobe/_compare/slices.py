"""A rank with many tensors, cut into slices of about equal bytes that workers measure on their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from twinprobe._compare.one import Measurer, file_metrics, file_sizes, silent, tensor_metrics, work_of
from twinprobe._lazy import polars as pl
from twinprobe._report.files import replacing
from twinprobe._runs.remote.contents import local_copy
from twinprobe._runs.run import Run

_PAIRS = "pairs.arrow"


@dataclass(frozen=True)
class Slice:
    """Some rows of a rank's pair table: those whose tensors one worker measures."""

    folder: Path
    number: int
    target: Path
    golden: Path
    start: int
    stop: int
    work: int

    @property
    def file(self) -> Path:
        """Where the metrics of these rows go. A resumed command may cut otherwise, so the name tells the rows."""
        return self.folder / f"slice{self.start}-{self.stop}.arrow"


@dataclass(frozen=True)
class Cut:
    """A rank that is too large for one worker: its slices. When they are measured, the rank is asked for again."""

    slices: tuple[Slice, ...]


class TooLarge(Exception):  # not an error of the user's: it carries the slices out of the comparison
    """Raised instead of measuring."""

    def __init__(self, cut: Cut) -> None:
        super().__init__("the rank is cut into slices")
        self.cut = cut


def cutting(folder: Callable[[], Path], slice_bytes: int) -> Measurer:
    """Measure small ranks at once; raise TooLarge with the slices of one that holds more than two of them."""

    def measure(target: Run, golden: Run, pairs: pl.DataFrame, progress: Callable[[int, int], None]) -> pl.DataFrame:
        sizes = _sizes(target, golden, pairs)
        if sizes.sum() <= 2 * slice_bytes:
            return tensor_metrics(target, golden, pairs, progress)
        place = folder()
        with replacing(place / _PAIRS) as temporary, temporary.open("wb") as rows:
            pairs.select("t_file", "g_file", "turn", "joined").write_ipc(rows)
        work = work_of(target.tensor_folder, pairs)
        slices = (
            Slice(place, number, target.tensor_folder, golden.tensor_folder, start, stop, work)
            for number, (start, stop) in enumerate(equal_parts(sizes, slice_bytes))
        )
        raise TooLarge(Cut(tuple(slices)))

    return measure


def equal_parts(sizes: np.ndarray, part: int) -> list[tuple[int, int]]:
    """Cut rows into runs of about ``part`` bytes each; no run is empty, and all rows are in one."""
    ends = np.cumsum(sizes, dtype=np.float64)
    count = max(1, int(np.ceil(ends[-1] / part)))
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, count) / count, side="left") + 1
    borders = [0, *dict.fromkeys(int(cut) for cut in cuts if 0 < cut < len(sizes)), len(sizes)]
    return list(pairwise(borders))


def measure_slice(piece: Slice) -> int:
    """Measure the tensors of one slice and leave their metrics in its file (in a worker process)."""
    if piece.file.is_file():
        return piece.stop - piece.start  # an interrupted command has left it
    rows = _read(piece.folder / _PAIRS).slice(piece.start, piece.stop - piece.start)
    metrics = file_metrics(piece.target, piece.golden, rows, silent, work=piece.work)
    with replacing(piece.file) as temporary, temporary.open("wb") as file:
        metrics.write_ipc(file)
    return metrics.height


def gathering(cut: Cut, lost: dict[int, str]) -> Measurer:
    """Take the metrics from the slices' files; the rows of a slice that could not be measured say why."""

    def measure(_target: Run, _golden: Run, pairs: pl.DataFrame, _progress: Callable[[int, int], None]) -> pl.DataFrame:
        known = [None if piece.number in lost else _read(piece.file) for piece in cut.slices]
        schema = next((frame.schema for frame in known if frame is not None), None)
        if schema is None:
            schema = file_metrics(Path(), Path(), pairs.clear(), silent).schema
        return pl.concat(
            _unmeasured(pairs.slice(piece.start, piece.stop - piece.start), schema, lost[piece.number])
            if frame is None
            else frame
            for piece, frame in zip(cut.slices, known, strict=True)
        )

    return measure


def _read(file: Path) -> pl.DataFrame:
    with local_copy(file) as copy:
        return pl.read_ipc(copy)


def _unmeasured(rows: pl.DataFrame, schema: pl.Schema, reason: str) -> pl.DataFrame:
    has_files = rows["t_file"].is_not_null() & rows["g_file"].is_not_null()
    columns = {
        "status": pl.lit("unsupported"),
        "fault": pl.when(has_files).then(pl.lit(reason)).otherwise(None),
        "identical": pl.lit(value=False),
        "nonfinite": pl.lit(value=False),
    }
    chosen = [columns.get(name, pl.lit(None)).cast(kind).alias(name) for name, kind in schema.items()]
    return rows.with_columns(chosen).select(schema.names())


def _sizes(target: Run, golden: Run, pairs: pl.DataFrame) -> np.ndarray:
    both = (pairs["t_file"].is_not_null() & pairs["g_file"].is_not_null()).to_numpy()
    sizes = np.zeros(pairs.height, dtype=np.int64)
    chosen = pairs.filter(both)
    for run, column in ((target, "t_file"), (golden, "g_file")):
        sizes[both] += np.asarray(file_sizes(run.tensor_folder, chosen[column].to_list()), dtype=np.int64)
    return sizes
