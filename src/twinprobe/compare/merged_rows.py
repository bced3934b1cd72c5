"""Rows of the pair table that stand for several recorded values of one side: fused against split layers.

Their statistics are those of the concatenation, which follow from the parts' own; no order of the parts is assumed, so
a projection that interleaves its heads compares like one that does not. Where tensors were kept, they are concatenated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from twinprobe.align.auto.row_links import MERGED, merged
from twinprobe.align.pairs import Groups
from twinprobe.align.shapes import Shape, dims
from twinprobe.runs.run import Run
from twinprobe.runs.table import ABSENT, FLOAT, STATS

if TYPE_CHECKING:
    import polars as pl

CONCATENATED = "concatenated"


def with_merged(frame: pl.DataFrame, target: Run, golden: Run, groups: Groups) -> pl.DataFrame:
    """The pair table with the rows at these places merged on the side that has several.

    Where all their tensors were kept, ``joined`` is set, and the files of a side stand in one text, as its names do.
    """
    changes: dict[str, dict[int, Any]] = {}
    for place, sides in groups.items():
        for prefix, run, rows in zip(("t_", "g_"), (target, golden), sides, strict=True):
            if len(rows) > 1:
                other = (golden if prefix == "t_" else target).table["shape"][sides[prefix == "t_"][0]]
                for column, value in _merged_row(run.table, list(rows), dims(other)).items():
                    changes.setdefault(prefix + column, {})[place] = value
    frame = frame.with_columns(_changed(frame, changes))
    kept = [place for place in groups if None not in (frame["t_file"][place], frame["g_file"][place])]
    rules = frame["rule"].to_list()
    told = {place: rules[place].replace(MERGED, CONCATENATED) for place in kept}
    return frame.with_columns(_changed(frame, {"joined": dict.fromkeys(kept, True), "rule": told}))


def _changed(frame: pl.DataFrame, changes: Mapping[str, Mapping[int, Any]]) -> list[pl.Series]:
    """Columns with other values at some places."""
    import polars as pl

    columns = []
    for name, values in changes.items():
        whole = frame[name].to_list()
        for place, value in values.items():
            whole[place] = value
        columns.append(pl.Series(name, whole, dtype=frame[name].dtype))
    return columns


def _merged_row(table: pl.DataFrame, rows: list[int], whole: Shape | None) -> dict[str, Any]:
    part = table[rows]
    shapes = [dims(text) for text in part["shape"].to_list()]
    row: dict[str, Any] = {
        "name": ";".join(part["name"].to_list()), "shape": _joined_shape(shapes, whole), "digest": None,
        "file": ";".join(part["file"].to_list()) if part["file"].null_count() == 0 else None,
    }  # fmt: skip
    known = all((part[f"{stat}_kind"] == FLOAT).all() for stat in STATS) and None not in shapes
    values = (None,) * len(STATS)
    if known:
        sizes = np.array([np.prod(shape, dtype=np.float64) for shape in shapes if shape is not None])
        values = merged(part.select(STATS).to_numpy(), sizes)  # type: ignore[assignment]
    for stat, value in zip(STATS, values, strict=True):
        row |= {stat: value, f"{stat}_kind": FLOAT if known else ABSENT, f"{stat}_text": None}
    return row


def _joined_shape(shapes: list[Shape | None], whole: Shape | None) -> str | None:
    """The shape of the concatenation: that of the whole where some dimension and layout give it, else a guess.

    A guess is along the dimension in which the parts differ, else along the first or last.
    """
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or len({len(shape) for shape in known}) != 1 or not known[0]:
        return None
    for axis in range(len(known[0])):
        widths = [shape[axis] for shape in known]
        others = {shape[:axis] + shape[axis + 1 :] for shape in known}
        if whole is not None and len(others) == 1 and sorted((*others.pop(), sum(widths))) == sorted(whole):
            return str(list(whole))
    differing = [axis for axis in range(len(known[0])) if len({shape[axis] for shape in known}) > 1]
    if len(differing) > 1:
        return None
    # Parameters are stored [out, in]; activations have their features last.
    axis = differing[0] if differing else (0 if len(known[0]) <= 2 else len(known[0]) - 1)
    joined = list(known[0])
    joined[axis] = sum(shape[axis] for shape in known)
    return str(joined)
