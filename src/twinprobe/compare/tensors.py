"""Measuring the tensors that both runs kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from twinprobe.errors import DamagedTensor, TwinProbeError
from twinprobe.runs.host_tensor import HostTensor
from twinprobe.runs.inside import inside
from twinprobe.runs.run import Run
from twinprobe.runs.tensor_files import open_tensor

if TYPE_CHECKING:
    import polars as pl

    from twinprobe.measure.pair import PairMetrics

Loader = Callable[[], HostTensor]
_NUMBERS = ("cosine", "euclid", "max_abs", "max_rel", "one_thousandth", "five_thousandths", "relative_norm")


def tensor_metrics(target: Run, golden: Run, pairs: pl.DataFrame, progress: Callable[[int, int], None]) -> pl.DataFrame:
    """One row of metrics per pair; rows without two files say why in ``status`` or ``fault``."""
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
    results = measure_pairs(jobs, total_bytes=2 * _total_bytes(target, pairs["t_file"].drop_nulls().to_list()))
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


def _jobs(target: Run, golden: Run, pairs: pl.DataFrame, rows: list[int]) -> Iterator[tuple[Loader, Loader]]:
    t_files, g_files = pairs["t_file"].to_list(), pairs["g_file"].to_list()
    for at in rows:
        yield _loader(target, t_files[at]), _loader(golden, g_files[at])


def _loader(run: Run, name: str) -> Loader:
    return lambda: open_tensor(inside(run.tensor_folder, name))


def _total_bytes(run: Run, names: list[str]) -> int:
    """About how much there is to read on one side; enough to choose how to measure."""
    total = 0
    for name in names:
        try:
            total += inside(run.tensor_folder, name).stat().st_size
        except (OSError, DamagedTensor):
            continue
    return total
