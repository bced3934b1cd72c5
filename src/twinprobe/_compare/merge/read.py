"""One rank's results, read for merging: only the wanted rows and columns ever reach memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import isnan
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from twinprobe import __version__
from twinprobe._compare.merge.config import GRAD_METRIC, STATISTICS, TENSORS, RankFiles
from twinprobe._compare.request import once_in_folder
from twinprobe._lazy import polars as pl
from twinprobe._report.files import replacing
from twinprobe._report.xlsx_read import read_rows, read_titles
from twinprobe._runs.remote.contents import local_copy
from twinprobe._runs.run import whole_fingerprint
from twinprobe._runs.whole_files import open_file
from twinprobe._scale.ledger import Session
from twinprobe.errors import BadInput

# Collectives whose outputs must be the same on all ranks of a group: what to read of them, and who disagrees.

# The argument that receives the result: its place, or its keyword. Recorders list all arguments as outputs.
_RESULT_KEYS = {
    "all_gather": ("0", "tensor_list"),
    "all_gather_into_tensor": ("0", "output_tensor", "output"),
    "_all_gather_base": ("0", "output_tensor", "output"),
    "all_reduce": ("0", "tensor"),
    "broadcast": ("0", "tensor"),
}
_OPS = "|".join(_RESULT_KEYS)
_CALL = (
    rf"^(?P<api>\w*Distributed\.(?P<op>{_OPS}))\.(?P<number>\d+)\.forward\.(?P<io>input|kwargs|output)\.(?P<rest>.+)$"
)
_PREFIX = re.compile(rf"^(?P<api>\w*Distributed(?:\.(?:{_OPS}))?)(?:\.|$)")
_LISTED = re.compile(r"\[\s*(\d{1,18}(?:\s*,\s*\d{1,18})*)\s*,?\s*\]")
_DASHED = re.compile(r"((?:-\d{1,18})+)$")

SIDES = ("NPU", "Bench")
STATS = ("max", "min", "mean", "l2norm")
# Mean and norm are sums, whose last digits depend on the order of adding; max and min are elements.
_ROUNDING = {"max": 1e-9, "min": 1e-9, "mean": 1e-6, "l2norm": 1e-6}


@dataclass(frozen=True)
class GroupCheck:
    """One output that must agree inside one group. ``places`` are the (rank, row name) of the cells to mark."""

    name: str
    group: str
    ranks: tuple[int, ...]
    disagree: tuple[int, ...]
    missing: tuple[int, ...]
    detail: str
    places: tuple[tuple[int, str], ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether all ranks that have the output have the same one."""
        return not self.disagree


def touched(api: Iterable[str]) -> tuple[Callable[[str], bool], list[str]]:
    """Which names to read for these entries: the wanted ones, and all calls of the collectives they name.

    All of them, because ranks are linked by the order of their calls within a group. Also the texts that names begin
    with.
    """
    starts: dict[str, None] = {}
    for entry in api:
        match = _PREFIX.match(entry)
        starts[match["api"] if match is not None and "." in match["api"] else entry] = None
    prefixes = tuple(f"{start}." for start in starts)
    return lambda name: name.startswith(prefixes) or name in starts, list(starts)


def checkable(table: pl.DataFrame, rank: int) -> pl.DataFrame:
    """The outputs of one rank that must agree with other ranks: call, group, order in the group, statistics."""
    parts = table.select(pl.all(), pl.col("NPU Name").str.extract_groups(_CALL).alias("parts")).unnest("parts")
    parts = parts.filter(pl.col("rest").is_not_null()).with_columns(
        pl.col("number").cast(pl.Int64, strict=False), pl.col("rest").str.split(".").list.first().alias("key")
    )
    call = ["api", "op", "number"]
    inputs = parts.filter(pl.col("io") != "output")
    is_group = inputs["key"].eq("group") | inputs["NPU Dtype"].fill_null("").str.contains("ProcessGroup")
    named = is_group & ~inputs["NPU max"].fill_null("").str.to_lowercase().is_in(["", "none", "n/a"])
    groups = inputs.filter(named).group_by(call).agg(pl.col("NPU max").first().alias("group"))
    keys = inputs.group_by(call, maintain_order=True).agg(pl.col("key").unique(maintain_order=True).alias("keys"))
    calls = parts.select(call).unique().join(groups, on=call, how="left").join(keys, on=call, how="left")
    # Which argument receives the result, by its place or by its keyword's place among the arguments.
    places = [
        next((str(keys.index(key)) for key in _RESULT_KEYS[op] if key in (keys or ())), "0")
        for op, keys in calls.select("op", "keys").iter_rows()
    ]
    calls = calls.with_columns(pl.col("group").fill_null(""), pl.Series("place", places, pl.String))
    # Ranks may number their calls differently; the n-th call within one group is the same call on all of them.
    calls = calls.sort(call).with_columns(pl.int_range(pl.len()).over("api", "group").alias("order"))
    outputs = parts.filter(pl.col("io") == "output").join(calls.drop("keys"), on=call)
    outputs = outputs.filter(pl.col("key") == pl.col("place"))
    numbers = [pl.col(f"{side} {stat}").cast(pl.Float64, strict=False) for side in SIDES for stat in STATS]
    outputs = outputs.filter(pl.col("NPU max").str.contains(r"\d|(?i)nan|inf").fill_null(value=False))
    return outputs.select(
        pl.lit(rank, dtype=pl.Int32).alias("rank"), pl.col("NPU Name").alias("name"), "chosen",
        "api", "group", "order", "rest", pl.col("NPU Tensor Shape").fill_null("").alias("shape"), *numbers,
    )  # fmt: skip


def check_groups(outputs: pl.DataFrame, ranks: list[int]) -> list[GroupCheck]:
    """Compare the outputs of all ranks inside their groups; a group of one rank has nothing to check."""
    groups = outputs.group_by("api", "group", "order", "rest", maintain_order=True)
    checks = (_check(members.sort("rank"), str(key[1]), ranks) for key, members in groups)
    return [check for check in checks if check is not None]


def _check(members: pl.DataFrame, group: str, ranks: list[int]) -> GroupCheck | None:
    if not members["chosen"].any():
        return None
    in_group = set(group_ranks(group) or ranks)
    have = members["rank"].to_list()
    missing = tuple(sorted((in_group & set(ranks)) - set(have)))
    if len(have) + len(missing) < 2:
        return None
    odd: set[int] = set()
    details = []
    for side in SIDES:
        classes = _classes(members, side)
        if len(classes) > 1:
            # All outside of the largest class disagree, or everybody where no class is the largest.
            tied = len(classes[0]) == len(classes[1])
            odd |= {have[member] for known in (classes if tied else classes[1:]) for member in known}
            details.append(f"{side}: {_described(members, side, classes)}")
    names = members["name"].to_list()
    places = tuple((rank, name) for rank, name in zip(have, names, strict=True) if rank in odd)
    shown = group or "default group"
    return GroupCheck(names[0], shown, tuple(have), tuple(sorted(odd)), missing, "; ".join(details), places)


def _classes(members: pl.DataFrame, side: str) -> list[list[int]]:
    """Rows of equal outputs, largest class first."""
    shapes = members["shape"].to_list()
    values = members.select(f"{side} {stat}" for stat in STATS).to_numpy().astype(np.float64)
    if len(set(shapes)) == 1 and bool(((values == values[0]) | (np.isnan(values) & np.isnan(values[0]))).all()):
        return [list(range(len(values)))]
    classes: list[list[int]] = []
    for row in range(len(values)):
        for known in classes:
            if shapes[known[0]] == shapes[row] and _same(values[known[0]], values[row]):
                known.append(row)
                break
        else:
            classes.append([row])
    return sorted(classes, key=len, reverse=True)


def _same(known: NDArray[np.float64], candidate: NDArray[np.float64]) -> bool:
    size = max(abs(number) for number in (*known[:2], *candidate[:2]))
    for stat, a, b in zip(STATS, known.tolist(), candidate.tolist(), strict=True):
        if a == b or (isnan(a) and isnan(b)):
            continue
        scale = max(abs(a), abs(b)) if stat == "l2norm" else size
        if not abs(a - b) <= _ROUNDING[stat] * scale:
            return False
    return True


def _described(members: pl.DataFrame, side: str, classes: list[list[int]]) -> str:
    ranks = members["rank"].to_list()
    shown = []
    for known in classes[:8]:
        row = members.row(known[0], named=True)
        numbers = ", ".join(f"{stat} {row[f'{side} {stat}']!r}" for stat in STATS)
        shown.append(f"rank {', '.join(str(ranks[member]) for member in known)} {row['shape']} {numbers}")
    return " | ".join(shown) + (" | ..." if len(classes) > 8 else "")


def group_ranks(text: str) -> list[int]:
    """The ranks that a group's text names: ``[0, 1]`` and ``tp-0-1`` both mean 0 and 1; nothing if it names none."""
    listed = _LISTED.search(text)
    if listed is not None:
        return [int(number) for number in listed[1].split(",")]
    dashed = _DASHED.search(text)
    return [int(number) for number in dashed[1].split("-")[1:]] if dashed is not None else []


Found = TypeVar("Found")

NAME = "NPU Name"
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
    if path.suffix == ".xlsx":
        titles = set(read_titles(path))
    else:
        with local_copy(path, only_ends=True) as copy:
            titles = set(_guarded(path, lambda: _scan(copy).collect_schema().names()))
    if {"NPU MD5", "BENCH MD5"} & titles:
        raise BadInput("is a result of checksums (md5), which cannot be merged", where=path, hint=_HINT)
    if NAME in titles and "NPU Requires_grad" not in titles and "Accuracy Reached or Not" in titles:
        what = "is a result of kernels of a static graph, which cannot be merged"
        raise BadInput(what, where=path, hint=_HINT)
    for kind, sign in ((TENSORS, "Cosine"), (STATISTICS, "Max diff")):
        if {NAME, sign, "NPU max", "Bench max"} <= titles:
            return kind
    raise BadInput("is not a result of compare: its header is different", where=path, hint=_HINT)


def read_rank(job: ReadJob) -> RankRows:
    """Read one rank, leave its wanted rows in files, and say what was found (in a worker process)."""
    to = job.to
    if not isinstance(to, Session):
        return _read_into(job, to)

    def work(folder: Path) -> tuple[RankRows, list[Path]]:
        rank_rows = _read_into(job, folder, writing=replacing)
        return rank_rows, [rank_rows.cells_file, rank_rows.check_file]

    return once_in_folder(to, f"rank{job.files.rank}", job.mark(), RankRows, work)


def _read_into(
    job: ReadJob, folder: Path, writing: Callable[[Path], AbstractContextManager[Path]] = nullcontext
) -> RankRows:
    columns = [NAME, *FACTS, *job.metrics]
    name_wanted, needles = touched(job.api)
    if job.files.paths[0].suffix == ".xlsx":
        rows = [row for path in job.files.paths for row in read_rows(path, columns, NAME, name_wanted, needles)]
        table = pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String), orient="row")
    else:
        wide = "^(?:" + "|".join(re.escape(needle) for needle in needles) + ")"
        table = pl.concat([_read_columns(path, columns, wide) for path in job.files.paths])
    table = table.unique(NAME, keep="first", maintain_order=True)
    chosen = table[NAME].str.contains(job.pattern)
    checks = checkable(table.with_columns(chosen.alias("chosen")), job.files.rank)
    shown = _shown(table.filter(chosen), job.metrics)
    shown = shown[natural_order(shown["name"].to_list())]
    names = shown["name"]
    matched = frozenset(entry for entry in job.api if ((names == entry) | names.str.starts_with(entry + ".")).any())
    rank_rows = RankRows(job.files.rank, shown.height, checks.height, matched, folder)
    with writing(rank_rows.cells_file) as cells, writing(rank_rows.check_file) as beside:
        for table, path in ((shown, cells), (checks, beside)):
            with path.open("wb") as file:
                table.write_ipc(file)
    return rank_rows


def natural_order(names: list[str]) -> list[int]:
    """The places of the names in the order that people expect: call 2 before call 10."""
    keys = [_DIGITS.sub(lambda digits: digits[0].zfill(20), name) for name in names]
    return sorted(range(len(names)), key=keys.__getitem__)


def _shown(table: pl.DataFrame, metrics: tuple[str, ...]) -> pl.DataFrame:
    """The texts that the sheets show: a group instead of its difference, both maxima where there is no metric."""
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


def _read_columns(path: Path, columns: list[str], pattern: str) -> pl.DataFrame:
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
    if path.suffix == ".parquet":
        return pl.scan_parquet(path)
    with open_file(path) as file:  # each column costs polars some hundred bytes, and a comma makes one
        header = _HEADER.match(file.read(_LONGEST_HEADER))
    columns = header[0].count(b",") + 1 if header else 0
    if columns > _MOST_COLUMNS:
        raise pl.exceptions.ComputeError(f"it has {columns:,} columns or more, which no result has")
    return pl.scan_csv(path, infer_schema=False)


def _guarded(path: Path, read: Callable[[], Found]) -> Found:
    try:
        return read()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise BadInput(f"cannot be read: {reason}", where=path, hint="write the result again") from None
