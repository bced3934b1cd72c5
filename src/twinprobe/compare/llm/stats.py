"""``llm compare --stats``: recorded statistics instead of tensors."""

from __future__ import annotations

from math import isfinite, isnan, prod, sqrt
from typing import TYPE_CHECKING, Any

from twinprobe.align.dtypes import epsilon
from twinprobe.align.ops.table import OperatorTable, read_table
from twinprobe.compare.llm.job import LlmComparison, LlmRequest
from twinprobe.compare.llm.plan import Opened, Plan, plan_of
from twinprobe.compare.llm.rows import Row, rows_of
from twinprobe.compare.llm.tokens import pair_all
from twinprobe.errors import DamagedTensor, NothingToCompare
from twinprobe.judge.rules import ERROR, PASS, RULES, WARNING
from twinprobe.judge.summary import Side, Summary
from twinprobe.measure.llm_rows import SMALLEST
from twinprobe.measure.statistics import statistics
from twinprobe.runs.host_tensor import HostTensor
from twinprobe.runs.llm.dump import LlmDump, Token, open_llm_dump
from twinprobe.runs.llm.files import Files, TensorFile, under
from twinprobe.runs.llm.statistics import STATS, Recorded, recorded_statistics
from twinprobe.runs.llm.tensor import open_llm_tensor

if TYPE_CHECKING:
    import polars as pl


class StatisticsSide:
    """One token of a dump with what was recorded of its tensors; tensors without statistics are measured."""

    def __init__(self, dump: LlmDump, token: Token) -> None:
        self.dump, self.token = dump, token
        found, self._recorded = recorded_statistics(dump.kind, dump.root, token.folder)
        tensors = dump.files(token)
        self.files: Files = {folder: found.get(folder) or files for folder, files in {**tensors, **found}.items()}

    def shape(self, file: TensorFile) -> tuple[int, ...]:
        known = self._recorded.get(file.file)
        return known.shape if known is not None else self._open(file, enough=0).shape

    def _open(self, file: TensorFile, enough: int | None = None) -> HostTensor:
        return open_llm_tensor(self.dump.root, under(self.token.folder, file), linked=file.linked, enough=enough)

    def digest(self, file: TensorFile) -> int:
        """Equal statistics are as good as equal tensors for telling what feeds what."""
        return hash(self.statistics(file).values)

    def merged(self, files: tuple[TensorFile, ...]) -> Recorded:
        """The statistics of several tensors side by side."""
        parts = [self.statistics(file) for file in files]
        if len(parts) == 1:
            return parts[0]
        columns = list(zip(*(part.values for part in parts), strict=True))
        if any(value is None for column in columns for value in column):
            return Recorded(parts[0].dtype, (), (None,) * len(STATS))
        tops, lows, means, norms = ([float(value or 0) for value in column] for column in columns)
        sizes = [prod(part.shape) for part in parts]
        mean = sum(value * size for value, size in zip(means, sizes, strict=True)) / max(sum(sizes), 1)
        values = (max(tops), min(lows), mean, sqrt(sum(value * value for value in norms)))
        return Recorded(parts[0].dtype, (sum(sizes),), values)

    def paths(self, files: tuple[TensorFile, ...]) -> str:
        return ";".join(f"{self.dump.root}/{under(self.token.folder, file)}" for file in files)

    def statistics(self, file: TensorFile) -> Recorded:
        known = self._recorded.get(file.file)
        if known is not None:
            return known
        tensor = self._open(file)
        found = statistics(tensor)
        numbers = (found.max, found.min, found.mean, found.norm)
        return Recorded(tensor.dtype, tensor.shape, tuple(None if one is None else float(one) for one in numbers))


def compare_statistics(request: LlmRequest) -> LlmComparison:
    """Compare what two dumps recorded about their tensors."""
    import polars as pl

    table = read_table(request.mapping)
    my, golden = open_llm_dump(request.my), open_llm_dump(request.golden)
    pairs, notes, lost = pair_all(my, golden)
    records: list[dict[str, Any]] = []
    plans: dict[tuple[int, int], Plan] = {}
    for _, mine, theirs in pairs:
        sides = StatisticsSide(my, mine), StatisticsSide(golden, theirs)
        key = mine.model, theirs.model
        if key not in plans:
            plans[key] = _plan(sides, (mine, theirs), table)
        for row in rows_of(plans[key], sides[0].files, sides[1].files, request.level):
            records.append(_record(mine.label, len(records), row, sides, request))
    if not any(record["Matched By"] for record in records):
        raise NothingToCompare(f"nothing has a counterpart in {request.golden}", where=request.my)
    frame = pl.DataFrame(records, infer_schema_length=None)
    told = [*table.notes, *my.notes, *golden.notes, *notes, *lost]
    return LlmComparison(frame, _summary(request, my, golden, frame, told), lost)


def _plan(sides: tuple[StatisticsSide, StatisticsSide], tokens: tuple[Token, Token], table: OperatorTable) -> Plan:
    opened = [
        Opened(side.dump, token, side.files, side.shape, side.digest) for side, token in zip(sides, tokens, strict=True)
    ]
    return plan_of(sides[0].dump, sides[1].dump, (opened[0], opened[1]), table)


def _record(
    token: str, number: int, row: Row, sides: tuple[StatisticsSide, StatisticsSide], request: LlmRequest
) -> dict[str, Any]:
    record: dict[str, Any] = {
        "token_id": token,
        "data_id": number,
        "golden_data_path": sides[1].paths(row.golden),
        "golden_op_type": row.golden_type,
        "my_data_path": sides[0].paths(row.my),
        "my_op_type": row.my_type,
    }
    errors: dict[str, float | None] = {}
    for stat in STATS:
        errors |= {f"{stat}_stat_absolute_error": None, f"{stat}_stat_relative_error": None}
    error, rule = None, "target_only" if row.my else "golden_only"
    try:
        if row.my and row.golden:
            mine, theirs = sides[0].merged(row.my), sides[1].merged(row.golden)
            errors |= _errors(mine, theirs)
            error, rule = _judged(mine, theirs, request.thresholds.rounding)
        reason = RULES[rule].words
    except DamagedTensor as damage:
        rule = "unreadable"
        reason = f"{RULES[rule].words}: {damage}"
    told = {"Matched By": row.rule, "Relative Error": error, "Result": RULES[rule].severity, "Reason": reason}
    return record | errors | told


def _errors(mine: Recorded, theirs: Recorded) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for stat, m, g in zip(STATS, mine.values, theirs.values, strict=True):
        if m is not None and g is not None:
            found[f"{stat}_stat_absolute_error"] = abs(m - g)
            found[f"{stat}_stat_relative_error"] = abs(m - g) / max(abs(g), SMALLEST)
    return found


def _judged(mine: Recorded, theirs: Recorded, rounding: float) -> tuple[float | None, str]:
    """The largest difference, of the norms by themselves and of the others against the golden amplitude."""
    if prod(mine.shape) != prod(theirs.shape):
        return None, "shape"
    pairs = [(m, g) for m, g in zip(mine.values, theirs.values, strict=True) if m is not None and g is not None]
    if not pairs:
        return None, "unknown"
    if any(isfinite(m) != isfinite(g) or isnan(m) != isnan(g) for m, g in pairs):
        return None, "nonfinite"
    known = [(m, g) for m, g in pairs if isfinite(m)]
    amplitude = max((abs(g) for _, g in known), default=0.0)
    if all(m == g for m, g in known):
        return 0.0, "identical"
    error = max(abs(m - g) for m, g in known) / amplitude if amplitude else float("inf")
    return error, "rounding" if error <= rounding * max(epsilon(mine.dtype), epsilon(theirs.dtype)) else "point"


def _summary(request: LlmRequest, my: LlmDump, golden: LlmDump, table: pl.DataFrame, notes: list[str]) -> Summary:
    matched = int((table["Matched By"] != "").sum())
    counts = [int((table[name] != "").sum()) for name in ("my_data_path", "golden_data_path")]
    my_side, golden_side = (
        Side(str(path), dump.kind, "statistics", "", sum(1 for model in dump.models for _ in model.walk()), count)
        for path, dump, count in zip((request.my, request.golden), (my, golden), counts, strict=True)
    )
    verdicts = {name: int((table["Result"] == name).sum()) for name in (PASS, WARNING, ERROR)}
    only = [count - matched for count in counts]
    return Summary(
        "llm statistics", my_side, golden_side, table.height, matched, only[0], only[1], verdicts, None, notes,
        unread=int(table["Reason"].str.starts_with(RULES["unreadable"].words).sum()),
    )  # fmt: skip
