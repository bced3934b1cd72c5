"""Two tensor files, and the weights of two dumps."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite, isnan, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twinprobe._align.auto.row_links import merged
from twinprobe._align.calls import epsilon
from twinprobe._align.ops.table import read_table
from twinprobe._compare.llm.job import LlmComparison, LlmRequest, side_of, summary_of
from twinprobe._compare.llm.load import apply_scale, is_quantised
from twinprobe._compare.llm.rows import OpenedToken, Plan, Rows, make_plan, rows_of
from twinprobe._compare.llm.table import METRICS, first_of, judge_statistics
from twinprobe._compare.llm.token import pair_all
from twinprobe._judge.origin import Divergence, RunInfo
from twinprobe._judge.verdicts import EPSILONS, RULES, WARNING, Judged, Thresholds
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
    for path in (request.target, request.golden):
        if not path.exists():
            raise BadInput("does not exist", where=path)
    files = request.target.is_file(), request.golden.is_file()
    if files[0] != files[1]:
        file, folder = (request.target, request.golden) if files[0] else (request.golden, request.target)
        raise BadInput(f"is a file, but {folder} is a folder", where=file, hint="give two folders or two tensor files")
    return all(files)


def compare_files(request: LlmRequest) -> dict[str, object]:
    """Compare two tensor files: the columns of the report for this one pair."""
    target, golden = (open_llm_tensor(path.absolute().parent, path.name) for path in (request.target, request.golden))
    metrics = measure_llm_pair(target, golden)
    values = _row(("golden", request.golden, golden), ("my", request.target, target), metrics=metrics)
    verdict, reason = verdict_of(metrics, (target.dtype, golden.dtype), request.thresholds)
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

    folders = [_weights(path) for path in (request.target, request.golden)]
    target_names, golden_names = ({file.name for file in folder.glob("*.pth")} for folder in folders)
    # Scales and offsets belong to the weight that they scale.
    names = sorted(name for name in target_names & golden_names if not name.endswith(("_scale.pth", "_offset.pth")))
    if not names:
        raise NothingToCompare(f"no weight has a counterpart in {folders[1]}", where=folders[0])
    rows = [_weight_row(name, folders, request.thresholds) for name in names]
    table = pl.DataFrame(rows, infer_schema_length=None)
    target_side, golden_side = (RunInfo(str(folder), TORCH, "weights", "", 0, len(names)) for folder in folders)
    both = ((folders[0], target_names - golden_names), (folders[1], golden_names - target_names))
    notes = [f"only in {folder}: {', '.join(sorted(left)[:4])}" for folder, left in both if left]
    summary = summary_of("llm weight", (target_side, golden_side), table, len(names), notes, _unread(table))
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
        target, golden = (_weight(folder, name) for folder in folders)
        metrics = measure_llm_pair(target, golden)
    except DamagedTensor as damage:
        reason = f"{RULES['unreadable'].words}: {damage}"
        return row | {"cmp_fail_reason": str(damage), "Relative Error": None, "Result": WARNING, "Reason": reason}
    row |= _row(("golden", folders[1] / name, golden), ("my", folders[0] / name, target), metrics=metrics)
    verdict, reason = verdict_of(metrics, (target.dtype, golden.dtype), limits)
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


def _row(*sides: tuple[str, Path, HostTensor], metrics: LlmMetrics) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for who, path, tensor in sides:
        basics = metrics.golden if who == "golden" else metrics.target
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
    target, golden = open_llm_dump(request.target), open_llm_dump(request.golden)
    pairs, notes, lost = pair_all(target, golden)
    records: list[dict[str, Any]] = []
    plans: dict[tuple[int, int], Plan] = {}
    first: Divergence | None = None
    for _, token, golden_token in pairs:
        tokens = StatisticsToken(target, token), StatisticsToken(golden, golden_token)
        key = token.model, golden_token.model
        if key not in plans:
            plans[key] = make_plan(*tokens, table)
        rows = rows_of(plans[key], tokens[0].files, tokens[1].files, request.level)
        found, judged = _records(token.label, len(records), plans[key], rows, tokens, request)
        index = judged.first_row
        if first is None and index is not None:
            first = first_of(token.label, plans[key], rows[index], index, judged)
            paths = tokens[0].paths(rows[index].target), tokens[1].paths(rows[index].golden)
            first = replace(first, row=paths[0], golden_row=paths[1], order=len(records) + index)
        records += found
    if not any(record["Matched By"] for record in records):
        raise NothingToCompare(f"nothing has a counterpart in {request.golden}", where=request.target)
    frame = pl.DataFrame(records, infer_schema_length=None)
    counts = [int((frame[column] != "").sum()) for column in ("my_data_path", "golden_data_path", "Matched By")]
    target_side = side_of(target, request.target, "statistics", counts[0])
    golden_side = side_of(golden, request.golden, "statistics", counts[1])
    notes = [*table.notes, *target.notes, *golden.notes, *notes, *lost]
    summary = summary_of("llm statistics", (target_side, golden_side), frame, counts[2], notes, _unread(frame))
    return LlmComparison(frame, replace(summary, first=first), lost)


def _records(
    token: str, number: int, plan: Plan, rows: Rows, tokens: tuple[StatisticsToken, StatisticsToken],
    request: LlmRequest,
) -> tuple[list[dict[str, Any]], Judged]:  # fmt: skip
    """The rows of a token as the report shows them, and what the judge says of them."""
    known: tuple[list[Recorded | None], list[Recorded | None]] = [], []
    faults: dict[int, str] = {}
    for index, row in enumerate(rows):
        for token_side, files, found in zip(tokens, (row.target, row.golden), known, strict=True):
            try:
                found.append(token_side.merged(files) if row.target and row.golden else None)
            except DamagedTensor as damage:
                found.append(None)
                faults.setdefault(index, f"{RULES['unreadable'].words}: {damage}")
    judged = judge_statistics(tokens[0].folder.root / tokens[0].folder.folder, plan, rows, known, request.thresholds)
    records = []
    for index, (row, target, golden) in enumerate(zip(rows, *known, strict=True)):
        record: dict[str, Any] = {
            "token_id": token,
            "data_id": number + index,
            "golden_data_path": tokens[1].paths(row.golden),
            "golden_op_type": row.golden_type,
            "my_data_path": tokens[0].paths(row.target),
            "my_op_type": row.target_type,
        }
        for at, stat in enumerate(STATS):
            m, g = (side.values[at] if side is not None else None for side in (target, golden))
            gap = abs(m - g) if m is not None and g is not None else None
            record[f"{stat}_stat_absolute_error"] = gap
            record[f"{stat}_stat_relative_error"] = None if gap is None else gap / max(abs(g or 0.0), SMALLEST)
        error = float(judged.error[index])
        record |= {"Matched By": row.rule, "Relative Error": None if isnan(error) else error}
        records.append(record | {"Result": judged.verdict[index], "Reason": faults.get(index, judged.reason[index])})
    return records, judged
