"""Whose piece of a differing value is wrong: which ranks, and of which micro batch.

Tensors tell by their elements. Where none were kept, the blocks of sketches do: each is the norm of a sixteenth of a
tensor, and where the blocks of one piece make up blocks of the other side's value, these must agree. What is left is
a piece that holds more than the whole may hold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import combinations
from math import inf, prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._align.calls import bare_path, dims, epsilon
from twinprobe._layout.pieces import (
    AXES,
    COPIES,
    PLAIN,
    SUM,
    Arithmetic,
    Piece,
    Way,
    load_whole,
    rows_of,
    same,
    scaled,
)
from twinprobe._layout.ranks import REDUCTION, RankDump
from twinprobe._layout.sketched.blocks import (
    CLOSE,
    Shared,
    block_gaps,
    block_sets,
    far,
    overlaps,
    sketch_of,
    sketches_of,
)
from twinprobe._layout.whole import Whole
from twinprobe._measure.elements import numbers
from twinprobe._measure.sketch import block_length
from twinprobe._runs.names import BACKWARD, parse_op
from twinprobe._runs.run import Run
from twinprobe._runs.sketches import BLOCKS, SHARD
from twinprobe._runs.table import PARAMETER, STATS
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe._runs.tensors.tensor_files import open_tensor
from twinprobe._runs.whole_files import inside
from twinprobe.errors import TwinProbeError

NEARER = 0.1  # a piece is right where it has less than this of the worst one's distance
_LAST_DIGITS = 1e-6  # of sums of the same numbers
_SAME_BLOCK = 1e-5  # squared norms of the same elements, in float32
FEWEST_BLOCKS = 4  # in which a multiple of the same size is no accident
_UNLIKELY = 0.02  # a chance that is no explanation
NO_REPLICA, NOT_GOLDENS, NOTHING = "replica differs from the others", ", and none is golden's", "but nothing"
_MEASURES = ("block_norm", "block_max")


def whose(
    whole: Whole, row: int, other: Run, partner: int, files: tuple[str | None, str | None], *, inherited: bool = False
) -> str:
    """Whose pieces of a differing value are wrong, in words; nothing where all are, or where it cannot be known.

    ``files`` are those of this side and of the other, if both kept their tensors. ``inherited``: its call may have been
    given wrong values on all ranks.
    """
    pieces, alone = whole.pieces_of(row), True
    if not whole.is_cut(row):  # copies, or parts of a sum
        if whole.table["role"][row] == PARAMETER:
            ranks = _gathered_from(whole, row, other, partner)
            return f"{shards_of(ranks)}, which is gathered" if ranks else ""
        if len(pieces) > 1 and pieces[0].shape == () and f".{BACKWARD}" in whole.pieces["op"][row]:
            # The gradients of losses are factors: what most micro batches and most ranks share, or else golden's.
            goal = tuple(other.table[stat][partner] for stat in STATS)
            usual = max(
                pieces, key=lambda one: (2 * sum(same([one, own]) for own in pieces) > len(pieces), one.stats == goal)
            )
            odd = [at for at, piece in enumerate(pieces) if not same([piece, usual])]
            known = 2 * len(odd) < len(pieces) or usual.stats == goal
            return owners_of(whole, row, odd) if odd and known else ""
        ranks = _by_summands(whole, row, other, partner)
        return f"rank {numbers_of(ranks)}'s part of the sum differs" if ranks else ""
    if None not in files:
        wrong = _by_elements(whole, row, other, files)  # type: ignore[arg-type]
    else:
        wrong = _by_blocks(whole, row, other, partner)
        twins = (
            _twin_shards(whole, row, dims(other.table["shape"][partner]))
            if whole.table["role"][row] == PARAMETER and not wrong
            else []
        )
        if twins:
            return f"ranks {numbers_of(twins)} hold the same shard"
        if not wrong and not inherited:
            way, arithmetic = whole.ways.get(row), whole.arithmetic.get(row, PLAIN)
            counted = [piece._replace(stats=scaled(piece.stats, arithmetic.weight(piece, way)) if way else piece.stats)
                       for piece in pieces]  # fmt: skip
            wrong = _by_statistics(counted, other, partner)
            gaps, _, close = block_gaps(whole, row, other, partner) if wrong else ({}, [], 0.0)
            if any(gap > close for at, gap in gaps.items() if at not in wrong):  # others are wrong as well
                wrong = set()
            alone = len(gaps) == len(pieces)  # what is no larger than it may be is not right for that
    if not wrong or len(wrong) == len(pieces):
        return ""
    wrong = with_copies(whole, row, wrong)
    if whole.table["role"][row] == PARAMETER:  # data parallel ranks have copies, whoever holds what they gather
        wrong = _holders(whole, row, other, partner, wrong)
    said = owners_of(whole, row, wrong)
    return said + (", perhaps not alone" if said and not alone and not said.endswith("agree") else "")


def owners_of(whole: Whole, row: int, wrong: Collection[int], agree: str = "agree") -> str:
    """Whose these pieces of a value are, in words: of which ranks, or of which micro batch."""
    pieces = whole.pieces_of(row)
    ranks = sorted({pieces[at].rank for at in wrong})
    micro = sorted({pieces[at].place[0] for at in wrong})
    batches = "" if len(micro) == whole.micro else f"micro batch {', '.join(map(str, micro))}"
    if len(ranks) == len({piece.rank for piece in pieces}):
        return f"{batches} differs, the others {agree}" if batches else ""
    return shards_of(ranks) + (f", in {batches}" if batches else "")


def _twin_shards(whole: Whole, row: int, goal: tuple[int, ...] | None) -> list[int]:
    """Ranks that hold the same numbers of a parameter, though each should have another part of it: one has loaded the
    other's. Which one, columns do not tell."""
    pieces, cut = whole.pieces_of(row), [axis for axis, dim in enumerate(whole.ways.get(row, ())) if dim >= 0]
    parts = {tuple(piece.place[axis] for axis in cut): prod(piece.shape or ()) for piece in pieces}
    if sum(parts.values()) != prod(goal or ()):  # ranks share some (heads of keys and values)
        return []
    for one, other in combinations(pieces, 2):
        high, low, _, norm = one.stats
        varied = None not in (high, low) and high != low and norm
        if varied and same([one, other]) and any(one.place[axis] != other.place[axis] for axis in cut):
            return sorted({one.rank, other.rank})
    return []


def with_copies(whole: Whole, row: int, wrong: Collection[int]) -> set[int]:
    """Some pieces of a value, and their copies: other ranks that hold the same part of it."""
    pieces = whole.pieces_of(row)
    cut = [axis for axis, dim in enumerate(whole.ways.get(row, ())) if dim >= 0] or [-1]
    places = [tuple(piece.place[axis] for axis in cut) for piece in pieces]
    return {at for at, piece in enumerate(pieces) for odd in wrong
            if at == odd or (places[at] == places[odd] and same([piece, pieces[odd]]))}  # fmt: skip


def shards_of(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}'s shard differs" if len(ranks) == 1 else f"the shards of ranks {numbers_of(ranks)} differ"


def numbers_of(ranks: Sequence[int]) -> str:
    """The first of so many ranks."""
    return ", ".join(map(str, ranks[:8])) + (" ..." if len(ranks) > 8 else "")


def only_on(whole: Whole, op: str) -> str:
    """The ranks that make a call which others do not make: those of a pipeline stage, those that hold an expert."""
    rows = np.flatnonzero((whole.pieces["op"] == op).to_numpy())
    ranks = sorted({piece.rank for row in rows.tolist() for piece in whole.pieces_of(row)})
    if not ranks or len(ranks) == len(whole.ranks):
        return ""
    stages = {whole.layout.place(rank).pp for rank in ranks}
    single = whole.layout.pp > 1 and whole.layout.vpp == 1 and len(stages) == 1  # else a rank holds several
    stage = f" (pipeline stage {min(stages)})" if single else ""
    return f"rank{'s' * (len(ranks) > 1)} {numbers_of(ranks)}{stage}"


def other_data(whole: Whole, row: int, other: Run, partner: int) -> list[int]:
    """The ranks whose parts of a value hold something else, although the statistics of all together may agree.

    None if it is dealt to the ranks in another order: several of them differ, and all have the same numbers together.
    """
    if not whole.is_cut(row):  # whole numbers may count from where a rank's own part begins
        return _other_copies(whole, row, other, partner) if "float" in (other.table["dtype"][partner] or "") else []
    sets, close = block_sets(whole, row, other, partner)
    pieces = whole.pieces_of(row)
    wrong = {at for one in sets if one.gap > close and len(one.own) == 1 for at in one.own}
    # Numbers that moved within a rank are not dealt in another order: the rank has what golden has there.
    moved = {at for at in wrong if far(*np.sum([(one.own[at], one.golden) for one in sets if {*one.own} == {at}], 0))
             <= close}  # fmt: skip
    if len(wrong) > 1 and not moved and same_together(whole, row, other, partner):
        return []
    if wrong == {at for one in sets if len(one.own) == 1 for at in one.own} != set().union(*(one.own for one in sets)):
        return []  # of the others nothing is known
    return sorted({pieces[at].rank for at in with_copies(whole, row, wrong)})


def _other_copies(whole: Whole, row: int, other: Run, partner: int) -> list[int]:
    """The ranks whose copies of a value have golden's numbers in other blocks, where those of others agree."""
    goal, own = sketch_of(other, other.table["name"][partner]), sketches_of(whole, row)
    if goal is None or any(one is None or one["count"] != goal["count"] for one in own):
        return []
    norm, close = float(np.linalg.norm(goal["block_norm"])), max(CLOSE, epsilon(other.table["dtype"][partner]))
    gaps = [float(np.linalg.norm(one["block_norm"] - goal["block_norm"])) for one in own]
    wrong = {at for at, gap in enumerate(gaps) if gap > close * norm and min(gaps) <= NEARER * gap}
    return sorted({whole.pieces_of(row)[at].rank for at in wrong})


def same_together(whole: Whole, row: int, other: Run, partner: int) -> bool:
    """Whether the pieces have the sum and the norm of the other side's value."""
    goal = sketch_of(other, other.table["name"][partner])
    own = sketches_of(whole, row)
    if goal is None or any(one is None for one in own):
        return False
    total, square = sum(float(one["total"]) for one in own), sum(float(one["norm"]) ** 2 for one in own)
    alike = abs(total - goal["total"]) <= _LAST_DIGITS * goal["l1"]
    return bool(alike and abs(square - goal["norm"] ** 2) <= _LAST_DIGITS * goal["norm"] ** 2)


def misplaced(whole: Whole, row: int, other: Run, partner: int) -> str:
    """Whether the shards of a parameter that is cut by rows lie elsewhere in golden's, in words.

    Block by block, their norms are those of golden's rows, but of those of another rank, or of the other half of a
    fused parameter. Only what is found elsewhere is told: a parameter may be fused in ways that nobody knows.
    """
    known = _shards_and_goal(whole, row, other, partner) or _gathered_shards(whole, row, other, partner)
    if known is None:
        return ""
    ranks, shards, golden = known
    tp = len(shards)
    halves = [tuple(_places(half, golden) for half in np.split(shard, 2)) for shard in shards]
    found = [_places(shard, golden) for shard in shards]
    if min(found) < 0:  # of a fused parameter each rank has a part of both halves
        found = [there if (there, tp + there) == places else -1 for places in halves for there in places[:1]]
    if min(found) >= 0:
        wrong = [(ranks[at], ranks[there]) for at, there in enumerate(found) if at != there]
        return ", ".join(f"rank {rank} has the shard of rank {there}" for rank, there in wrong[:4])
    turned = [at for at, places in enumerate(halves) if places == (tp + at, at)]
    straight = [at for at, places in enumerate(halves) if places == (at, tp + at)]
    if not turned or len(turned) + len(straight) < tp:
        return ""
    return f"rank {numbers_of([ranks[at] for at in turned])} has the halves of its shard in the other order"


def strange_shards(whole: Whole, row: int, other: Run, partner: int) -> list[int]:
    """The ranks whose shards of a parameter are not made of golden's blocks in their order, where others' are.

    Of a fused parameter each rank has parts of several stretches: all ranks' parts end where blocks do, or none's.
    """

    def is_golden(shard: NDArray[np.float64]) -> bool:
        places = np.abs(golden - shard[:, None]) <= _SAME_BLOCK * golden
        after = -1  # golden's order is kept
        for found in places:
            after = next((at for at in np.flatnonzero(found).tolist() if at > after), BLOCKS)
        return after < BLOCKS

    ranks, shards, golden = _shards_and_goal(whole, row, other, partner) or ([], [], np.empty(0))
    right = list(map(is_golden, shards))
    return [rank for rank, one in zip(ranks, right, strict=True) if not one] if any(right) else []


def in_one_stretch(whole: Whole, row: int, other: Run, partner: int) -> bool:
    """Whether each rank has one stretch of golden's rows, in the order of the ranks."""
    known = _shards_and_goal(whole, row, other, partner)
    return known is not None and [_places(shard, known[2]) for shard in known[1]] == [*range(len(known[1]))]


def _shards_and_goal(whole: Whole, row: int, other: Run, partner: int) -> tuple[list[int], list[Any], Any] | None:
    """The ranks that hold the shards of a parameter in their order (of copies, the first), the squared norms of as many
    blocks of each shard as golden has in such a part, and golden's."""
    pieces, way, placed = whole.pieces_of(row), whole.ways.get(row, ()), whole.placements_of(row)
    goal = sketch_of(other, other.table["name"][partner])
    if None not in placed and {one.ways for one in placed} == {(0,)}:
        places = [one.mesh.index(piece.rank) for piece, one in zip(pieces, placed, strict=True)]
    elif not any(placed) and len(way) == len(AXES) and sorted(way)[-2:] in ([COPIES, 0], [SUM, 0]):
        places = [piece.place[way.index(0)] for piece in pieces]  # cut once, over tensor or expert parallel ranks
    else:
        return None
    own, held = sketches_of(whole, row), [places.index(place) for place in sorted(set(places))]
    shards, tp = [own[at] for at in held], len(held)
    if goal is None or isinstance(other, Whole) or tp < 2 or BLOCKS % (2 * tp):
        return None
    if any(one is None or one["count"] * tp != goal["whole"] for one in shards):
        return None
    if any(
        BLOCKS * block_length(int(one["count"])) != one["count"] for one in (goal, *shards)
    ):  # blocks of equal lengths
        return None
    golden, *squares = (one["block_norm"].astype(np.float64) ** 2 for one in (goal, *shards))
    parts = [part.reshape(tp, -1)[at] if one["flags"] & SHARD else part.reshape(-1, tp).sum(axis=1)
             for at, (one, part) in enumerate(zip(shards, squares, strict=True))]  # fmt: skip
    return [pieces[at].rank for at in held], parts, golden


def _gathered_shards(whole: Whole, row: int, other: Run, partner: int) -> tuple[list[int], list[Any], Any] | None:
    """The same of a parameter that ranks gathered from each other: their shards are stretches of it."""
    pieces, goal = whole.pieces_of(row), sketch_of(other, other.table["name"][partner])
    group, one = _shard_group(whole.ranks[pieces[0].rank], _parameter_path(whole, row)), sketches_of(whole, row)[0]
    if len(group) < len(pieces) or isinstance(other, Whole) or one is None or goal is None:
        return None
    if one["whole"] != goal["whole"] or BLOCKS * block_length(int(goal["count"])) != goal["count"]:
        return None
    golden, squares = (sketch["block_norm"].astype(np.float64) ** 2 for sketch in (goal, one))
    return None if BLOCKS % (2 * len(group)) else (list(group), np.split(squares, len(group)), golden)


def _places(part: NDArray[np.float64], golden: NDArray[np.float64]) -> int:
    """Where among parts of golden's blocks of this length a part lies; -1 where it does not, or in several places."""
    parts = golden.reshape(-1, len(part))
    close = np.flatnonzero((np.abs(parts - part) <= CLOSE * np.maximum(parts, part)).all(axis=1))
    exact = [at for at in close.tolist() if (np.abs(parts[at] - part) <= _SAME_BLOCK * parts[at]).all()]
    return exact[0] if len(close) == len(exact) == 1 else -1


def fitting_order(whole: Whole, row: int, other: Run, partner: int, way: Way, orders: Sequence[Arithmetic]) -> int:
    """Which of some orders the pieces of whole numbers (the words of a batch) are in; -1 where none fits, or several.

    Sketches tell: blocks of the same elements have the same norms. Those of a rank with other words fit in no order.
    """
    fits = []
    for arithmetic in orders:
        whole.ways[row], whole.arithmetic[row] = way, arithmetic  # settled later, as is every row
        sets, close = block_sets(whole, row, other, partner)
        fits.append(float(np.mean([one.gap <= close for one in sets])) if sets else 0.0)
    best = max(fits)
    return fits.index(best) if best and fits.count(best) == 1 else -1


def _by_statistics(pieces: Sequence[Piece], other: Run, partner: int) -> set[int]:
    high, low, _, norm = (other.table[stat][partner] for stat in STATS)
    if high is None or low is None or norm is None:
        return set()
    close = max(CLOSE, epsilon(other.table["dtype"][partner]))
    slack = close * max(abs(high), abs(low))
    wrong = set()
    for at, piece in enumerate(pieces):
        most, least, _, length = piece.stats
        if most is not None and least is not None and length is not None:
            beyond = most > high + slack or least < low - slack or length > norm * (1 + close)
            wrong |= {at} if beyond else set()
    return wrong


def _by_elements(whole: Whole, row: int, other: Run, files: tuple[str, str]) -> set[int]:
    """The pieces that hold the elements that differ: put together once more, each as its own number."""
    of_file = {piece.file: at for at, piece in enumerate(whole.pieces_of(row))}

    def number(folder: Path, name: str) -> HostTensor:
        shape = open_tensor(inside(folder, name)).shape
        return HostTensor("int32", shape, np.full(prod(shape), of_file[name], np.int32))

    try:
        owners = np.asarray(load_whole(whole.tensor_folder, files[0], number).data[:])
        sides = [load_whole(run.tensor_folder, file) for run, file in ((whole, files[0]), (other, files[1]))]
    except (TwinProbeError, OSError):
        return set()
    mine, golden = (numbers(side.dtype, np.asarray(side.data[:]), np.dtype(np.float64)) for side in sides)
    if not owners.size == mine.size == golden.size or owners.dtype != np.int32:  # the sum of ranks is nobody's
        return set()
    with np.errstate(all="ignore"):
        gap = np.nan_to_num(np.abs(mine - golden), nan=np.inf)
        of_piece = {int(at): float(np.sqrt((gap[owners == at] ** 2).mean())) for at in np.unique(owners)}
    return {at for at, worst in of_piece.items() if worst > NEARER * max(of_piece.values())}


# By the blocks of sketches.


def _gathered_from(whole: Whole, row: int, other: Run, partner: int) -> list[int]:
    """The ranks whose shards of a parameter are wrong, of which each of them gathered the whole.

    Parameters that are fully sharded are cut along their first dimension, over one dimension of their mesh.
    """
    goal, shape = sketch_of(other, other.table["name"][partner]), dims(other.table["shape"][partner])
    if goal is None or not shape or goal["whole"] != prod(shape) or isinstance(other, Whole):
        return []
    close = max(CLOSE, epsilon(other.table["dtype"][partner]))
    of_rank = dict(zip((piece.rank for piece in whole.pieces_of(row)), whole.names_of(row), strict=True))
    length, wrong = block_length(prod(shape)), set()
    path = _parameter_path(whole, row)
    for group in dict.fromkeys(_shard_group(whole.ranks[rank], path) for rank in of_rank):
        own = sketch_of(whole.ranks[group[0]].run, of_rank[group[0]]) if group and group[0] in of_rank else None
        if own is None or own["whole"] != goal["whole"]:
            return []
        share = -(-shape[0] // len(group)) * prod(shape[1:])
        inside: dict[int, list[bool]] = defaultdict(list)  # whether the blocks that lie in one shard differ
        across: list[set[int]] = []  # the shards that meet in other blocks that differ
        for block in range(-(-prod(shape) // length)):
            differs = _block_differs(own, goal, block, close)
            shards = {block * length // share, (min((block + 1) * length, prod(shape)) - 1) // share}
            if len(shards) == 1:
                inside[min(shards)].append(differs)
            elif differs:
                across.append(shards)
        odd = {shard for shard, differ in inside.items() if any(differ)}
        if any(not shards & odd for shards in across):
            return []
        wrong |= {group[shard] for shard in odd}
    return sorted(wrong) if len(wrong) < len(whole.ranks) else []


def _block_differs(own: Any, goal: Any, block: int, close: float) -> bool:
    """Whether a block of two values of one size differs: in its norm, its largest element, or its sums."""
    if any(far(float(own[name][block]), float(goal[name][block])) > close for name in _MEASURES):
        return True
    gaps = np.abs(own["sums"] - goal["sums"]).reshape(BLOCKS, -1)[block]
    return bool(gaps.max() > close * float(goal["block_norm"][block]))


def _by_summands(whole: Whole, row: int, other: Run, partner: int) -> list[int]:
    """The ranks whose parts of a recorded reduction are wrong, where others have nothing but zeros in a block.

    So it is with tables of words: each rank looks up its own, and gives zeros for those of others.
    """
    pieces, goal = whole.pieces_of(row), sketch_of(other, other.table["name"][partner])
    dumps = [whole.ranks[piece.rank] for piece in pieces]
    if goal is None or isinstance(other, Whole):
        return []
    # Calls inside of tables of words are no part of the whole run, so the ranks are asked.
    table = dumps[0].run.table
    results = table.filter(table["name"].str.contains(REDUCTION + r".*\.output\.0$"))
    alike = [name for name, *stats in results.select("name", *STATS).iter_rows() if tuple(stats) == pieces[0].stats]
    own = [sketch_of(dump.run, alike[0].replace(".output.", ".input.")) for dump in dumps] if alike else []
    if not own or any(one is None or one["whole"] != goal["whole"] for one in own):
        return []
    close = max(CLOSE, epsilon(other.table["dtype"][partner]))
    alone: dict[int, bool] = {}
    for block in range(BLOCKS):
        owners = [at for at, one in enumerate(own) if one["block_norm"][block] > 0]
        if len(owners) == 1:
            pairs = [(float(own[owners[0]][name][block]), float(goal[name][block])) for name in _MEASURES]
            alone[owners[0]] = alone.get(owners[0], False) or any(far(*pair) > close for pair in pairs)
    wrong = sorted(pieces[at].rank for at, differs in alone.items() if differs)
    return wrong if len(alone) == len(own) and len(wrong) < len(own) else []


def _holders(whole: Whole, row: int, other: Run, partner: int, wrong: set[int]) -> set[int]:
    """Of pieces that ranks gathered, those whose ranks hold the rows that differ."""
    pieces, shape = whole.pieces_of(row), dims(other.table["shape"][partner])
    path = _parameter_path(whole, row)
    placements = {at: whole.ranks[pieces[at].rank].sharded.get(path) for at in wrong}
    if not shape or any(one is None or pieces[at].rank not in one.mesh or one.whole != shape
                        for at, one in placements.items()):  # fmt: skip
        return wrong
    rows = {at: set(rows_of(one, pieces[at].rank).tolist()) for at, one in placements.items() if one is not None}
    sets, close = block_sets(whole, row, other, partner)
    length, inner, count = block_length(prod(shape)), prod(shape[1:]), prod(shape)
    guilty, shared = set(), list[set[int]]()
    for block in (block for one in sets if one.gap > close for block in one.blocks):
        own = set(range(block * length // inner, -(-min((block + 1) * length, count) // inner)))
        inside = {at for at in wrong if own <= rows[at]}
        guilty |= inside
        shared += [{at for at in wrong if own & rows[at]}] if not inside else []
    return guilty if guilty and all(one & guilty for one in shared) else wrong


def _parameter_path(whole: Whole, row: int) -> str:
    return f"{bare_path(parse_op(whole.pieces['op'][row]).body)}.{whole.table['name'][row].rpartition('.')[2]}"


def _shard_group(dump: RankDump, path: str) -> tuple[int, ...]:
    """The ranks that have the shards of a parameter, in their order; none where it is not cut so."""
    placement = dump.sharded.get(path)
    if placement is None or sorted(placement.ways)[-1] or sum(way >= 0 for way in placement.ways) != 1:
        return ()
    mesh = np.asarray(placement.mesh).reshape(placement.mesh_shape)
    lines = np.moveaxis(mesh, placement.ways.index(0), -1).reshape(-1, mesh.shape[placement.ways.index(0)])
    return next((tuple(line) for line in lines.tolist() if dump.rank in line), ())


def _by_blocks(whole: Whole, row: int, other: Run, partner: int) -> set[int]:
    alone, shared, close = block_gaps(whole, row, other, partner)
    worst = max(alone.values(), default=0.0)
    wrong = {at for at, gap in alone.items() if gap > max(close, NEARER * worst)}
    used = set(alone).union(*(one.own for one in shared))
    right = {at for at, gap in alone.items() if gap <= close}
    # Of blocks that several make up and that differ, a piece is wrong if the others are right wherever they are alone.
    left = [one.own.keys() - right - wrong for one in shared if one.gap > close and not one.own.keys() & wrong]
    wrong |= {at for rest in left if len(rest) == 1 and right for at in rest}
    alone |= dict.fromkeys(wrong - alone.keys(), inf)
    differ = [one for one in shared if one.gap > close]
    if not alone:
        return (_by_factor(shared) or _by_maxima(whole, row, other, partner)) if differ else set()
    if used - set(alone) or any(not one.own.keys() & wrong for one in differ):
        return _by_maxima(whole, row, other, partner) if differ else set()
    return set() if wrong == used else wrong


def _by_factor(shared: Sequence[Shared]) -> set[int]:
    """The piece that is a multiple of what it should be, of pieces that meet in all blocks (columns of a weight).

    What golden has of a block beside the other pieces is what is left for one. If that one is the wrong one, it holds
    the same multiple of it in every block; of a right one, what is left over differs from block to block.
    """
    pieces = set().union(*(one.own for one in shared))
    if len(shared) < FEWEST_BLOCKS or any(one.own.keys() != pieces for one in shared):
        return set()
    spread: dict[int, float] = {at: 0.0 for at in pieces if not any(one.own[at] for one in shared)}
    for at in pieces - spread.keys():
        left = [one.golden - sum(one.own.values()) + one.own[at] for one in shared]
        if min(left) > 0:
            factors = [one.own[at] / rest for one, rest in zip(shared, left, strict=True)]
            spread[at] = (max(factors) - min(factors)) / max(factors)
        else:
            spread[at] = inf
    best, *others = sorted(spread, key=lambda at: spread[at])
    clear = spread[best] <= CLOSE and all(spread[at] * NEARER > spread[best] for at in others)
    return {best} if clear and others else set()


def _by_maxima(whole: Whole, row: int, other: Run, partner: int) -> set[int]:
    """The pieces that do not have golden's largest elements, of pieces that meet in its blocks (columns of a weight).

    The largest element of each of golden's blocks lies in one of the pieces. Right ones have their share of them, to
    the last digit, and nothing larger; a piece of other numbers has none, or more than a block may hold.
    """
    found = overlaps(whole, row, other, partner)
    if found is None:
        return set()
    sets, limit = block_sets(whole, row, other, partner)
    differing = {block for one in sets if one.gap > limit for block in one.blocks}
    dtype = other.table["dtype"][partner]
    exact, close = max(_SAME_BLOCK, epsilon(dtype)), max(CLOSE, epsilon(dtype))
    most, own_most = found.goal["block_max"], [one["block_max"] for one in found.own]
    largest: dict[tuple[int, int], float] = defaultdict(float)  # what golden has where a piece's block lies
    met: dict[int, set[int]] = defaultdict(set)  # pieces, and golden's blocks of which they have elements
    has: dict[int, set[int]] = defaultdict(set)  # the same, and its largest element
    for block, at, own_block in (link for link in found.links if link[0] in differing):
        largest[at, own_block] = max(largest[at, own_block], float(most[block]))
        met[at].add(block)
        if most[block] and far(float(most[block]), float(own_most[at][own_block])) <= exact:
            has[at].add(block)
    beyond = {at for (at, block), limit in largest.items() if own_most[at][block] > limit * (1 + close)}
    lost = set().union(*met.values()) - set().union(*has.values())  # golden's largest elements that nobody has
    # Of so many blocks, a right piece would have at least one largest element.
    none = {at for at in met if not has[at] and lost & met[at] and (1 - 1 / len(met)) ** len(met[at]) < _UNLIKELY}
    right = {at for at in met if at not in beyond and len(has[at]) >= max(2, len(met[at]) / (2 * len(met)))}
    wrong = beyond | none
    return wrong if right and not wrong & right and wrong | right == met.keys() else set()
