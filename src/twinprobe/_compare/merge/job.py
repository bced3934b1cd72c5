"""Many ranks' results in one workbook: the work of ``merge_result``."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from twinprobe._compare.merge.config import MergeConfig, RankFiles, find_results, read_merge_config
from twinprobe._compare.merge.read import (
    GroupCheck,
    RankRows,
    ReadJob,
    check_groups,
    kind_of,
    natural_order,
    read_rank,
)
from twinprobe._compare.request import Command, session_of
from twinprobe._report.columns import FORMULA_START, HARMLESS, NUMBER_TEXT
from twinprobe._report.files import prepare_folder, replacing, timestamp_now
from twinprobe._report.xlsx import (
    AS_TEXT,
    ERROR,
    PLAIN,
    TEXTS_END,
    column_letters,
    cut_text,
    fixed_parts,
    sheet_end,
    sheet_start,
    texts_start,
)
from twinprobe._runs.remote.contents import local_copies
from twinprobe._scale.engine import INLINE, EngineOptions, spread
from twinprobe.errors import BadInput, NothingToCompare, TwinProbeError

if TYPE_CHECKING:
    import polars as pl

# The merged workbook: a sheet per metric, written a block of rows at a time.

GROUP_SHEET = "Group check"
MOST_ROWS = 1_048_575
_CELLS_AT_ONCE = 1 << 18
_LONGEST_TEXT = 32_767
_BIG_MEMBER = 10_000_000  # cells; a sheet with more may need the 64-bit form of a zip member
# What XML cannot hold and no result of ours contains.
_FORBIDDEN = "[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]"


@dataclass
class RankColumn:
    """One rank's cells: its rows' numbers in the merged table, ascending, and the file of its texts, one per metric."""

    rank: int
    rows: NDArray[np.uint32]
    cells: Path

    def block(self, metric: str, start: int, stop: int) -> pl.Series:
        """The texts of these rows, null where this rank has none."""
        import polars as pl

        low, high = np.searchsorted(self.rows, (start, stop))
        place = pl.Series([None] * (stop - start), dtype=pl.UInt32)
        place = place.scatter(self.rows[low:high] - start, np.arange(high - low, dtype=np.uint32))
        texts = pl.scan_ipc(self.cells).select(metric).slice(low, high - low).collect()
        return texts[metric].gather(place)


def write_merged(
    path: Path, names: pl.Series, metrics: list[str], columns: list[RankColumn], checks: list[GroupCheck]
) -> list[str]:
    """Write the workbook and return the names of its sheets."""
    import polars as pl

    marks = _marks(names, columns, checks)
    tables = [(metric, ["NPU Name", *(f"rank{column.rank}" for column in columns)], len(names)) for metric in metrics]
    report = _check_table(checks)
    if report.height:
        tables.append((GROUP_SHEET, report.columns, report.height))
    sheets = [name for name, _, _ in tables]
    areas = [f"$A$1:${column_letters(len(titles) - 1)}${height + 1}" for _, titles, height in tables]
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as zipped:
        for name, part in fixed_parts(sheets, areas).items():
            zipped.writestr(zipfile.ZipInfo(name), part, zipfile.ZIP_DEFLATED)
        zipped.writestr(zipfile.ZipInfo("xl/sharedStrings.xml"), texts_start(0) + TEXTS_END)
        for number, ((name, titles, height), area) in enumerate(zip(tables, areas, strict=True), start=1):
            is_big = height * len(titles) > _BIG_MEMBER
            with zipped.open(f"xl/worksheets/sheet{number}.xml", "w", force_zip64=is_big) as member:
                widths = _check_widths(report) if name == GROUP_SHEET else _widths(names, columns)
                member.write(sheet_start(area.replace("$", ""), widths, titles).encode())
                if name == GROUP_SHEET:
                    style = report["Result"].replace_strict({"error": ERROR}, default=PLAIN, return_dtype=pl.UInt8)
                    _write_rows(member, report, 2, dict.fromkeys(report.columns, style))
                else:
                    _write_metric(member, name, names, columns, marks)
                member.write(sheet_end(area.replace("$", "")).encode())
    return sheets


def _write_metric(
    member: IO[bytes], metric: str, names: pl.Series, columns: list[RankColumn], marks: dict[int, NDArray[np.int64]]
) -> None:
    import polars as pl

    for start, stop in _blocks(len(names), len(columns) + 1):
        block = {"name": names.slice(start, stop - start)}
        styles = {}
        for column in columns:
            title = f"rank{column.rank}"
            block[title] = column.block(metric, start, stop)
            marked = marks.get(column.rank)
            if marked is not None:
                here = marked[(marked >= start) & (marked < stop)] - start
                styles[title] = pl.zeros(stop - start, pl.UInt8, eager=True).scatter(here, ERROR)
        _write_rows(member, pl.DataFrame(block), start + 2, styles)


def _blocks(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    step = max(_CELLS_AT_ONCE // columns, 1)
    for start in range(0, rows, step):
        yield start, min(start + step, rows)


def _write_rows(member: IO[bytes], block: pl.DataFrame, first_row: int, styles: dict[str, pl.Series]) -> None:
    import polars as pl

    frame = {"row": pl.Series(range(first_row, first_row + block.height)).cast(pl.String)}
    pieces = [pl.lit('<row r="'), pl.col("row"), pl.lit('">')]
    for at, title in enumerate(block.columns):
        frame[f"cell{at}"] = _cells(block[title], column_letters(at), frame["row"], styles.get(title))
        pieces.append(pl.col(f"cell{at}"))
    pieces.append(pl.lit("</row>"))
    xml = pl.DataFrame(frame).select(pl.concat_str(pieces).str.join("")).item()
    member.write(xml.encode())


def _cells(texts: pl.Series, letters: str, rows: pl.Series, style: pl.Series | None) -> pl.Series:
    """A column's cells as XML: numbers as numbers, texts as they are, nothing where there is nothing to show."""
    import polars as pl

    text = pl.col("text")
    number = text.str.contains(NUMBER_TEXT) & text.cast(pl.Float64, strict=False).is_finite()
    formula = text.str.contains(f"^[{FORMULA_START}]") & ~text.str.contains(HARMLESS)
    shown_style = pl.col("style") + pl.when(formula).then(AS_TEXT).otherwise(0).cast(pl.UInt8)
    head = pl.concat_str(pl.lit(f'<c r="{letters}'), pl.col("row"), pl.lit('" s="'), shown_style, pl.lit('"'))
    as_number = pl.concat_str(head, pl.lit("><v>"), text, pl.lit("</v></c>"))
    escaped = text.str.replace_all(_FORBIDDEN, "\ufffd").str.replace_many(["&", "<", ">"], ["&amp;", "&lt;", "&gt;"])
    as_text = pl.concat_str(
        head, pl.lit(' t="inlineStr"><is><t xml:space="preserve">'), escaped, pl.lit("</t></is></c>")
    )
    blank = text.is_null() | (text == "")
    cell = pl.when(blank).then(pl.lit("")).when(number).then(as_number).otherwise(as_text)
    frame = pl.DataFrame({"text": _cut(texts), "row": rows})
    column = style.alias("style") if style is not None else pl.lit(PLAIN, dtype=pl.UInt8).alias("style")
    return frame.with_columns(column).select(cell).to_series()


def _cut(texts: pl.Series) -> pl.Series:
    long = (texts.str.len_bytes() > _LONGEST_TEXT).fill_null(value=False)
    return texts.scatter(long.arg_true(), [cut_text(text) for text in texts.filter(long)]) if long.any() else texts


def _marks(names: pl.Series, columns: list[RankColumn], checks: list[GroupCheck]) -> dict[int, NDArray[np.int64]]:
    """Per rank the rows of the merged table whose cell disagrees with the rank's group."""
    import polars as pl

    places = [place for check in checks for place in check.places]
    if not places:
        return {}
    marked = pl.DataFrame(places, schema={"rank": pl.Int32, "name": pl.String}, orient="row")
    rows = pl.DataFrame({"name": names, "at": np.arange(len(names))})
    found = marked.join(rows, on="name").group_by("rank").agg("at")
    known = {column.rank for column in columns}
    return {rank: np.sort(np.asarray(at)) for rank, at in found.iter_rows() if rank in known}


def _check_table(checks: list[GroupCheck]) -> pl.DataFrame:
    """The sheet that says which groups agree; those that do not come first."""
    import polars as pl

    rows = [
        (
            check.name,
            check.group,
            "pass" if check.agrees else "error",
            _ranks(check.disagree),
            _ranks(check.missing),
            check.detail or f"{len(check.ranks)} ranks have the same output",
        )
        for check in sorted(checks, key=lambda check: check.agrees)
    ]
    titles = ["NPU Name", "Group", "Result", "Ranks That Disagree", "Ranks Without It", "Detail"]
    return pl.DataFrame(rows[:MOST_ROWS], schema=dict.fromkeys(titles, pl.String), orient="row")


def _ranks(ranks: tuple[int, ...]) -> str:
    return ", ".join(f"rank{rank}" for rank in ranks)


def _widths(names: pl.Series, columns: list[RankColumn]) -> list[int]:
    longest = names.str.len_chars().max()
    return [min(max(int(str(longest or 0)) + 2, 20), 80)] + [24] * len(columns)


def _check_widths(report: pl.DataFrame) -> list[int]:
    return [min(max(int(str(report[title].str.len_chars().max())), len(title)) + 4, 80) for title in report.columns]


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
