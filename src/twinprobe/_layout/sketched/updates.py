"""Whose shard of what an optimizer reads is wrong: its file has statistics alone, the dumps beside it tell the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isclose, prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._align.calls import bare_path, dims, epsilon
from twinprobe._layout.pieces import Piece, Placement, rows_of
from twinprobe._layout.ranks import gradients_of
from twinprobe._layout.sketched.blocks import CLOSE, sketch_of
from twinprobe._layout.whole import Whole
from twinprobe._layout.wrong_ranks import numbers_of, shards_of
from twinprobe._measure.sketch import block_length
from twinprobe._runs.names import OPTIMIZER, parse_op
from twinprobe._runs.run import DUMP, Run, open_run
from twinprobe._runs.sketches import BLOCKS
from twinprobe._runs.table import GRADIENT, PARAMETER, STATS
from twinprobe.errors import TwinProbeError

_SAME = 1e-5  # relative: of statistics in float32, multiplied
_MOST_ELEMENTS = 1 << 26  # of a value whose ranks are asked
_GIVEN, _BEFORE = ".input.0", ".parameters.before"


def odd_updates(
    whole: Whole, other: Run, rows: Sequence[tuple[int, int]], dumps: Mapping[int, Path], golden: Path
) -> list[str]:
    """Of differing gradients and parameters of an optimizer, by their rows and golden's: whose are wrong, in words.

    ``dumps``: the calls of each rank, and of golden.
    """
    found = []
    for row, partner in rows:
        name = whole.table["name"][row]
        words = _since_backward(whole, row, dumps) if name.endswith(_GIVEN) else ""
        words = words or _by_golden_blocks(whole, row, other, partner, golden)
        found += [f"{name}: {words}"] if words else []
    return found


def _since_backward(whole: Whole, row: int, dumps: Mapping[int, Path]) -> str:
    """Whether some ranks' optimizers were given another gradient than their backward passes made, and others not."""
    module, parameter = parameter_of(whole.table["name"][row])
    pieces = whole.pieces_of(row)
    own = [gradients_of(dumps[piece.rank], module, parameter) if piece.rank in dumps else [] for piece in pieces]
    wrong = [at for at, (piece, made) in enumerate(zip(pieces, own, strict=True)) if piece.stats not in made]
    if not all(own) or not 0 < len(wrong) < len(pieces):
        return ""
    norms = [(pieces[at].stats[3], own[at][-1][3]) for at in wrong]
    factors = [mine / made for mine, made in norms if mine is not None and made]
    times = f": {factors[0]:.4g} times that" if len(factors) == len(wrong) == 1 else ""
    ranks = numbers_of(sorted({pieces[at].rank for at in wrong}))
    return f"on rank {ranks} it is not the gradient of the backward pass{times}; on the others it is"


def _by_golden_blocks(whole: Whole, row: int, other: Run, partner: int, golden: Path) -> str:
    """The ranks whose shards have another norm than the blocks of golden's value in their rows."""
    parts = _parts(whole, row, other, partner, golden)
    close = 2 * max(CLOSE, epsilon(other.table["dtype"][partner]))  # of squares
    wrong, unsure = set(), False
    for piece, least, most in parts:
        square = (piece.stats[3] or 0.0) ** 2
        if not least * (1 - close) <= square <= most * (1 + close):
            wrong.add(piece.rank)
        elif most > least * (1 + close):  # blocks that two ranks share
            unsure = True
    told = wrong and len(wrong) < len(whole.ranks)
    return shards_of(sorted(wrong)) + ", perhaps not alone" * unsure if told else ""


def rank_factors(whole: Whole, row: int, other: Run, partner: int, *, copies: bool) -> list[tuple[int, float]]:
    """How many times golden's the gradient of each rank is, if it is a copy, or a part that is known of golden's."""
    pieces, goal, shape = whole.pieces_of(row), other.table["norm"][partner], dims(other.table["shape"][partner])
    if not goal:
        return []
    if not any(whole.placements_of(row)) and all(piece.shape == shape for piece in pieces):
        return [(piece.rank, (piece.stats[3] or 0.0) / goal) for piece in pieces if copies]
    parts = [] if copies else _parts(whole, row, other, partner, other.path.with_name(DUMP))
    return [(piece.rank, (piece.stats[3] or 0.0) / sqrt(least)) for piece, least, most in parts
            if least and most <= least * (1 + CLOSE)]  # fmt: skip


def _parts(whole: Whole, row: int, other: Run, partner: int, golden: Path) -> list[tuple[Piece, float, float]]:
    """Pieces, and what the squares of golden's elements there add up to, at least and at most; none if not known."""
    name, pieces = whole.table["name"][row], whole.pieces_of(row)
    goal, shape = _golden_sketch(other, partner, name, golden), dims(other.table["shape"][partner])
    if goal is None or not shape or goal["whole"] != prod(shape) or prod(shape) > _MOST_ELEMENTS:
        return []
    held = _stretches(pieces, prod(shape))
    if held is None:
        rows = [_rows_held(piece, placement)
                for piece, placement in zip(pieces, whole.placements_of(row), strict=True)]  # fmt: skip
        held = [_of_rows(one, shape) for one in rows if one is not None]
        if len(held) < len(rows):
            return []
    # Clipping has multiplied what its backward pass made.
    scale = (other.table["norm"][partner] / float(goal["norm"])) ** 2 if goal["norm"] else 1.0
    bounds = [_between(goal, elements) for elements in held]
    return [(piece, least * scale, most * scale) for piece, (least, most) in zip(pieces, bounds, strict=True)]


def _stretches(pieces: Sequence[Piece], count: int) -> list[NDArray[np.bool_]] | None:
    """Which elements each rank holds of a value that is cut into stretches one behind the other (FSDP1)."""
    if any(piece.shape is None or len(piece.shape) != 1 for piece in pieces):
        return None
    ends = np.cumsum([prod(piece.shape or ()) for piece in pieces])
    places = np.arange(count)
    held = [(places >= end - prod(piece.shape or ())) & (places < end) for piece, end in zip(pieces, ends, strict=True)]
    return held if ends[-1] == count else None


def parameter_of(name: str) -> tuple[str, str]:
    """The module and the name of a parameter, from a row of its update."""
    path = parse_op(name.removesuffix(_GIVEN).removesuffix(_BEFORE)).body.rpartition(".")[0]
    module, _, parameter = bare_path(path.removeprefix(OPTIMIZER)).rpartition(".")
    return module, parameter


def _golden_sketch(other: Run, partner: int, name: str, golden: Path) -> Any:
    """The sketch of the same value in golden's calls, known by its statistics; a gradient may be a multiple of it."""
    import polars as pl

    try:
        run = open_run(golden)
    except TwinProbeError:
        return None
    module, parameter = parameter_of(name)
    role = GRADIENT if name.endswith(_GIVEN) else PARAMETER
    rows = run.table.filter((pl.col("role") == role) & pl.col("name").str.contains(rf"\.{parameter}(\.\d+)?$"))
    high, low, _, norm = (other.table[stat][partner] or 0.0 for stat in STATS)
    for op, own, *values in rows.select("op", "name", *STATS).iter_rows():
        if bare_path(parse_op(run.ops[op]).body) == module and None not in values and values[3]:
            scale = norm / values[3] if role == GRADIENT else 1.0  # it may be clipped
            if all(isclose(scale * one, goal, rel_tol=_SAME) for one, goal in zip(values, (high, low), strict=False)):
                return sketch_of(run, own)
    return None


def _rows_held(piece: Piece, placement: Placement | None) -> NDArray[np.int64] | None:
    """Which rows of a value a rank holds; None where it is cut along another dimension too, or nothing is known.

    Rows of a fused projection are those of several: only placements tell.
    """
    if placement is None or max(placement.ways) > 0 or min(placement.ways) < -1:
        return None
    held: NDArray[np.int64] = rows_of(placement, piece.rank)
    return held


def _of_rows(rows: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    held = np.zeros((shape[0], prod(shape[1:])), dtype=bool)
    held[rows] = True
    return held.reshape(-1)


def _between(goal: Any, held: NDArray[np.bool_]) -> tuple[float, float]:
    """What the squares of a part of a value add up to, at least and at most, by the norms of its blocks."""
    length, squares = block_length(held.size), goal["block_norm"].astype(np.float64) ** 2
    filled = np.add.reduceat(held, np.arange(0, held.size, length), dtype=np.int64)
    sizes = np.minimum(length, held.size - length * np.arange(len(filled)))
    squares = squares[: min(len(filled), BLOCKS)]
    return float(squares[filled == sizes].sum()), float(squares[filled > 0].sum())
