"""Two tensor files, and the weights of two dumps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twinprobe.align.dtypes import epsilon
from twinprobe.compare.llm.job import LlmComparison, LlmRequest
from twinprobe.compare.llm.quant import apply_scale, is_quantised
from twinprobe.compare.llm.table import METRICS
from twinprobe.errors import BadInput, DamagedTensor, NothingToCompare
from twinprobe.judge.rules import ERROR, PASS, RULES, WARNING
from twinprobe.judge.summary import Side, Summary
from twinprobe.judge.thresholds import Thresholds
from twinprobe.measure.decode import FLOAT32, numbers
from twinprobe.measure.llm_metrics import LlmMetrics, measure_llm_pair
from twinprobe.runs.host_tensor import HostTensor
from twinprobe.runs.llm.layout import TORCH, find_layout
from twinprobe.runs.llm.tensor import open_llm_tensor

if TYPE_CHECKING:
    pass


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
    verdict, reason = verdict_of(metrics, _coarser(my, golden), request.thresholds)
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
    mine, theirs = ({file.name for file in folder.glob("*.pth")} for folder in folders)
    # Scales and offsets belong to the weight that they scale.
    names = sorted(name for name in mine & theirs if not name.endswith(("_scale.pth", "_offset.pth")))
    if not names:
        raise NothingToCompare(f"no weight has a counterpart in {folders[1]}", where=folders[0])
    rows = [_weight_row(name, folders, request.thresholds) for name in names]
    table = pl.DataFrame(rows, infer_schema_length=None)
    verdicts = {name: int((table["Result"] == name).sum()) for name in (PASS, WARNING, ERROR)}
    my_side, golden_side = (Side(str(folder), TORCH, "weights", "", 0, len(names)) for folder in folders)
    both = ((folders[0], mine - theirs), (folders[1], theirs - mine))
    notes = [f"only in {folder}: {', '.join(sorted(left)[:4])}" for folder, left in both if left]
    unread = int(table["Reason"].str.starts_with(RULES["unreadable"].words).sum())
    count = len(names)
    return LlmComparison(
        table, Summary("llm weight", my_side, golden_side, count, count, 0, 0, verdicts, None, notes, unread=unread)
    )


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
    verdict, reason = verdict_of(metrics, _coarser(my, golden), limits)
    extra = {"cmp_fail_reason": metrics.reason, "Relative Error": metrics.relative_norm}
    return row | extra | {"Result": verdict, "Reason": reason}


def _weight(folder: Path, name: str) -> HostTensor:
    tensor = open_llm_tensor(folder, name)
    stem = name.removesuffix(".pth")
    if not is_quantised([tensor]) or not (folder / f"{stem}_scale.pth").exists():
        return tensor
    scale = open_llm_tensor(folder, f"{stem}_scale.pth")
    factors = numbers(scale.dtype, scale.data, FLOAT32)
    if not (folder / f"{stem}_offset.pth").exists():
        return apply_scale(tensor, factors, None)
    offset = open_llm_tensor(folder, f"{stem}_offset.pth")
    return apply_scale(tensor, factors, numbers(offset.dtype, offset.data, FLOAT32))


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


def _coarser(my: HostTensor, golden: HostTensor) -> float:
    return max(epsilon(my.dtype), epsilon(golden.dtype))


def verdict_of(metrics: LlmMetrics, eps: float, limits: Thresholds) -> tuple[str, str]:
    """The verdict of a pair that belongs to no call."""
    error = metrics.relative_norm
    rule = "point"
    if metrics.identical:
        rule = "identical"
    elif metrics.nonfinite:
        rule = "nonfinite"
    elif error is None:
        rule = "shape"
    elif error <= limits.rounding * eps and np.isfinite(error):
        rule = "rounding"
    return RULES[rule].severity, RULES[rule].words.replace("saved value", "tensor")
