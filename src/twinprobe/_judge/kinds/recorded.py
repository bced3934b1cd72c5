"""What two runs recorded of the call at which they part and of what is near it, as the rules of kinds read it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._align.calls import all_dims, dims
from twinprobe._runs import table as tables
from twinprobe._runs.run import Run
from twinprobe._runs.table import STATS, TENSOR, VALUE

_NEARBY = 400  # rows before and after: a layer of a transformer with its functions


@dataclass(frozen=True, slots=True)
class Kind:
    """One answer, stated only where it holds."""

    name: str  # one of those that docs/metrics.md lists
    sentence: str
    confidence: float
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Side:
    """What one run recorded of a value. None where it did not."""

    dtype: str = ""
    shape: tuple[int, ...] = ()
    max: float | None = None
    min: float | None = None
    mean: float | None = None
    norm: float | None = None
    value: str | None = None  # the text of a plain argument: a number, a flag, a string, None
    sketch: NDArray[Any] | None = None  # 64 signed sums: of 16 blocks, four each
    l1: float | None = None
    zeros: int | None = None  # how many elements are zero
    not_finite: int | None = None  # how many elements are NaN or infinite
    stored: NDArray[Any] | None = None  # the sketch of a tensor that is compared in another order than it is stored in


INPUT, PARAMETER, OUTPUT, GRADIENT = "input", "parameter", "output", "gradient"


@dataclass(frozen=True, slots=True)
class Row:
    """A value of the call in both runs."""

    name: str  # as a user knows it: ``scale``, ``input.0``, ``weight``
    role: str  # INPUT, PARAMETER, OUTPUT or GRADIENT (of a parameter, or what a backward call hands on)
    target: Side | None
    golden: Side | None
    expected: float = 0.0  # the relative error that noise explains


@dataclass(frozen=True, slots=True)
class Suspect:
    """The call at which the runs part, with all that is known of it."""

    name: str  # the call's full name, as in the dump
    rows: Sequence[Row]
    presence: str = "both"  # both, target (an extra call) or golden (a missing one)
    parameters: Sequence[tuple[str, Side]] = ()
    """All parameters of the golden run, and of its other ranks, with full names: to find one that was exchanged."""
    tensors: Sequence[tuple[str, Side]] = ()
    """Tensors of the golden run near this call, nearest first: one of them may be the difference, or what came in."""
    counts: Mapping[str, int] = field(default_factory=dict)  # that a factor may come from: ``{"world size": 8}``
    unpaired: Sequence[str] = ()
    """Calls near this one that only the other run makes, by name: then a call was replaced, or moved."""
    from_outside: bool = False  # the inputs that differ come from no recorded call: the batch, a mask, a state
    place: str = ""  # the path of the enclosing module, or ``optimizer``
    kept: str = ""  # what speaks for the gradient of an earlier pass in what an optimiser reads


def shown_value(row: dict[str, Any], side: str) -> str:
    """One side of a row in words: a plain value, or the shape of a tensor."""
    text, number = row[f"{side}_max_text"], row[f"{side}_max"]
    if row[f"{side}_kind"] == TENSOR:
        return f"a tensor {row[f'{side}_shape']}"
    return str(text if text is not None else row[f"{side}_meaning"] or (f"{number:.6g}" if number is not None else "-"))


def sketches_of(run: Run, pairs: Any, side: str, rows: list[int]) -> Any:
    """The sketches of one side of these rows; None where the run has none."""
    if run.sketches is None:
        return None
    return run.sketches.of(pairs[f"{side}_row"].gather(rows).fill_null(-1).to_numpy())


def side_of(row: dict[str, Any], side: str, sketches: Any, number: int) -> Side | None:
    """One side of a row, with the sketch at this place; None where that run has no such value."""
    if row[f"{side}_row"] is None:
        return None
    kind, facts = row[f"{side}_kind"], dict[str, Any]()
    if kind == TENSOR:
        facts = {stat: row[f"{side}_{stat}"] for stat in STATS}
        single = ";" not in str(row[f"{side}_name"])  # several tensors compared as one have no sketch of their own
        if sketches is not None and sketches["flags"][number] and single:
            found = sketches[number]
            facts |= {"zeros": int(found["zeros"]), "not_finite": int(found["nan"] + found["inf"])}
            # A sketch tells elements apart by their place.
            facts["sketch" if row.get("turn") is None else "stored"] = found["sums"]
            if not facts["not_finite"] and found["count"] and "float" in str(row[f"{side}_dtype"]).lower():
                # Of 16-bit tensors, dump.json has three digits.
                facts |= {"l1": float(found["l1"]), "norm": float(found["norm"]),
                          "mean": float(found["total"] / found["count"])}  # fmt: skip
    elif kind == VALUE:
        facts = {"value": shown_value(row, side)}
    shape = dims(row[f"{side}_shape" if row.get("turn") is None else "g_shape"]) or ()  # as it is compared
    return Side(dtype=str(row[f"{side}_dtype"] or ""), shape=shape, **facts)


def parameters_of(run: Run) -> list[tuple[str, Side]]:
    """All parameters of a run, by their full names."""
    import polars as pl

    table = run.table.with_row_index("at").filter((pl.col("role") == tables.PARAMETER) & (pl.col("kind") == TENSOR))
    known = all_dims(table["shape"].unique().to_list())
    rows = table["at"].to_numpy().astype(np.int64)
    sketches = (
        [row["sums"] if row["flags"] else None for row in run.sketches.of(rows)] if run.sketches else [None] * len(rows)
    )
    wanted = table.select("name", "dtype", "shape", *STATS).iter_rows()
    return [
        (name, Side(str(dtype or ""), known[shape] or (), **dict(zip(STATS, stats, strict=True)), sketch=sketch))
        for (name, dtype, shape, *stats), sketch in zip(wanted, sketches, strict=True)
    ]


def nearby_of(run: Run, row: dict[str, Any]) -> list[tuple[str, Side]]:
    """Other tensors of the same shape around a row of a run, nearest first."""
    at = row["g_row"]
    if at is None or row["g_shape"] is None or run.sketches is None:  # the pieces of some values fit no shape
        return []
    first = max(0, at - _NEARBY)
    table = run.table.slice(first, 2 * _NEARBY).with_row_index("at", first)
    table = table.filter((table["kind"] == TENSOR) & (table["shape"] == (row["g_shape"] or "")) & (table["at"] != at))
    sketches = run.sketches.of(table["at"].to_numpy().astype(np.int64))
    shape = dims(row["g_shape"]) or ()
    found = [
        (abs(number - at), name, Side(str(dtype or ""), shape, sketch=sketch["sums"]))
        for (number, name, dtype), sketch in zip(table.select("at", "name", "dtype").iter_rows(), sketches, strict=True)
        if sketch["flags"]
    ]
    return [(name, side) for _, name, side in sorted(found, key=lambda one: one[0])]


def sizes_of(run: Run) -> dict[str, int]:
    """The sizes of a parallel layout, which a factor may be."""
    return {f"{name} ranks": int(size) for name, size in re.findall(r"(\w+)=(\d+)", run.arrangement)}
