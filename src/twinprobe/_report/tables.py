"""The result table: the columns that people know, then what TwinProbe adds; and its csv and parquet files."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from twinprobe._judge.verdicts import Evidence, Judged
from twinprobe._lazy import polars as pl
from twinprobe._measure.statistics import MINUS_INF, MISSING, NAN, NUMBER, OTHER, PLUS_INF, SAME, StatDifference
from twinprobe._report.console import UNSEEN_IN_CELL, visible_cells
from twinprobe._report.files import Staging, part_name, prepare_folder
from twinprobe._runs.run import DIGESTS, Run
from twinprobe._runs.table import STATS
from twinprobe._scale.engine import cores

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The titles of the old columns, and what each of them holds.

NOT_APPLICABLE = "N/A"

# By statistic: its difference, and the difference as a share of the golden value.
DIFFERENCES = {"max": "Max diff", "min": "Min diff", "mean": "Mean diff", "norm": "L2norm diff"}
RELATIVES = {"max": "MaxRelativeErr", "min": "MinRelativeErr", "mean": "MeanRelativeErr", "norm": "NormRelativeErr"}
# By title: the field of a pair's metrics.
METRICS = {
    "Cosine": "cosine",
    "EucDist": "euclid",
    "MaxAbsErr": "max_abs",
    "MaxRelativeErr": "max_rel",
    "One Thousandth Err Ratio": "one_thousandth",
    "Five Thousandths Err Ratio": "five_thousandths",
}


# The error in epsilons of the coarsest dtype on the way, what noise explains of it, and how many times as large it is.
NOISE = ("Error (eps)", "Expected (eps)", "Times noise")
# Of replayed calls: how far the target is from what its own inputs give.
ISOLATED = "Isolated error (eps)"

# Numbers as text, written as Python writes them.

_AFTER_ZEROS = len("0.0000")


def float_texts(numbers: pl.Series) -> pl.Series:
    """The shortest text that reads back as the same float, in Python's own form; null stays null."""
    texts: pl.Series = numbers.cast(pl.String)
    # Polars and Python agree except on where the exponent form begins and how it looks.
    size = np.abs(numbers.cast(pl.Float64).fill_null(0.0).to_numpy())
    tiny = (size < 1e-4) & (size > 0)
    known = numbers.dtype == pl.Float64
    odd = np.flatnonzero((size >= 1e15) | np.isnan(size) | (tiny & (not known)))
    if len(odd):
        texts = texts.scatter(odd, [repr(number) for number in numbers.gather(odd).to_list()])
    if known and tiny.any():
        texts = _with_exponents(texts, size, tiny)
    return texts


def _with_exponents(texts: pl.Series, size: NDArray[np.float64], tiny: NDArray[np.bool_]) -> pl.Series:
    """Polars writes 1.5e-7 where Python writes 1.5e-07, and no exponent at all down to 1e-5."""
    text = pl.col("")
    short = np.flatnonzero(tiny & (size < 1e-5) & (size >= 1e-9))
    if len(short):
        head = text.str.slice(0, text.str.len_bytes() - 1)
        spelled = texts.gather(short).to_frame("").select(pl.concat_str(head, pl.lit("0"), text.str.tail(1)))
        texts = texts.scatter(short, spelled.to_series())
    plain = np.flatnonzero(tiny & (size >= 1e-5))
    if len(plain):
        digits = text.str.strip_prefix("-").str.slice(_AFTER_ZEROS)
        sign = pl.when(text.str.starts_with("-")).then(pl.lit("-")).otherwise(pl.lit(""))
        rest = pl.when(digits.str.len_bytes() > 1).then(pl.lit(".") + digits.str.slice(1)).otherwise(pl.lit(""))
        parts = pl.concat_str(sign, digits.str.head(1), rest, pl.lit("e-05"))
        texts = texts.scatter(plain, texts.gather(plain).to_frame("").select(parts).to_series())
    return texts


SIDES = (("t", "NPU"), ("g", "Bench"))
_CASE_TEXTS = {SAME: "0", NAN: "Nan", PLUS_INF: "inf", MINUS_INF: "-inf", MISSING: NOT_APPLICABLE, OTHER: "Diff"}


def result_table(target: Run, evidence: Evidence, judged: Judged) -> pl.DataFrame:
    """Render a judged pair table; every column is text but the relative error."""
    pairs = evidence.pairs
    columns = side_columns(pairs)
    for side, who in SIDES:
        columns[f"{who} Requires_grad"] = _flag(pairs[f"{side}_requires_grad"])
    if evidence.mode == DIGESTS:
        for side, title in (("t", "NPU MD5"), ("g", "BENCH MD5")):
            digests = pairs[f"{side}_digest"].fill_null(pairs[f"{side}_value_digest"])
            columns[title] = digests.fill_null(NOT_APPLICABLE)
    elif evidence.metrics is not None:
        columns |= metric_columns(evidence.metrics)
    elif evidence.differences is not None:
        differences = evidence.differences.items()
        columns |= {DIFFERENCES[stat]: _by_case(d, d.diff, "") for stat, d in differences}
        columns |= {RELATIVES[stat]: _by_case(d, d.relative * 100, "%") for stat, d in differences}
    if evidence.mode != DIGESTS:
        columns |= statistic_columns(pairs)
    columns["Requires_grad Consistent"] = _flag(columns["NPU Requires_grad"] == columns["Bench Requires_grad"])
    columns["Result"] = pl.Series(judged.verdict, dtype=pl.String)
    columns["Err_message"] = pl.Series(judged.messages, dtype=pl.String)
    if target.stacks.of_op:
        columns["NPU_Stack_Info"] = _stacks(target, pairs)
    if evidence.metrics is not None:
        names = [pairs[name].fill_null("-1") for name in ("t_file", "g_file")]
        columns["Data_name"] = "['" + names[0] + "', '" + names[1] + "']"
    columns["Reason"] = pl.Series(judged.reason, dtype=pl.String)
    columns["Origin"] = pl.Series(judged.origin, dtype=pl.String)
    columns["Matched By"] = pairs["rule"]
    columns["Relative Error"] = pl.Series(judged.error).fill_nan(None)
    if evidence.estimate is not None:
        bounds = [pl.Series(part).fill_nan(None).round_sig_figs(3) for part in evidence.estimate[2:4]]
        columns["Relative Error Bounds"] = (float_texts(bounds[0]) + " to " + float_texts(bounds[1])).fill_null("")
    if judged.noise is not None:
        noise = judged.noise
        with np.errstate(invalid="ignore", over="ignore"):
            numbers = (judged.error / noise.grain, noise.expected / noise.grain, noise.times)
        for title, column in zip(NOISE, numbers, strict=True):
            columns[title] = pl.Series(np.where(np.isfinite(column), column, np.nan)).fill_nan(None).round_sig_figs(4)
    if evidence.isolated is not None:
        columns[ISOLATED] = pl.Series(evidence.isolated.target_eps).fill_nan(None).round_sig_figs(4)
    return pl.DataFrame(columns)


def side_columns(pairs: pl.DataFrame) -> dict[str, pl.Series]:
    """Name, dtype and shape of both sides."""
    return {
        f"{who} {title}": pairs[f"{side}_{field}"].fill_null(NOT_APPLICABLE)
        for title, field in (("Name", "name"), ("Dtype", "dtype"), ("Tensor Shape", "shape"))
        for side, who in SIDES
    }


def _flag(column: pl.Series) -> pl.Series:
    words = pl.when(column).then(pl.lit("True")).when(~column).then(pl.lit("False")).otherwise(pl.lit(NOT_APPLICABLE))
    return pl.select(words).to_series()


def statistic_columns(pairs: pl.DataFrame, instead: dict[str, str] | None = None) -> dict[str, pl.Series]:
    """The recorded statistics of both sides, some texts of them replaced."""
    columns: dict[str, pl.Series] = {}
    for side, who in SIDES:
        for stat in STATS:
            texts = pairs[f"{side}_{stat}_text"].replace(instead or {}).fill_null(float_texts(pairs[f"{side}_{stat}"]))
            columns[f"{who} l2norm" if stat == "norm" else f"{who} {stat}"] = texts.fill_null(NOT_APPLICABLE)
    return columns


def _by_case(difference: StatDifference, numbers: np.ndarray, unit: str) -> pl.Series:
    texts = pl.Series([_CASE_TEXTS.get(code, "") for code in range(max(_CASE_TEXTS) + 1)])
    column = texts.gather(pl.Series(difference.case, dtype=pl.UInt32))
    plain = np.flatnonzero(difference.case == NUMBER)
    if not len(plain):
        return column
    values = numbers[plain]
    spelled = float_texts(pl.Series(values))
    if unit:
        spelled = pl.select(pl.when(pl.Series(np.isfinite(values))).then(spelled + unit).otherwise(spelled)).to_series()
    return column.scatter(plain, spelled)


def metric_columns(
    metrics: pl.DataFrame, spelled: Callable[[pl.Series], pl.Series] = float_texts
) -> dict[str, pl.Series]:
    """The metrics of tensors; where there is none, why."""
    unsupported = metrics["status"].replace({"ok": "unsupported", "scalar": "unsupported"})
    columns = {}
    for title, field in METRICS.items():
        numbers = metrics[field]
        texts = spelled(numbers).replace({"nan": "Nan"})
        columns[title] = pl.select(pl.when(numbers.is_null()).then(unsupported).otherwise(texts)).to_series()
    return columns


def _stacks(target: Run, pairs: pl.DataFrame) -> pl.Series:
    """The call site on the first row of each call; each distinct text is kept in memory once."""
    texts = [str(list(frames)) for frames in target.stacks.frames] + [NOT_APPLICABLE]
    none = len(texts) - 1
    of_call = np.array([target.stacks.of_op.get(op, none) for op in target.ops] + [none], dtype=np.uint32)
    calls = pairs["t_op"].fill_null(-1).to_numpy()
    first = np.ones(len(calls), dtype=bool)
    first[1:] = calls[1:] != calls[:-1]
    place = np.where(first, of_call[calls], none)
    return pl.Series(texts, dtype=pl.String).gather(pl.Series(place, dtype=pl.UInt32))


# Which columns of a result table hold numbers, and which texts are numbers.

STATISTICS = tuple(f"{who} {statistic}" for _, who in SIDES for statistic in ("max", "min", "mean", "l2norm"))
RELATIVE_ERROR = "Relative Error"
STACK = "NPU_Stack_Info"

NUMBER_TEXT = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
# What a spreadsheet would take for the start of a formula, half and full width, and numbers that begin alike.
FORMULA_START = "=+@\\-\uff1d\uff0b\uff20\uff0d"
HARMLESS = r"^[+-]?((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?%?|inf|nan)$"


def number_columns(table: pl.DataFrame) -> set[str]:
    """The columns of a table that a spreadsheet shows as numbers.

    ``MaxRelativeErr`` is a number in tensor mode and a percentage, a text, in statistics mode.
    """
    metrics = METRICS if "Cosine" in table.columns else ()
    floats = {name for name, dtype in table.schema.items() if dtype.is_float()}
    return floats | {*STATISTICS, *metrics, RELATIVE_ERROR}.intersection(table.columns)


def as_texts(column: pl.Series) -> pl.Series:
    """A column of a result table as the text that every report shows."""
    if column.dtype == pl.String:
        return column
    if column.dtype.is_float():
        return float_texts(column)
    return cast("pl.Series", column.cast(pl.String))


def numbers_only(column: pl.Series) -> pl.Series:
    """The texts that are finite numbers; null for all others."""
    finite = column.str.contains(NUMBER_TEXT) & column.cast(pl.Float64, strict=False).is_finite()
    return cast("pl.Series", column.zip_with(finite.fill_null(value=False), pl.Series([None], dtype=pl.String)))


# The result table as csv and parquet.

# Texts that a spreadsheet would run as a formula, kept as text in csv files.
#
# A csv file has no cell types: a spreadsheet runs ``=cmd`` whether it is quoted or not. Such a cell gets an
# apostrophe in front, the spreadsheets' own sign for text. Numbers, percentages and infinities stay as they are, so a
# file differs from what it would be without this only in cells that begin like a formula.

# Where lists are separated by semicolons, spreadsheets cut a line there too; a tab or a line break does it anywhere.
_CUTS = ";\t\r\n"
_SUSPECT = f"(^|[{_CUTS}])'*[{FORMULA_START}]"
_PIECES = re.compile(f"([^{_CUTS}]+)")
_FORMULA = re.compile(f"'*[{FORMULA_START}]")
_HARMLESS = re.compile(HARMLESS)


def guarded(column: pl.Series) -> pl.Series:
    """The column with an apostrophe before each piece of a text that begins like a formula."""
    texts = column.unique()
    texts = texts.filter(texts.str.contains(_SUSPECT) & ~texts.str.contains(HARMLESS))

    def guard(match: re.Match[str]) -> str:
        found = match[0]
        return f"'{found}" if _FORMULA.match(found) and not _HARMLESS.match(found) else found

    return column.replace(texts, [_PIECES.sub(guard, text) for text in texts]) if len(texts) else column


ROWS_PER_CSV = 1_000_000
_INFINITIES = {"inf": " inf", "-inf": " -inf"}


def csv_parts(table: pl.DataFrame, path: Path, *, rows_per_file: int = ROWS_PER_CSV) -> list[tuple[Path, pl.DataFrame]]:
    """The files that a table is written to, with their rows."""
    if table.height <= rows_per_file:
        return [(path, table)]
    starts = range(0, table.height, rows_per_file)
    return [
        (path.with_name(part_name(path.name, i)), table.slice(start, rows_per_file))
        for i, start in enumerate(starts, 1)
    ]


def fill_csv(table: pl.DataFrame, path: Path) -> None:
    """Write csv to exactly this path."""
    with ThreadPoolExecutor(cores()) as pool:
        columns = list(pool.map(_spelled, table))
    with path.open("wb") as file:  # polars itself opens no path that is not UTF-8
        table.select(columns).write_csv(file)


def _spelled(column: pl.Series) -> pl.Series:
    """A column as its cells stand in a csv file."""
    if column.dtype == pl.String:
        # Most cells are numbers or stand there many times: what is left is searched once, and hardly ever spelled anew.
        texts = column.unique()
        texts = texts.filter(texts.str.strip_suffix("%").cast(pl.Float64, strict=False).is_null())
        odd = texts.filter(texts.str.contains(f"{UNSEEN_IN_CELL}|{_SUSPECT}"))
        column = column.replace(odd, guarded(visible_cells(odd))) if len(odd) else column
    if column.name in STATISTICS and column.is_in(list(_INFINITIES)).any():
        # The known form: a blank keeps spreadsheets from reading -inf as a formula.
        column = column.replace(_INFINITIES)
    return as_texts(column)


def fill_parquet(table: pl.DataFrame, path: Path) -> None:
    """Write parquet to exactly this path."""
    with path.open("wb") as file:
        table.write_parquet(file, compression="zstd", compression_level=3)


# The result tables of many ranks as one parquet dataset, cut by step and rank: ``step=0/rank=3/part.parquet``.

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
