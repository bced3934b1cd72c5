"""Pictures of what is inside the tensors that differ: for the report of a comparison, and for the viewer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinprobe._judge.tensor_kinds import tensor_kinds
from twinprobe._measure.blocks import Cut, block_summary, usual_cut
from twinprobe._measure.elements import FLOAT64, numbers
from twinprobe._runs.dtypes import COMPLEX
from twinprobe._runs.run import TENSOR_FOLDER
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe._runs.tensors.tensor_files import open_named
from twinprobe.errors import BadInput, TwinProbeError

if TYPE_CHECKING:
    import polars as pl

    from twinprobe._judge.origin import Summary

# A report has pictures of this many rows, and reads this many elements for them.
_MOST_ROWS = 24
_MOST_ELEMENTS = 1 << 24
# Beyond this a difference's kind is not looked for: it takes several passes over all elements.
_MOST_OF_A_KIND = 1 << 20
_FILES = re.compile(r"\['(?P<target>[^']+)', '(?P<golden>[^']+)'\]")
_DRAWN = ("factor", "offset", "axis", "by", "indices", "rows", "order", "side")


def picture(
    folders: Sequence[Path], names: Sequence[str], cut: Cut | None = None, *, most: tuple[int, int] = (24, 36)
) -> dict[str, Any]:
    """What is inside two tensors of two dumps, and which kind of difference it is; BadInput says why there is none."""
    target, golden = (open_named(folder, name) for folder, name in zip(folders, names, strict=True))
    if cut is not None:
        return {**block_summary(target, golden, cut, most=most), "kinds": []}
    kinds, cut = _kinds(target, golden), usual_cut(target.shape or (1,))
    axis = kinds[0].get("axis") if kinds else None
    if isinstance(axis, int) and axis not in (cut.rows, cut.columns):
        cut = replace(cut, rows=axis)  # so that what is said of an axis is seen
    return {**block_summary(target, golden, cut, most=most), "kinds": kinds}


def _kinds(target: HostTensor, golden: HostTensor) -> list[dict[str, Any]]:
    if target.shape != golden.shape or prod(target.shape) > _MOST_OF_A_KIND or {target.dtype, golden.dtype} & COMPLEX:
        return []
    arrays = [numbers(side.dtype, side.data, FLOAT64).reshape(side.shape) for side in (target, golden)]
    return [
        {"name": kind.name, "sentence": kind.sentence,
         **{key: kind.evidence[key] for key in _DRAWN if key in kind.evidence}}
        for kind in tensor_kinds(*arrays)[:3]
    ]  # fmt: skip


def pictures(table: pl.DataFrame, summary: Summary) -> dict[str, dict[str, Any]]:
    """Pictures of the rows that a reader looks at first, by row: the first divergence, then what arose by itself."""
    import polars as pl

    if "Data_name" not in table.columns:
        return {}
    folders = [Path(side.path).parent / TENSOR_FOLDER for side in (summary.target, summary.golden)]
    suspect = table.with_row_index("row").filter((pl.col("Result") != "pass") & (pl.col("Data_name") != ""))
    order = suspect.sort(pl.col("Origin") != "injected", "row")["row"].head(_MOST_ROWS).to_list()
    rows = list(dict.fromkeys([*([summary.first.order] if summary.first else []), *order]))
    found: dict[str, dict[str, Any]] = {}
    left = _MOST_ELEMENTS
    for row in rows[:_MOST_ROWS]:
        files = _FILES.fullmatch(table["Data_name"][row])
        shape = re.findall(r"\d+", table["Bench Tensor Shape"][row])
        if files is None or "-1" in files.groups() or left < 0:
            continue
        left -= min(prod(map(int, shape)), 1 << 22)
        try:
            found[str(row)] = picture(folders, files.group("target", "golden"))
        except (TwinProbeError, OSError, BadInput):
            continue  # the row's own reason says what could not be read
    return found
