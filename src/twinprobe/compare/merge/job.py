"""Many ranks' results in one workbook: the work of ``merge_result``."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from twinprobe.compare.merge.config import MergeConfig, read_merge_config
from twinprobe.compare.merge.files import RankFiles, find_results
from twinprobe.compare.merge.groups import GroupCheck, check_groups
from twinprobe.compare.merge.read import RankRows, ReadJob, kind_of, natural_order, read_rank
from twinprobe.compare.merge.write import MOST_ROWS, RankColumn, write_merged
from twinprobe.compare.resume import Command, session_of
from twinprobe.errors import BadInput, NothingToCompare, TwinProbeError
from twinprobe.report.atomic import prepare_folder
from twinprobe.report.names import timestamp_now
from twinprobe.runs.remote.local_copy import local_copies
from twinprobe.scale.engine import INLINE, EngineOptions, spread

if TYPE_CHECKING:
    import polars as pl

# Below this many bytes of input, starting worker processes costs more than they save.
_SMALL_WORK = 64 << 20
_MOST_TOLD = 10
_FEWEST = 2  # ranks that a merged table needs


@dataclass
class MergeOutcome:
    """The workbook, what is in it, and what its reader should know."""

    path: Path
    ranks: list[int]
    sheets: list[str]
    rows: int
    notes: list[str] = field(default_factory=list)
    checks: list[GroupCheck] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """Ranks that were asked for and are not in it."""

    @property
    def disagreements(self) -> list[GroupCheck]:
        """The outputs that differ between ranks of one group although they must not."""
        return [check for check in self.checks if not check.agrees]


def _silent(_done: int, _total: int) -> None:
    """No progress is shown."""


def merge_results(
    input_dir: Path,
    output_dir: Path,
    config: Path,
    *,
    timestamp: str = "",
    workers: int | None = None,
    engine: EngineOptions | None = None,
    resume: bool = False,
    progress: Callable[[int, int], None] = _silent,
) -> MergeOutcome:
    """Gather the wanted calls of all ranks in ``multi_ranks_compare_merge_<timestamp>.xlsx``, a sheet per metric."""
    wanted = read_merge_config(config)
    files, notes, failures = find_results(input_dir)
    kinds: dict[int, str] = {}
    for one in list(files):
        try:
            kinds[one.rank] = kind_of(one.paths[0])
        except TwinProbeError as error:
            files.remove(one)
            if len(files) < _FEWEST:
                raise
            failures.append(str(error))
    notes = [*wanted.notes, *notes, *_mixed(files, kinds)]
    metrics = wanted.choose(kinds.values())
    options = engine or EngineOptions(workers=workers)
    is_small = options == EngineOptions() and _size(files) < _SMALL_WORK
    identity = repr((str(input_dir), wanted.api, metrics))
    command = Command("merge_result", identity, output_dir, timestamp or timestamp_now(), resume)
    prepare_folder(output_dir)
    with (
        session_of(command, keeps=resume or not is_small) as (stamp, session, told),
        tempfile.TemporaryDirectory(prefix="twinprobe-merge-") as spill,
    ):
        path = output_dir / f"multi_ranks_compare_merge_{stamp}.xlsx"
        to = session or Path(spill)
        jobs = [ReadJob(one, wanted.api, wanted.pattern(), tuple(metrics), to) for one in files]
        read = _read_all(jobs, EngineOptions(INLINE) if is_small else options, progress, failures)
        ranks = [one.rank for one in read]
        with _at_hand(read) as found:
            notes += told + _unmatched(wanted, found)
            names, columns = _line_up(found)
            _check_rows(len(names), config)
            checks = _check_all(found, ranks)
            sheets = write_merged(path, names, metrics, columns, checks)
        if session is not None and not failures:
            session.end(keep=False)
    notes += _told(checks)
    return MergeOutcome(path, ranks, sheets, len(names), notes, checks, failures)


def _read_all(
    jobs: list[ReadJob], engine: EngineOptions, progress: Callable[[int, int], None], failures: list[str]
) -> list[RankRows]:
    """The wanted rows of every rank; one that cannot be read is named in ``failures``, while enough are left."""
    found: dict[int, RankRows] = {}
    lost = 0
    for at, result in spread(read_rank, jobs, options=engine, name=lambda job: f"rank{job.files.rank}"):
        if isinstance(result, TwinProbeError):
            lost += 1
            if len(jobs) - lost < _FEWEST:
                raise result
            failures.append(str(result))
        else:
            found[at] = result
        progress(len(found) + lost, len(jobs))
    return [found[at] for at in sorted(found)]


def _check_rows(count: int, config: Path) -> None:
    if not count:
        raise NothingToCompare('no result has a row of the calls that "api" names', where=config)
    if count > MOST_ROWS:
        raise BadInput(f'"api" names {count} rows, more than a sheet holds', where=config)


def _size(files: list[RankFiles]) -> int:
    """About how many bytes of text there are."""
    paths = [path for one in files for path in one.paths]
    return sum(path.stat().st_size * (8 if path.suffix == ".xlsx" else 1) for path in paths)


@contextmanager
def _at_hand(found: list[RankRows]) -> Iterator[list[RankRows]]:
    """The same rows where polars can open them."""
    root = found[0].folder.parent
    with local_copies(root, [file for one in found for file in (one.cells_file, one.check_file)]) as copies:
        yield [replace(one, folder=copy.parent) for one, copy in zip(found, copies[::2], strict=True)]


def _line_up(found: list[RankRows]) -> tuple[pl.Series, list[RankColumn]]:
    """All names of all ranks in natural order, and each rank's rows in terms of them."""
    import polars as pl

    names = pl.Series("name", [], dtype=pl.String)
    for one in found:
        names = pl.concat([names, pl.read_ipc(one.cells_file, columns=["name"])["name"]]).unique()
    names = names[natural_order(names.to_list())]
    at = pl.Series(np.arange(len(names), dtype=np.uint32))
    columns = []
    for one in found:
        own = pl.read_ipc(one.cells_file, columns=["name"])["name"]
        rows = own.replace_strict(names, at, return_dtype=pl.UInt32)
        columns.append(RankColumn(one.rank, rows.to_numpy(), one.cells_file))
    return names, columns


def _check_all(found: list[RankRows], ranks: list[int]) -> list[GroupCheck]:
    """Check the groups of every rank, one kind of collective in memory at a time."""
    import polars as pl

    files = [rows.check_file for rows in found if rows.checks]
    if not files:
        return []
    checks: list[GroupCheck] = []
    kinds = [pl.read_ipc(file, columns=["api"])["api"].unique(maintain_order=True) for file in files]
    for api in pl.concat(kinds).unique(maintain_order=True):
        outputs = pl.concat([pl.scan_ipc(file).filter(pl.col("api") == api).collect() for file in files])
        checks += check_groups(outputs, ranks)
    return checks


def _mixed(files: list[RankFiles], kinds: dict[int, str]) -> list[str]:
    if len(set(kinds.values())) < 2:
        return []
    told = []
    for kind in sorted(set(kinds.values())):
        names = [path.name for one in files if kinds[one.rank] == kind for path in one.paths]
        told.append(f"{kind}: {', '.join(names)}")
    return [f"results of two kinds lie in one folder, so sheets have blank columns; {'; '.join(told)}"]


def _unmatched(wanted: MergeConfig, found: list[RankRows]) -> list[str]:
    matched = frozenset[str]().union(*(rows.matched for rows in found))
    return [f'{wanted.path}: "api" entry {entry!r} is in no result' for entry in wanted.api if entry not in matched]


def _told(checks: list[GroupCheck]) -> list[str]:
    odd = [check for check in checks if not check.agrees]
    notes = [
        f"{check.name}: within the group {check.group} the output must be the same, but it differs on "
        + ", ".join(f"rank {rank}" for rank in check.disagree)
        for check in odd[:_MOST_TOLD]
    ]
    rest = len(odd) - len(notes)
    return [*notes, f"{rest} more outputs differ within their groups: see the last sheet"] if rest else notes
