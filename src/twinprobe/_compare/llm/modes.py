"""Two tensor files, and the weights of two dumps."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Any

from twinprobe._align.calls import epsilon
from twinprobe._compare.llm.job import LlmComparison, summary_of
from twinprobe._compare.llm.load import apply_scale, is_quantised
from twinprobe._compare.llm.token import METRICS, LlmRequest
from twinprobe._judge.rules import RULES, WARNING, Thresholds
from twinprobe._judge.summary import RunInfo
from twinprobe._measure.elements import FLOAT32, numbers
from twinprobe._measure.llm_metrics import LlmMetrics, measure_llm_pair
from twinprobe._runs.llm.dump import find_layout
from twinprobe._runs.llm.files import TORCH, open_llm_tensor
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe.errors import BadInput, DamagedTensor, NothingToCompare


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
    verdict, reason = verdict_of(metrics, (target.dtype, golden.dtype), request.limits)
    return values | {
        "cmp_fail_reason": metrics.reason, "max_absolute_error_everywhere": metrics.max_abs_all,
        "relative_error": metrics.relative_norm, "result": verdict, "reason": reason,
    }  # fmt: skip


def compare_weights(request: LlmRequest) -> LlmComparison:
    """Compare the weights that two torch dumps keep; integer weights are dequantised by their scale and offset."""
    import polars as pl

    folders = [_weights(path) for path in (request.target, request.golden)]
    target_names, golden_names = ({file.name for file in folder.glob("*.pth")} for folder in folders)
    # Scales and offsets belong to the weight that they scale.
    names = sorted(name for name in target_names & golden_names if not name.endswith(("_scale.pth", "_offset.pth")))
    if not names:
        raise NothingToCompare(f"no weight has a counterpart in {folders[1]}", where=folders[0])
    rows = [_weight_row(name, folders, request.limits) for name in names]
    table = pl.DataFrame(rows, infer_schema_length=None)
    target_side, golden_side = (RunInfo(str(folder), TORCH, "weights", "", 0, len(names)) for folder in folders)
    both = ((folders[0], target_names - golden_names), (folders[1], golden_names - target_names))
    notes = [f"only in {folder}: {', '.join(sorted(left)[:4])}" for folder, left in both if left]
    unread = int(table["Reason"].str.starts_with(RULES["unreadable"].words).sum())
    summary = summary_of("llm weight", (target_side, golden_side), table, len(names), notes, unread)
    return LlmComparison(table, summary)


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
    elif error <= (limits.rounding or 0.0) * max(map(epsilon, dtypes)) and isfinite(error):
        rule = "rounding"
    return RULES[rule].severity, RULES[rule].words.replace("saved value", "tensor")
