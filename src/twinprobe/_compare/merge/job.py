"""Many ranks' results in one workbook: the work of ``merge_result``."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twinprobe._compare.merge.config import RankFiles, find_results, read_merge_config
from twinprobe._compare.merge.read import GroupCheck, RankRows, ReadJob, check_groups, kind_of, natural_order, read_rank
from twinprobe._compare.one import silent
from twinprobe._compare.request import Command, session_of
from twinprobe._lazy import polars as pl
from twinprobe._report.files import prepare_folder, replacing, timestamp_now
from twinprobe._report.xlsx import ERROR, PLAIN, Sheet, fill_workbook, inline_rows_xml
from twinprobe._runs.remote.contents import local_copies
from twinprobe._scale.engine import INLINE, EngineOptions
from twinprobe._scale.spread import spread
from twinprobe.errors import BadInput, NothingToCompare, TwinProbeError

# The merged workbook: a sheet per metric, written a block of rows at a time.

GROUP_SHEET = "Group check"
MOST_ROWS = 1_048_575
_CELLS_AT_ONCE = 1 << 18
_CELL_BYTES = 150  # of a cell with its text inside, at most as a rule


@dataclass
class RankColumn:
    """One rank's cells: its rows' numbers in the merged table, ascending, and the file of its texts, one per metric."""

    rank: int
    rows: NDArray[np.uint32]
    cells: Path

    def block(self, metric: str, start: int, stop: int) -> pl.Series:
        """The texts of these rows, null where this rank has none."""
        low, high = np.searchsorted(self.rows, (start, stop))
        place = pl.Series([None] * (stop - start), dtype=pl.UInt32)
        place = place.scatter(self.rows[low:high] - start, np.arange(high - low, dtype=np.uint32))
        with self.cells.open("rb") as file:  # older versions of polars follow links to names that they cannot take
            texts = pl.scan_ipc(file).select(metric).slice(low, high - low).collect()
        return texts[metric].gather(place)


def write_merged(
    path: Path, names: pl.Series, metrics: list[str], columns: list[RankColumn], checks: list[GroupCheck]
) -> list[str]:
    """Write the workbook and return the names of its sheets."""
    marks = _marks(names, columns, checks)
    titles = ["NPU Name", *(f"rank{column.rank}" for column in columns)]
    longest = int(str(names.str.len_chars().max() or 0))
    widths = [min(max(longest + 2, 20), 80)] + [24] * len(columns)
    sheets = [
        Sheet(metric, titles, widths, len(names), _metric_rows(metric, names, columns, marks), _CELL_BYTES)
        for metric in metrics
    ]
    report = _check_table(checks)
    if report.height:
        style = report["Result"].replace_strict({"error": ERROR}, default=PLAIN, return_dtype=pl.UInt8)
        rows = [inline_rows_xml(report, 2, dict.fromkeys(report.columns, style))]
        widths = [
            min(max(int(str(report[title].str.len_chars().max())), len(title)) + 4, 80) for title in report.columns
        ]
        sheets.append(Sheet(GROUP_SHEET, report.columns, widths, report.height, rows, _CELL_BYTES))
    with replacing(path) as temporary:
        fill_workbook(temporary, sheets)
    return [sheet.name for sheet in sheets]


def _metric_rows(
    metric: str, names: pl.Series, columns: list[RankColumn], marks: dict[int, NDArray[np.int64]]
) -> Iterator[str]:
    """The rows of a metric's sheet, a block at a time: only one is in memory."""
    step = max(_CELLS_AT_ONCE // (len(columns) + 1), 1)
    for start in range(0, len(names), step):
        stop = min(start + step, len(names))
        block = {"name": names.slice(start, stop - start)}
        styles = {}
        for column in columns:
            title = f"rank{column.rank}"
            block[title] = column.block(metric, start, stop)
            marked = marks.get(column.rank)
            if marked is not None:
                here = marked[(marked >= start) & (marked < stop)] - start
                styles[title] = pl.zeros(stop - start, pl.UInt8, eager=True).scatter(here, ERROR)
        yield inline_rows_xml(pl.DataFrame(block), start + 2, styles)


def _marks(names: pl.Series, columns: list[RankColumn], checks: list[GroupCheck]) -> dict[int, NDArray[np.int64]]:
    """Per rank the rows of the merged table whose cell disagrees with the rank's group."""
    places = [place for check in checks for place in check.places]
    if not places:
        return {}
    marked = pl.DataFrame(places, schema={"rank": pl.Int32, "name": pl.String}, orient="row")
    rows = pl.DataFrame({"name": names, "at": np.arange(len(names))})
    by_rank = marked.join(rows, on="name").group_by("rank").agg("at")
    known = {column.rank for column in columns}
    return {rank: np.sort(np.asarray(marked_rows)) for rank, marked_rows in by_rank.iter_rows() if rank in known}


def _check_table(checks: list[GroupCheck]) -> pl.DataFrame:
    """The sheet that says which groups agree; those that do not come first."""
    rows = [
        (check.name, check.group, "pass" if check.agrees else "error", _ranks(check.disagree), _ranks(check.missing),
         check.detail or f"{len(check.ranks)} ranks have the same output")
        for check in sorted(checks, key=lambda check: check.agrees)
    ]  # fmt: skip
    titles = ["NPU Name", "Group", "Result", "Ranks That Disagree", "Ranks Without It", "Detail"]
    return pl.DataFrame(rows[:MOST_ROWS], schema=dict.fromkeys(titles, pl.String), orient="row")


def _ranks(ranks: tuple[int, ...]) -> str:
    return ", ".join(f"rank{rank}" for rank in ranks)


# Below this many bytes of input, starting worker processes costs more than they save.
_SMALL_WORK = 64 << 20
_MOST_NOTES = 10
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


def merge_results(
    input_dir: Path,
    output_dir: Path,
    config: Path,
    *,
    timestamp: str = "",
    engine: EngineOptions | None = None,
    resume: bool = False,
    progress: Callable[[int, int], None] = silent,
) -> MergeOutcome:
    """Gather the wanted calls of all ranks in ``multi_ranks_compare_merge_<timestamp>.xlsx``, a sheet per metric."""
    wanted = read_merge_config(config)
    files, notes, failures = find_results(input_dir)
    kinds: dict[int, str] = {}
    for result in list(files):
        try:
            kinds[result.rank] = kind_of(result.paths[0])
        except TwinProbeError as error:
            files.remove(result)
            if len(files) < _FEWEST:
                raise
            failures.append(str(error))
    notes = [*wanted.notes, *notes, *_mixed(files, kinds)]
    metrics = wanted.choose(kinds.values())
    options = engine or EngineOptions()
    paths = [path for result in files for path in result.paths]
    text_bytes = sum(path.stat().st_size * (8 if path.suffix == ".xlsx" else 1) for path in paths)
    is_small = options == EngineOptions() and text_bytes < _SMALL_WORK
    identity = repr((str(input_dir), wanted.api, metrics))
    command = Command("merge_result", identity, output_dir, timestamp or timestamp_now(), resume)
    prepare_folder(output_dir)
    with (
        session_of(command, keeps=resume or not is_small) as (stamp, session, resumed),
        tempfile.TemporaryDirectory(prefix="twinprobe-merge-") as spill,
    ):
        path = output_dir / f"multi_ranks_compare_merge_{stamp}.xlsx"
        to = session or Path(spill)
        jobs = [ReadJob(result, wanted.api, wanted.pattern(), tuple(metrics), to) for result in files]
        read = _read_all(jobs, EngineOptions(INLINE) if is_small else options, progress, failures)
        ranks = [result.rank for result in read]
        with _at_hand(read) as at_hand:
            matched = frozenset[str]().union(*(rows.matched for rows in at_hand))
            lacking = [entry for entry in wanted.api if entry not in matched]
            notes += [*resumed, *(f'{config}: "api" entry {entry!r} is in no result' for entry in lacking)]
            names, columns = _line_up(at_hand)
            if not len(names):
                raise NothingToCompare('no result has a row of the calls that "api" names', where=config)
            if len(names) > MOST_ROWS:
                raise BadInput(f'"api" names {len(names)} rows, more than a sheet holds', where=config)
            checks = _check_all(at_hand, ranks)
            sheets = write_merged(path, names, metrics, columns, checks)
        if session is not None and not failures:
            session.end(keep=False)
    notes += _disagreements(checks)
    return MergeOutcome(path, ranks, sheets, len(names), notes, checks, failures)


def _read_all(
    jobs: list[ReadJob], engine: EngineOptions, progress: Callable[[int, int], None], failures: list[str]
) -> list[RankRows]:
    """The wanted rows of every rank; one that cannot be read is named in ``failures``, while enough are left."""
    rows_of: dict[int, RankRows] = {}
    lost = 0
    for index, result in spread(read_rank, jobs, options=engine, name=lambda job: f"rank{job.files.rank}"):
        if isinstance(result, TwinProbeError):
            lost += 1
            if len(jobs) - lost < _FEWEST:
                raise result
            failures.append(str(result))
        else:
            rows_of[index] = result
        progress(len(rows_of) + lost, len(jobs))
    return [rows_of[index] for index in sorted(rows_of)]


@contextmanager
def _at_hand(ranks: list[RankRows]) -> Iterator[list[RankRows]]:
    """The same rows where polars can open them."""
    root = ranks[0].folder.parent
    with local_copies(root, [file for rows in ranks for file in (rows.cells_file, rows.check_file)]) as copies:
        yield [replace(rows, folder=copy.parent) for rows, copy in zip(ranks, copies[::2], strict=True)]


def _line_up(ranks: list[RankRows]) -> tuple[pl.Series, list[RankColumn]]:
    """All names of all ranks in natural order, and each rank's rows in terms of them."""
    names = pl.Series("name", [], dtype=pl.String)
    for rank_rows in ranks:
        names = pl.concat([names, pl.read_ipc(rank_rows.cells_file, columns=["name"])["name"]]).unique()
    names = names[natural_order(names.to_list())]
    places = pl.Series(np.arange(len(names), dtype=np.uint32))
    columns = []
    for rank_rows in ranks:
        own = pl.read_ipc(rank_rows.cells_file, columns=["name"])["name"]
        rows = own.replace_strict(names, places, return_dtype=pl.UInt32)
        columns.append(RankColumn(rank_rows.rank, rows.to_numpy(), rank_rows.cells_file))
    return names, columns


def _check_all(rank_rows: list[RankRows], ranks: list[int]) -> list[GroupCheck]:
    """Check the groups of every rank, one kind of collective in memory at a time."""
    files = [rows.check_file for rows in rank_rows if rows.checks]
    if not files:
        return []
    checks: list[GroupCheck] = []
    kinds = [pl.read_ipc(file, columns=["api"])["api"].unique(maintain_order=True) for file in files]
    for api in pl.concat(kinds).unique(maintain_order=True):
        outputs = []
        for path in files:
            with path.open("rb") as file:
                outputs.append(pl.scan_ipc(file).filter(pl.col("api") == api).collect())
        checks += check_groups(pl.concat(outputs), ranks)
    return checks


def _mixed(files: list[RankFiles], kinds: dict[int, str]) -> list[str]:
    if len(set(kinds.values())) < 2:
        return []
    names: dict[str, list[str]] = defaultdict(list)
    for result in files:
        names[kinds[result.rank]] += [path.name for path in result.paths]
    listed = "; ".join(f"{kind}: {', '.join(names[kind])}" for kind in sorted(names))
    return [f"results of two kinds lie in one folder, so sheets have blank columns; {listed}"]


def _disagreements(checks: list[GroupCheck]) -> list[str]:
    odd = [check for check in checks if not check.agrees]
    notes = [
        f"{check.name}: within the group {check.group} the output must be the same, but it differs on "
        + ", ".join(f"rank {rank}" for rank in check.disagree)
        for check in odd[:_MOST_NOTES]
    ]
    rest = len(odd) - len(notes)
    return [*notes, f"{rest} more outputs differ within their groups: see the last sheet"] if rest else notes
