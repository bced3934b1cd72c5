"""One rank's results, read for merging: only the wanted rows and columns ever reach memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from twinprobe import __version__
from twinprobe.compare.merge.config import GRAD_METRIC, STATISTICS, TENSORS
from twinprobe.compare.merge.files import RankFiles
from twinprobe.compare.merge.groups import checkable, touched
from twinprobe.compare.resume import once_in_folder
from twinprobe.errors import BadInput
from twinprobe.report.atomic import replacing
from twinprobe.runs.fingerprint import whole_fingerprint
from twinprobe.runs.remote.local_copy import local_copy
from twinprobe.runs.whole_file import open_file
from twinprobe.scale.ledger import Session

if TYPE_CHECKING:
    import polars as pl

Found = TypeVar("Found")

NAME = "NPU Name"
SIDES = ("NPU", "Bench")
STATS = ("max", "min", "mean", "l2norm")
FACTS = ["NPU Dtype", "NPU Tensor Shape", *(f"{side} {stat}" for side in SIDES for stat in STATS)]
_UNKNOWN = ("n/a", "unsupported", "nan")
_DIGITS = re.compile(r"\d+")
_MOST_COLUMNS, _LONGEST_HEADER = 16_384, 1 << 20
_HEADER = re.compile(rb'[^"\n]*(?:"[^"]*"[^"\n]*)*')
_HINT = "merge results of one kind: statistics or real data"


@dataclass(frozen=True)
class ReadJob:
    """What a worker is to read, and where it leaves the rows: in a folder, or in the notes of a long command."""

    files: RankFiles
    api: tuple[str, ...]
    pattern: str
    metrics: tuple[str, ...]
    to: Path | Session

    def mark(self) -> str:
        """What decides which rows are found."""
        wanted = repr((__version__, self.files.rank, self.api, self.metrics))
        return f"{whole_fingerprint(self.files.paths)} {wanted}"


@dataclass(frozen=True)
class RankRows:
    """What was found of one rank, and the folder with its rows."""

    rank: int
    rows: int
    checks: int
    matched: frozenset[str]
    folder: Path
    notes: list[str] = field(default_factory=list)

    @property
    def cells_file(self) -> Path:
        """The wanted rows: a name and a shown text per metric."""
        return self.folder / f"rank{self.rank}.arrow"

    @property
    def check_file(self) -> Path:
        """The outputs that must agree with those of other ranks."""
        return self.folder / f"check{self.rank}.arrow"


def kind_of(path: Path) -> str:
    """Whether a file holds statistics or real-data results; BadInput for all that cannot be merged."""
    titles = set(_titles(path))
    if {"NPU MD5", "BENCH MD5"} & titles:
        raise BadInput("is a result of checksums (md5), which cannot be merged", where=path, hint=_HINT)
    if NAME in titles and "NPU Requires_grad" not in titles and "Accuracy Reached or Not" in titles:
        what = "is a result of kernels of a static graph, which cannot be merged"
        raise BadInput(what, where=path, hint=_HINT)
    for kind, sign in ((TENSORS, "Cosine"), (STATISTICS, "Max diff")):
        if {NAME, sign, "NPU max", "Bench max"} <= titles:
            return kind
    raise BadInput("is no result of compare: its header is another one", where=path, hint=_HINT)


def read_rank(job: ReadJob) -> RankRows:
    """Read one rank, leave its wanted rows in files, and say what was found (in a worker process)."""
    to = job.to
    if not isinstance(to, Session):
        return _read_into(job, to)

    def work(folder: Path) -> tuple[RankRows, list[Path]]:
        found = _read_into(job, folder, writing=replacing)
        return found, [found.cells_file, found.check_file]

    return once_in_folder(to, f"rank{job.files.rank}", job.mark(), RankRows, work)


@contextmanager
def _plainly(path: Path) -> Iterator[Path]:
    yield path


def _read_into(
    job: ReadJob, folder: Path, writing: Callable[[Path], AbstractContextManager[Path]] = _plainly
) -> RankRows:
    import polars as pl

    columns = [NAME, *FACTS, *job.metrics]
    if job.files.paths[0].suffix == ".xlsx":
        name_wanted, needles = touched(job.api)
        table = pl.concat([_read_xlsx(path, columns, name_wanted, needles) for path in job.files.paths])
    else:
        wide = touched_pattern(job)
        table = pl.concat([_read_columns(path, columns, wide) for path in job.files.paths])
    table = table.unique(NAME, keep="first", maintain_order=True)
    chosen = table[NAME].str.contains(job.pattern)
    checks = checkable(table.with_columns(chosen.alias("chosen")), job.files.rank)
    shown = _shown(table.filter(chosen), job.metrics)
    shown = shown[natural_order(shown["name"].to_list())]
    names = shown["name"]
    matched = frozenset(entry for entry in job.api if _starts(names, entry).any())
    found = RankRows(job.files.rank, shown.height, checks.height, matched, folder)
    with writing(found.cells_file) as cells, writing(found.check_file) as beside:
        for table, path in ((shown, cells), (checks, beside)):
            with path.open("wb") as file:
                table.write_ipc(file)
    return found


def natural_order(names: list[str]) -> list[int]:
    """The places of the names in the order that people expect: call 2 before call 10."""
    keys = [_DIGITS.sub(lambda digits: digits[0].zfill(20), name) for name in names]
    return sorted(range(len(names)), key=keys.__getitem__)


def touched_pattern(job: ReadJob) -> str:
    """A regular expression for all rows that are wanted or that a check needs."""
    _, needles = touched(job.api)
    return "^(?:" + "|".join(re.escape(needle) for needle in needles) + ")"


def _starts(names: pl.Series, entry: str) -> pl.Series:
    return (names == entry) | names.str.starts_with(entry + ".")


def _shown(table: pl.DataFrame, metrics: tuple[str, ...]) -> pl.DataFrame:
    """The texts that the sheets show: a group instead of its difference, both maxima where there is no metric."""
    import polars as pl

    npu, bench = pl.col("NPU max").fill_null(""), pl.col("Bench max").fill_null("")
    both = pl.concat_str(pl.lit("NPU:"), npu, pl.lit("  Bench:"), bench)
    is_group = pl.col(NAME).str.ends_with(".group") | pl.col("NPU Dtype").fill_null("").str.contains("ProcessGroup")
    is_group &= pl.col("NPU max").is_not_null()
    cells = [pl.col(NAME).alias("name")]
    for metric in metrics:
        unknown = pl.col(metric).str.to_lowercase().is_in(_UNKNOWN)
        shown = pl.when(unknown).then(both).otherwise(pl.col(metric))
        if metric != GRAD_METRIC:
            group = pl.when(npu == bench).then(npu).otherwise(both)
            shown = pl.when(is_group).then(group).otherwise(shown)
        cells.append(shown.alias(metric))
    return table.select(cells)


def _titles(path: Path) -> list[str]:
    if path.suffix == ".xlsx":
        from twinprobe.report.xlsx_read import read_titles

        return read_titles(path)
    with local_copy(path, only_ends=True) as copy:
        return _guarded(path, lambda: _scan(copy).collect_schema().names())


def _read_xlsx(path: Path, columns: list[str], wanted: Callable[[str], bool], needles: list[str]) -> pl.DataFrame:
    import polars as pl

    from twinprobe.report.xlsx_read import read_rows

    rows = read_rows(path, columns, NAME, wanted, needles)
    return pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String), orient="row")


def _read_columns(path: Path, columns: list[str], pattern: str) -> pl.DataFrame:
    import polars as pl

    def read(copy: Path) -> pl.DataFrame:
        scan = _scan(copy)
        have = scan.collect_schema().names()
        lacking = [pl.lit(None, dtype=pl.String).alias(column) for column in columns if column not in have]
        chosen = scan.filter(pl.col(NAME).str.contains(pattern)).select(c for c in columns if c in have)
        rows = chosen.collect(engine="streaming")
        # A blank before an infinity keeps spreadsheets from running it.
        texts = [pl.col(column).cast(pl.String).str.strip_chars() for column in rows.columns]
        return rows.select(*texts, *lacking).select(columns)

    with local_copy(path) as copy:
        return _guarded(path, lambda: read(copy))


def _scan(path: Path) -> pl.LazyFrame:
    import polars as pl

    if path.suffix == ".parquet":
        return pl.scan_parquet(path)
    with open_file(path) as file:  # each column costs polars some hundred bytes, and a comma makes one
        header = _HEADER.match(file.read(_LONGEST_HEADER))
    columns = header[0].count(b",") + 1 if header else 0
    if columns > _MOST_COLUMNS:
        raise pl.exceptions.ComputeError(f"it has {columns:,} columns or more, which no result has")
    return pl.scan_csv(path, infer_schema=False)


def _guarded(path: Path, read: Callable[[], Found]) -> Found:
    import polars as pl

    try:
        return read()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise BadInput(f"cannot be read: {reason}", where=path, hint="write the result again") from None
