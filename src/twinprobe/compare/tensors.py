"""Measuring the tensors that both runs kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from twinprobe.errors import DamagedTensor, TwinProbeError
from twinprobe.runs.inside import inside
from twinprobe.runs.read_ahead import Loader, tensor_loaders
from twinprobe.runs.run import Run

if TYPE_CHECKING:
    import polars as pl

    from twinprobe.measure.pair import PairMetrics

# Pieces of this size are still in the processor's cache when they are measured: nearly twice as fast as whole files.
AT_ONCE = 2 << 20
_NUMBERS = ("cosine", "euclid", "max_abs", "max_rel", "one_thousandth", "five_thousandths", "relative_norm")


def tensor_metrics(target: Run, golden: Run, pairs: pl.DataFrame, progress: Callable[[int, int], None]) -> pl.DataFrame:
    """One row of metrics per pair; rows without two files say why in ``status`` or ``fault``."""
    return file_metrics(target.tensor_folder, golden.tensor_folder, pairs, progress)


def file_metrics(
    target: Path, golden: Path, pairs: pl.DataFrame, progress: Callable[[int, int], None], *, work: int | None = None
) -> pl.DataFrame:
    """The metrics of pairs whose files (columns t_file and g_file) lie in these two folders.

    ``work`` is the ``work_of`` the whole run, where these pairs are only some of it: a part is measured like the whole.
    """
    import polars as pl

    from twinprobe.measure.batch import measure_pairs

    rows = pairs.height
    files = (pairs["t_file"].is_not_null() & pairs["g_file"].is_not_null()).to_numpy()
    chosen = np.flatnonzero(files)
    numbers = {name: np.full(rows, np.nan) for name in _NUMBERS}
    absent = {name: np.ones(rows, dtype=bool) for name in _NUMBERS}
    status = ["unsupported"] * rows
    fault: list[str | None] = [None] * rows
    identical, nonfinite = np.zeros(rows, dtype=bool), np.zeros(rows, dtype=bool)
    jobs = _jobs(target, golden, pairs, chosen.tolist())
    results = measure_pairs(jobs, total_bytes=work_of(target, pairs) if work is None else work)
    for done, (at, result) in enumerate(zip(chosen.tolist(), results, strict=True), start=1):
        if isinstance(result, TwinProbeError):
            fault[at] = str(result)
        else:
            _store(result, at, numbers, absent)
            status[at], identical[at] = result.status, result.identical
            nonfinite[at] = bool(result.nan_only_target or result.nan_only_golden or result.inf_differs)
        if done % 16 == 0:
            progress(done, len(chosen))
    columns: dict[str, pl.Series] = {"status": pl.Series(status), "fault": pl.Series(fault, dtype=pl.String)}
    for name in _NUMBERS:
        column = pl.Series(numbers[name])
        columns[name] = column.set(pl.Series(absent[name]), None)
    columns["identical"] = pl.Series(identical)
    columns["nonfinite"] = pl.Series(nonfinite)
    return pl.DataFrame(columns)


def _store(
    result: PairMetrics, at: int, numbers: dict[str, NDArray[np.float64]], absent: dict[str, NDArray[np.bool_]]
) -> None:
    for name in _NUMBERS:
        value = getattr(result, name)
        if value is not None:
            numbers[name][at] = value
            absent[name][at] = False


def _jobs(target: Path, golden: Path, pairs: pl.DataFrame, rows: list[int]) -> Iterator[tuple[Loader, Loader]]:
    t_files, g_files = pairs["t_file"].to_list(), pairs["g_file"].to_list()
    sides = (target, t_files), (golden, g_files)
    if pairs["joined"].any() or pairs["turn"].null_count() < pairs.height:
        from twinprobe.compare.laid_out import laid_out_jobs

        return laid_out_jobs(sides, rows, pairs["turn"].to_list(), pairs["joined"].to_list())
    files = ((folder, names[at]) for at in rows for folder, names in sides)
    loaders = tensor_loaders(files, at_once=AT_ONCE)
    return zip(loaders, loaders, strict=True)


def work_of(target: Path, pairs: pl.DataFrame) -> int:
    """About how many bytes there are to read on both sides; enough to choose how to measure."""
    both = pairs["t_file"].is_not_null() & pairs["g_file"].is_not_null()
    return 2 * sum(file_sizes(target, pairs["t_file"].filter(both).to_list()))


def file_sizes(folder: Path, names: list[str]) -> list[int]:
    """The bytes of each tensor file; what cannot be read counts as nothing."""
    sizes = []
    for name in names:
        try:
            sizes.append(inside(folder, name).stat().st_size)
        except (OSError, DamagedTensor):
            sizes.append(0)
    return sizes
