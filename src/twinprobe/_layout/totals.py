"""The norms that all gradients of a step have together: of which each rank knows its own, or by which it clips."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from twinprobe._layout.whole import Whole
from twinprobe._layout.wrong_ranks import numbers_of
from twinprobe._runs.names import TOTAL_NORM

_SAME_NORM = 1e-3  # relative: copies of gradients have norms that differ by rounding


def total_norms(whole: Whole, norms: Mapping[int, float | None]) -> dict[int, float | None]:
    """The norm of all gradients, by the row that each rank has of its own; None where one of them is not known.

    ``norms``: of gradients that were put together.
    """
    table, ops, suffixes = whole.table, whole.pieces["op"].to_list(), whole.pieces["suffix"].to_list()
    totals: dict[str, float] = defaultdict(float)
    rows: dict[str, int] = {}
    unknown: set[str] = set()
    for row, (op, suffix) in enumerate(zip(ops, suffixes, strict=True)):
        step = ".".join(op.rsplit(".", 3)[1:])
        if op.startswith(TOTAL_NORM):
            rows |= {step: row} if suffix == ".output.0" else {}
        elif suffix == ".input.0":
            norm = norms.get(row, table["norm"][row])
            unknown |= {step} if norm is None else set()
            totals[step] += (norm or 0.0) ** 2
    lacking = len(whole.ranks) < whole.layout.rank_size
    return {row: None if lacking or step in unknown else totals[step] ** 0.5 for step, row in rows.items()}


def own_norms(whole: Whole) -> list[str]:
    """Whether data parallel ranks clip by different norms, in words.

    They all need that of the reduced gradients. One of their own comes of clipping before the reduction, or of a shard.
    """
    layout = whole.layout
    if layout.dp < len(whole.ranks):
        return []
    for row, name in enumerate(whole.table["name"].to_list()):
        if name.startswith(TOTAL_NORM) and name.endswith(".input.0"):
            pieces = whole.pieces_of(row)
            found = [piece.stats[0] for piece in pieces if piece.stats[0] is not None]
            if len(found) == len(pieces) > 1 and max(found) - min(found) > _SAME_NORM * max(found):
                shown = ", ".join(f"{norm:.4g}" for norm in found)
                return [
                    f"ranks {numbers_of([piece.rank for piece in pieces])} clip by norms of their own ({shown}): of "
                    "gradients that were not reduced yet, or of a shard"
                ]
    return []
