"""Where NaN, infinity or a jump in size begins: three levels of alarm per call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from twinprobe.judge.origin import BUFFERED, UNINITIALISED
from twinprobe.runs.leaf import TENSOR, VALUE
from twinprobe.runs.names import parse_op
from twinprobe.runs.run import Run
from twinprobe.runs.table import FLOAT, INPUT, INT, OUTPUT, PARAMETER

if TYPE_CHECKING:
    import polars as pl

CRITICAL, HIGH, MEDIUM = "critical", "high", "medium"
_JUMP = 100.0

Bools = NDArray[np.bool_]


def overflow_levels(run: Run) -> list[str | None]:
    """The alarm of each call.

    critical: sound inputs, an output that is not; high: neither is sound, or the largest output norm is over a
    hundred times the largest input norm; medium: only the inputs are not. Calls whose memory nobody has written yet
    and calls that were given an infinity on purpose raise none.
    """
    table = run.table
    count = len(run.ops)
    op = table["op"].to_numpy()
    role = table["role"].to_numpy()
    tensor = (table["kind"] == TENSOR).to_numpy()
    bad = tensor & ~(np.isfinite(_known(table, "max")) & np.isfinite(_known(table, "min")))
    given = np.isin(role, (INPUT, PARAMETER))
    before, after = _any(op, bad & given, count), _any(op, bad & (role == OUTPUT), count)
    norm = _known(table, "norm")
    small, large = (_largest(op, norm, tensor & mask, count) for mask in (role == INPUT, role == OUTPUT))
    with np.errstate(divide="ignore", invalid="ignore"):
        jump = (large / small > _JUMP) & (small > 0)
    silent, buffered = _silent(run)
    # An infinity that the program itself passes in (a mask's fill value) is no accident.
    plain = (table["kind"] == VALUE).to_numpy() & given & ~np.isfinite(_known(table, "max"))
    silent |= _any(op, plain, count)
    before &= ~buffered
    jump &= ~buffered
    levels = np.select([after & ~before, (after & before) | jump, before], [3, 2, 1], default=0)
    levels[silent] = 0
    words = (None, MEDIUM, HIGH, CRITICAL)
    return [words[level] for level in levels.tolist()]


def _known(table: pl.DataFrame, stat: str) -> NDArray[np.float64]:
    """A statistic; where it was recorded as no number at all it says nothing and counts as sound."""
    numbers = table[stat].to_numpy()
    recorded = table[f"{stat}_kind"].is_in([FLOAT, INT]).to_numpy()
    return np.where(recorded, numbers, 0.0)


def _any(op: NDArray[np.int32], mask: Bools, count: int) -> Bools:
    found = np.zeros(count, dtype=bool)
    found[op[mask]] = True
    return found


def _largest(op: NDArray[np.int32], norm: NDArray[np.float64], mask: Bools, count: int) -> NDArray[np.float64]:
    most = np.zeros(count)
    np.fmax.at(most, op[mask], norm[mask])
    return most


def _silent(run: Run) -> tuple[Bools, Bools]:
    silent, buffered = np.zeros(len(run.ops), dtype=bool), np.zeros(len(run.ops), dtype=bool)
    for at, name in enumerate(run.ops):
        op = parse_op(name)
        silent[at] = not op.is_module and op.body in UNINITIALISED
        buffered[at] = op.body in BUFFERED
    return silent, buffered
