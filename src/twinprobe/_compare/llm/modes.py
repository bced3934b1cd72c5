"""Two tensor files, and the weights of two dumps."""

from __future__ import annotations

from math import isfinite, isnan, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twinprobe._align.auto.row_links import merged
from twinprobe._align.calls import epsilon
from twinprobe._align.ops.table import read_table
from twinprobe._compare.llm.job import LlmComparison, LlmRequest, summary_of
from twinprobe._compare.llm.load import apply_scale, is_quantised
from twinprobe._compare.llm.rows import OpenedToken, Plan, Row, make_plan, rows_of
from twinprobe._compare.llm.table import METRICS
from twinprobe._compare.llm.token import pair_all
from twinprobe._judge.origin import RunInfo
from twinprobe._judge.verdicts import EPSILONS, RULES, WARNING, Thresholds
from twinprobe._measure.elements import FLOAT32, numbers
from twinprobe._measure.llm_metrics import LlmMetrics, measure_llm_pair
from twinprobe._measure.loops.inference_sums import SMALLEST
from twinprobe._measure.statistics import statistics
from twinprobe._runs.llm.dump import LlmDump, Token, find_layout, open_llm_dump
from twinprobe._runs.llm.files import TORCH, TensorFile
from twinprobe._runs.llm.statistics import STATS, Recorded, recorded_statistics
from twinprobe._runs.llm.tensor import open_llm_tensor
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe.errors import BadInput, DamagedTensor, NothingToCompare

if TYPE_CHECKING:
    import polars as pl


def is_pair_of_files(request: LlmRequest) -> bool:
    """Whether both paths name files; one file and one folder is an error."""
    for path in (request.my, request.golden):
        if not path.exists():
            raise BadInput("does not exist", where=path)
    files = request.my.is_file(), request.golden.is_file()
    if files[0] != files[1]:
        file, folder = (request.my, request.golden) if files[0] else (request.golden, request.my)
        raise BadInput(f"is a file, but {folder} is a folder", where=file, hint="give two folders or two tensor files")
    return all(files)


def compare_files(request: LlmRequest) -> dict[str, object]:
    """Compare two tensor files: the columns of the report for this one pair."""
    my, golden = (open_llm_tensor(path.absolute().parent, path.name) for path in (request.my, request.golden))
    metrics = measure_llm_pair(my, golden)
    values = _row(("golden", request.golden, golden), ("my", request.my, my), metrics)
    verdict, reason = verdict_of(metrics, (my.dtype, golden.dtype), request.thresholds)
    return {
        **values,
        "cmp_fail_reason": metrics.reason,
        "max_absolute_error_everywhere": metrics.max_abs_all,
        "relative_error": metrics.relative_norm,
        "result": verdict,
        "reason": reason,
    }


def compare_weights(request: LlmRequest) -> LlmComparison:
    """Compare the weights that two torch dumps keep; integer weights are dequantised by their scale and offset."""
    import polars as pl

    folders = [_weights(path) for path in (request.my, request.golden)]
    target_names, golden_names = ({file.name for file in folder.glob("*.pth")} for folder in folders)
    # Scales and offsets belong to the weight that they scale.
    names = sorted(name for name in target_names & golden_names if not name.endswith(("_scale.pth", "_offset.pth")))
    if not names:
        raise NothingToCompare(f"no weight has a counterpart in {folders[1]}", where=folders[0])
    rows = [_weight_row(name, folders, request.thresholds) for name in names]
    table = pl.DataFrame(rows, infer_schema_length=None)
    my_side, golden_side = (RunInfo(str(folder), TORCH, "weights", "", 0, len(names)) for folder in folders)
    both = ((folders[0], target_names - golden_names), (folders[1], golden_names - target_names))
    notes = [f"only in {folder}: {', '.join(sorted(left)[:4])}" for folder, left in both if left]
    summary = summary_of("llm weight", (my_side, golden_side), table, len(names), notes, _unread(table))
    return LlmComparison(table, summary)


def _unread(table: pl.DataFrame) -> int:
    return int(table["Reason"].str.starts_with(RULES["unreadable"].words).sum())


def _weights(path: Path) -> Path:
    layout = find_layout(path)
    folder = layout.root / layout.chosen[0].folder / "weights"
    if layout.kind != TORCH or not folder.is_dir():
        raise BadInput("holds no weights", where=path, hint="record with DumpConfig(dump_weight=True)")
    return folder


def _weight_row(name: str, folders: list[Path], limits: Thresholds) -> dict[str, Any]:
    row: dict[str, Any] = {"weight_name": name.removesuffix(".pth")}
    try:
        my, golden = (_weight(folder, name) for folder in folders)
        metrics = measure_llm_pair(my, golden)
    except DamagedTensor as damage:
        reason = f"{RULES['unreadable'].words}: {damage}"
        return row | {"cmp_fail_reason": str(damage), "Relative Error": None, "Result": WARNING, "Reason": reason}
    row |= _row(("golden", folders[1] / name, golden), ("my", folders[0] / name, my), metrics)
    verdict, reason = verdict_of(metrics, (my.dtype, golden.dtype), limits)
    extra = {"cmp_fail_reason": metrics.reason, "Relative Error": metrics.relative_norm}
    return row | extra | {"Result": verdict, "Reason": reason}


def _weight(folder: Path, name: str) -> HostTensor:
    tensor = open_llm_tensor(folder, name)
    stem = name.removesuffix(".pth")
    if not is_quantised([tensor]) or not (folder / f"{stem}_scale.pth").exists():
        return tensor
    scale = open_llm_tensor(folder, f"{stem}_scale.pth")
    offset = None
    if (folder / f"{stem}_offset.pth").exists():
        given = open_llm_tensor(folder, f"{stem}_offset.pth")
        offset = numbers(given.dtype, given.data, FLOAT32)
    return apply_scale(tensor, numbers(scale.dtype, scale.data, FLOAT32), offset)


def _row(golden: tuple[str, Path, HostTensor], my: tuple[str, Path, HostTensor], metrics: LlmMetrics) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for who, path, tensor in (golden, my):
        basics = getattr(metrics, who)
        row |= {
            f"{who}_data_path": str(path),
            f"{who}_dtype": f"torch.{tensor.dtype}",
            f"{who}_shape": str(list(tensor.shape)),
            f"{who}_max_value": basics.max,
            f"{who}_min_value": basics.min,
            f"{who}_mean_value": basics.mean,
        }
    return row | {title: getattr(metrics, name) for title, name in METRICS.items()}


def verdict_of(metrics: LlmMetrics, dtypes: tuple[str, str], limits: Thresholds) -> tuple[str, str]:
    """The verdict of a pair that belongs to no call."""
    error = metrics.relative_norm
    rule = "point"
    if metrics.identical:
        rule = "identical"
    elif metrics.nonfinite:
        rule = "nonfinite"
    elif error is None:
        rule = "shape"
    elif error <= (limits.rounding or EPSILONS) * max(map(epsilon, dtypes)) and isfinite(error):
        rule = "rounding"
    return RULES[rule].severity, RULES[rule].words.replace("saved value", "tensor")


class StatisticsToken(OpenedToken):
    """One token of a dump with what was recorded of its tensors; tensors without statistics are measured."""

    def __init__(self, dump: LlmDump, token: Token) -> None:
        tensors = dump.folder(token)
        found, self._recorded = recorded_statistics(tensors)
        together = {**tensors.files, **found}
        super().__init__(dump, token, {folder: found.get(folder) or files for folder, files in together.items()})

    def shape(self, file: TensorFile) -> tuple[int, ...]:
        known = self._recorded.get(file.file)
        return known.shape if known is not None else self.folder.open(file, enough=0).shape

    def digest(self, file: TensorFile) -> int:
        """Equal statistics are as good as equal tensors for telling what feeds what."""
        return hash(self.statistics(file).values)

    def merged(self, files: tuple[TensorFile, ...]) -> Recorded:
        """The statistics of several tensors side by side."""
        parts = [self.statistics(file) for file in files]
        if len(parts) == 1:
            return parts[0]
        if any(value is None for part in parts for value in part.values):
            return Recorded(parts[0].dtype, (), (None,) * len(STATS))
        sizes = np.array([prod(part.shape) for part in parts])
        return Recorded(parts[0].dtype, (int(sizes.sum()),), merged(np.array([part.values for part in parts]), sizes))

    def paths(self, files: tuple[TensorFile, ...]) -> str:
        return ";".join(f"{self.folder.base}{file.file}" for file in files)

    def statistics(self, file: TensorFile) -> Recorded:
        known = self._recorded.get(file.file)
        if known is not None:
            return known
        tensor = self.folder.open(file)
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
    for _, token, golden_token in pairs:
        tokens = StatisticsToken(my, token), StatisticsToken(golden, golden_token)
        key = token.model, golden_token.model
        if key not in plans:
            plans[key] = make_plan(*tokens, table)
        for row in rows_of(plans[key], tokens[0].files, tokens[1].files, request.level):
            records.append(_record(token.label, len(records), row, tokens, request))
    if not any(record["Matched By"] for record in records):
        raise NothingToCompare(f"nothing has a counterpart in {request.golden}", where=request.my)
    frame = pl.DataFrame(records, infer_schema_length=None)
    sides = [
        RunInfo(
            str(path), dump.kind, "statistics", "", sum(1 for model in dump.models for _ in model.walk()),
            int((frame[column] != "").sum()),
        )
        for path, dump, column in (
            (request.my, my, "my_data_path"), (request.golden, golden, "golden_data_path"),
        )
    ]  # fmt: skip
    notes = [*table.notes, *my.notes, *golden.notes, *notes, *lost]
    matched = int((frame["Matched By"] != "").sum())
    summary = summary_of("llm statistics", (sides[0], sides[1]), frame, matched, notes, _unread(frame))
    return LlmComparison(frame, summary, lost)


def _record(
    token: str, number: int, row: Row, sides: tuple[StatisticsToken, StatisticsToken], request: LlmRequest
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
            target, golden = sides[0].merged(row.my), sides[1].merged(row.golden)
            for stat, m, g in zip(STATS, target.values, golden.values, strict=True):
                if m is not None and g is not None:
                    errors[f"{stat}_stat_absolute_error"] = abs(m - g)
                    errors[f"{stat}_stat_relative_error"] = abs(m - g) / max(abs(g), SMALLEST)
            error, rule = _judged(target, golden, request.thresholds.rounding or EPSILONS)
        reason = RULES[rule].words
    except DamagedTensor as damage:
        rule = "unreadable"
        reason = f"{RULES[rule].words}: {damage}"
    verdict = {"Matched By": row.rule, "Relative Error": error, "Result": RULES[rule].severity, "Reason": reason}
    return record | errors | verdict


def _judged(target: Recorded, golden: Recorded, rounding: float) -> tuple[float | None, str]:
    """The largest difference, of the norms by themselves and of the others against the golden amplitude."""
    if prod(target.shape) != prod(golden.shape):
        return None, "shape"
    pairs = [(m, g) for m, g in zip(target.values, golden.values, strict=True) if m is not None and g is not None]
    if not pairs:
        return None, "unknown"
    if any(isfinite(m) != isfinite(g) or isnan(m) != isnan(g) for m, g in pairs):
        return None, "nonfinite"
    known = [(m, g) for m, g in pairs if isfinite(m)]
    amplitude = max((abs(g) for _, g in known), default=0.0)
    if all(m == g for m, g in known):
        return 0.0, "identical"
    error = max(abs(m - g) for m, g in known) / amplitude if amplitude else float("inf")
    return error, "rounding" if error <= rounding * max(epsilon(target.dtype), epsilon(golden.dtype)) else "point"
