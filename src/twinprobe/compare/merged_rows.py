"""Rows of the pair table that stand for several recorded values of one side: fused against split layers.

Their statistics are those of the concatenation, which follow from the parts' own; no order of the parts is assumed, so
a projection that interleaves its heads compares like one that does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from twinprobe.align.auto.prints import dims
from twinprobe.align.auto.row_links import merged
from twinprobe.align.pairs import Groups
from twinprobe.runs.run import Run
from twinprobe.runs.table import ABSENT, FLOAT, STATS

if TYPE_CHECKING:
    import polars as pl


def with_merged(frame: pl.DataFrame, target: Run, golden: Run, groups: Groups) -> pl.DataFrame:
    """The pair table with the rows at these places merged on the side that has several."""
    import polars as pl

    changes: dict[str, dict[int, Any]] = {}
    for place, sides in groups.items():
        for prefix, run, rows in zip(("t_", "g_"), (target, golden), sides, strict=True):
            if len(rows) > 1:
                for column, value in _merged_row(run.table, list(rows)).items():
                    changes.setdefault(prefix + column, {})[place] = value
    columns = []
    for name, values in changes.items():
        whole = frame[name].to_list()
        for place, value in values.items():
            whole[place] = value
        columns.append(pl.Series(name, whole, dtype=frame[name].dtype))
    return frame.with_columns(columns)


def _merged_row(table: pl.DataFrame, rows: list[int]) -> dict[str, Any]:
    part = table[rows]
    shapes = [dims(text) for text in part["shape"].to_list()]
    row: dict[str, Any] = {
        "name": ";".join(part["name"].to_list()), "shape": _joined_shape(shapes), "digest": None, "file": None,
    }  # fmt: skip
    known = all((part[f"{stat}_kind"] == FLOAT).all() for stat in STATS) and None not in shapes
    values = (None,) * len(STATS)
    if known:
        sizes = np.array([np.prod(shape, dtype=np.float64) for shape in shapes if shape is not None])
        values = merged(part.select(STATS).to_numpy(), sizes)  # type: ignore[assignment]
    for stat, value in zip(STATS, values, strict=True):
        row |= {stat: value, f"{stat}_kind": FLOAT if known else ABSENT, f"{stat}_text": None}
    return row


def _joined_shape(shapes: list[tuple[int, ...] | None]) -> str | None:
    """The shape of the concatenation, along the dimension in which the parts differ, else along the first or last."""
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or len({len(shape) for shape in known}) != 1 or not known[0]:
        return None
    differing = [axis for axis in range(len(known[0])) if len({shape[axis] for shape in known}) > 1]
    if len(differing) > 1:
        return None
    # Parameters are stored [out, in]; activations have their features last.
    axis = differing[0] if differing else (0 if len(known[0]) <= 2 else len(known[0]) - 1)
    joined = list(known[0])
    joined[axis] = sum(shape[axis] for shape in known)
    return str(joined)
