"""Pictures of what is inside the tensors that differ: for the report of a comparison, and for the viewer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
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
from twinprobe.errors import TwinProbeError

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


Suspect = tuple[str, str, str, str]
"""A key of the caller's own, the files of both tensors, and the shape as it was recorded."""


def pictures(folders: Sequence[Path], suspects: Iterable[Suspect]) -> dict[str, dict[str, Any]]:
    """Pictures of the first of these, by key; those whose tensors were not kept, or cannot be read, have none."""
    found: dict[str, dict[str, Any]] = {}
    left = _MOST_ELEMENTS
    for key, target, golden, shape in suspects:
        if len(found) == _MOST_ROWS or left < 0:
            break
        try:
            found[key] = picture(folders, (target, golden))
        except (TwinProbeError, OSError):
            continue  # the row's own reason says what could not be read
        left -= prod(map(int, re.findall(r"\d+", shape)))
    return found


def table_pictures(table: pl.DataFrame, summary: Summary) -> dict[str, dict[str, Any]]:
    """Pictures for a report, by row: the first divergence, then what arose by itself, then the rest that differs."""
    import polars as pl

    suspect = table.with_row_index("row").filter(
        (pl.col("Result") != "pass") & pl.col("Data_name").str.contains("', '")
    )
    first = summary.first.order if summary.first else -1
    suspect = suspect.sort(pl.col("row") != first, pl.col("Origin") != "injected", "row").head(4 * _MOST_ROWS)
    columns = suspect.select(pl.col("row").cast(pl.String), "Data_name", "Bench Tensor Shape").iter_rows()
    files = ((row, _FILES.fullmatch(names), shape) for row, names, shape in columns)
    folders = [Path(side.path).parent / TENSOR_FOLDER for side in (summary.target, summary.golden)]
    return pictures(folders, ((row, *match.group("target", "golden"), shape) for row, match, shape in files if match))
