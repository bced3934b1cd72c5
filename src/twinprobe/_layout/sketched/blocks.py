"""The blocks of sketches that hold the same elements on both sides: what pieces make up of golden's blocks.

A block is a sixteenth of a tensor, row by row; its norm and its largest element are known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from math import prod, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from twinprobe._align.calls import dims, epsilon
from twinprobe._layout.pieces import AXES, COPIES, PLAIN, Piece, Placement, load_whole, of_placement, put_together
from twinprobe._layout.whole import Whole
from twinprobe._measure.sketch import block_length
from twinprobe._runs.run import Run
from twinprobe._runs.sketches import BLOCKS, SHARD
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe.errors import TwinProbeError

CLOSE = 1e-3  # relative: statistics of the same numbers in float32 or float16, however they were rounded
_OF_SIZE = ("sums", "block_norm", "block_max", "norm", "l1", "total")  # what grows with the elements
_MOST_ROWS = 1 << 21  # of a tensor that is cut: beyond, along a later dimension, blocks are everybody's anyway


def far(one: float, other: float) -> float:
    return abs(one - other) / max(one, other) if one != other else 0.0


class Shared(NamedTuple):
    """Blocks that pieces make up together: the sums of squares that each has of them, and what golden has."""

    own: dict[int, float]
    golden: float
    gap: float
    blocks: tuple[int, ...]


def block_gaps(whole: Whole, row: int, other: Run, partner: int) -> tuple[dict[int, float], list[Shared], float]:
    """How far the blocks are that one piece makes up, what is known of others, and how far is close."""
    sets, close = block_sets(whole, row, other, partner)
    alone: dict[int, float] = defaultdict(float)
    for at, gap in ((min(one.own), one.gap) for one in sets if len(one.own) == 1):
        alone[at] = max(gap, alone[at])
    return dict(alone), [one for one in sets if len(one.own) > 1], close


def block_sets(whole: Whole, row: int, other: Run, partner: int) -> tuple[list[Shared], float]:
    """What is known of the smallest sets of blocks that hold the same elements on both sides, and how far is close."""
    close, sets = max(CLOSE, epsilon(other.table["dtype"][partner])), list[Shared]()
    found = overlaps(whole, row, other, partner)
    for golden_blocks, own_blocks in _same_elements(found.links) if found is not None else ():
        own, goal = found.own, found.goal  # type: ignore[union-attr]
        squares: dict[int, float] = defaultdict(float)
        for at, block in own_blocks:
            squares[at] += float(own[at]["block_norm"][block]) ** 2
        total = sum(float(goal["block_norm"][block]) ** 2 for block in golden_blocks)
        most = [max(float(own[at]["block_max"][block]) for at, block in own_blocks),
                max(float(goal["block_max"][block]) for block in golden_blocks)]  # fmt: skip
        gap = max(far(sqrt(sum(squares.values())), sqrt(total)), far(*most))
        sets.append(Shared(dict(squares), total, gap, tuple(golden_blocks)))
    return sets, close


class Overlaps(NamedTuple):
    """The sketches of pieces and of golden's value, and which of their blocks overlap: golden's, piece, piece's."""

    own: list[Any]
    goal: Any
    links: list[tuple[int, int, int]]


def overlaps(whole: Whole, row: int, other: Run, partner: int) -> Overlaps | None:
    """Which blocks of pieces have elements of which of golden's blocks; None where that is not known."""
    pieces, shape = whole.pieces_of(row), dims(other.table["shape"][partner])
    goal = sketch_of(other, other.table["name"][partner])
    if goal is None or not shape or goal["whole"] != prod(shape):
        return None
    own = sketches_of(whole, row)
    rows = _rows_of_pieces(whole, row, pieces, shape)
    sizes = [prod(piece.shape or ()) for piece in pieces]
    fits = all(one is not None and one["count"] == size and one["whole"] in (size, goal["whole"])
               for one, size in zip(own, sizes, strict=True))  # fmt: skip
    return Overlaps(own, goal, _links(own, *rows, int(goal["whole"]))) if rows is not None and fits else None


def sketch_of(run: Run, name: str) -> Any:
    """The sketch of a value, a record of one row; None where there is none."""
    recorded = run.recorded or run
    try:
        sketches = recorded.sketches
    except (TwinProbeError, OSError):
        return None
    if sketches is None:
        return None
    found = np.flatnonzero((recorded.table["name"] == name).to_numpy())
    row = sketches.of(found[:1])
    return row[0] if len(row) and row["flags"][0] else None


def sketches_of(whole: Whole, row: int) -> list[Any]:
    """The sketches of a value's pieces as they count in the whole, in their order; None for each that has none."""
    pieces, arithmetic, way = whole.pieces_of(row), whole.arithmetic.get(row, PLAIN), whole.ways.get(row)
    found = []
    for piece, name in zip(pieces, whole.names_of(row), strict=True):
        one, weight = (
            sketch_of(whole.ranks[piece.rank].run, name),
            1.0 if way is None else arithmetic.weight(piece, way),
        )
        if one is not None and weight != 1.0:
            one = one.copy()
            for measure in _OF_SIZE:
                one[measure] = one[measure] * weight
        found.append(one)
    return found


def _rows_of_pieces(
    whole: Whole, row: int, pieces: Sequence[Piece], shape: tuple[int, ...]
) -> tuple[int, NDArray[np.int64]] | None:
    """A value cut into rows that no axis cuts: their length, and for each the piece and the row there that it is."""
    placements, way = whole.placements_of(row), whole.ways.get(row, (COPIES,) * len(AXES))
    cut = [dim for dim in way if dim >= 0] + [dim for one in placements[:1] if one is not None for dim in one.ways]
    depth = max(cut, default=-1) + 1
    if not depth or prod(shape[:depth]) > _MOST_ROWS or min(cut) < COPIES:
        return None
    cuts = [piece._replace(shape=(piece.shape or ())[:depth], file=str(at)) for at, piece in enumerate(pieces)]

    def rows_of(_folder: Path, name: str) -> HostTensor:
        at = int(name)
        size = cuts[at].shape or ()
        return HostTensor("int64", size, at * _MOST_ROWS + np.arange(prod(size), dtype=np.int64))

    blocks = _on_meshes(cuts, placements) if any(placements) else cuts
    places_only = replace(whole.arithmetic.get(row, PLAIN), shares={}, factor=1.0)
    found = put_together(blocks, way, places_only) if blocks else None
    if found is None or found.recipe is None:
        return None
    try:
        places = np.asarray(load_whole(whole.tensor_folder, found.recipe, rows_of).data[:])
    except TwinProbeError:
        return None
    fits = places.dtype == np.int64 and places.size == prod(shape[:depth])  # parts of a sum are nobody's
    return (prod(shape[depth:]), places) if fits else None


def _on_meshes(cuts: Sequence[Piece], placements: Sequence[Placement | None]) -> list[Piece]:
    """Pieces of distributed tensors put together on each mesh, as far as names go; none where they are not known."""
    by_rank = {piece.rank: piece for piece in cuts}
    blocks = []
    for mesh, placement in {one.mesh: one for one in placements if one is not None}.items():
        node = of_placement(by_rank, placement)
        if node is None or node[3] is None or None in placements or len(by_rank) < len(cuts):
            return []
        blocks.append(by_rank[mesh[0]]._replace(shape=node[0], file=node[3]))
    return blocks


def _links(own: Sequence[Any], inner: int, places: NDArray[np.int64], count: int) -> list[tuple[int, int, int]]:
    at, local = np.divmod(places, _MOST_ROWS)
    length, lengths = block_length(count), np.array([block_length(int(one["count"])) for one in own])
    # The sketch of a shard that knew its place has the blocks of the whole.
    placed = np.array([bool(one["flags"] & SHARD) for one in own])
    first, start = np.arange(places.size) * inner, local * inner
    # Rows are cut where a block ends, on either side: what lies between two cuts is in one block of each.
    low, high = -(-start // lengths[at]), -(-(start + inner) // lengths[at])
    cut = np.flatnonzero((low < high) & ~placed[at]).tolist()
    ends = [first[row] + block * lengths[at[row]] - start[row] for row in cut for block in range(low[row], high[row])]
    cuts = np.unique(np.concatenate([first, np.arange(0, count, length), np.array(ends, dtype=np.int64)]))
    row = cuts // inner
    piece, inside = at[row], start[row] + cuts - first[row]
    links = np.stack([cuts // length, piece, np.where(placed[piece], cuts // length, inside // lengths[piece])], axis=1)
    return list(map(tuple, np.unique(links, axis=0).tolist()))


def _same_elements(links: Sequence[tuple[int, int, int]]) -> list[tuple[list[int], list[tuple[int, int]]]]:
    """The smallest sets of blocks that hold the same elements on both sides: golden's, and those of pieces."""
    above: dict[int, int] = {}

    def root(node: int) -> int:
        while above.setdefault(node, node) != node:
            node = above[node]
        return node

    for block, one, own_block in links:
        above[root(BLOCKS * (one + 1) + own_block)] = root(block)
    sets: dict[int, tuple[list[int], list[tuple[int, int]]]] = defaultdict(lambda: ([], []))
    for node in list(above):
        golden_blocks, own_blocks = sets[root(node)]
        if node < BLOCKS:
            golden_blocks.append(node)
        else:
            own_blocks.append((node // BLOCKS - 1, node % BLOCKS))
    return list(sets.values())
