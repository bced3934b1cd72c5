"""How the pieces that ranks hold make one whole value: the way, its statistics, and its tensor put together.

A way is found from what is known, in this order: placements that were recorded, the shape of the value on the other
side, and what the axis of the layout means. Along an axis the pieces are copies, are concatenated, or add up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import inf, isnan, prod, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from twinprobe._measure.elements import AT_ONCE, added, concatenated, rearranged
from twinprobe._runs.run import WHOLE
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe._runs.tensors.tensor_files import open_tensor
from twinprobe._runs.whole_files import inside
from twinprobe.errors import DamagedTensor

# The axes along which the values of ranks differ, the outermost first. Micro batches are calls of one rank.
AXES = ("micro", "dp", "ep", "cp", "tp")
BATCH_AXES = frozenset({"micro", "dp", "ep", "cp"})
# The orders in which pieces along an axis follow one another.
BLOCKS, ZIGZAG = "blocks", "zigzag"
COPIES, SUM, NORM, MEAN, UNKNOWN = (
    -1,
    -2,
    -3,
    -4,
    -5,
)  # what becomes of an axis instead of a dimension along which it is concatenated

Shape = tuple[int, ...]
Stats = tuple[float | None, float | None, float | None, float | None]  # max, min, mean, norm


class Piece(NamedTuple):
    """What one rank holds of a value: where it stands on each axis, and what was recorded there."""

    rank: int
    place: tuple[int, ...]
    shape: Shape | None
    stats: Stats
    file: str | None
    digest: str | None


@dataclass(frozen=True)
class Placement:
    """A recorded placement: the ranks of its mesh, and for each dimension of that the tensor's dimension or a sum."""

    mesh: tuple[int, ...]
    mesh_shape: Shape
    ways: tuple[int, ...]
    inner: tuple[bool, ...]
    whole: Shape
    local: Shape


class Known(NamedTuple):
    """The statistics of a whole value; ``exact`` is False for each that is only a bound."""

    shape: Shape
    stats: Stats
    exact: tuple[bool, bool, bool, bool]
    recipe: str | None


EXACT = (True, True, True, True)


def same(pieces: Sequence[Piece]) -> bool:
    """Whether pieces are copies of one another, but for the rounding of a collective."""
    first = pieces[0]
    for piece in pieces[1:]:
        if piece.shape != first.shape or (first.digest is None) != (piece.digest is None):
            return False
        if first.digest is not None and first.stats[0] is None and piece.digest != first.digest:
            return False
        # A mask's fill value makes a large norm: beside it, other extremes would look alike.
        extremes, scale = (
            max(
                abs(value)
                for value in (*first.stats[:end], *piece.stats[:end], 0.0)
                if value is not None and not isnan(value)
            )
            for end in (2, 4)
        )
        for one, other, size in zip(first.stats, piece.stats, (extremes, extremes, scale, scale), strict=True):
            if one is None or other is None:
                if one is not other:
                    return False
            elif not (one == other or (isnan(one) and isnan(other)) or abs(one - other) <= 1e-6 * size):
                return False
    return True


def along(pieces: Sequence[Piece], axis: int) -> list[list[Piece]]:
    """The pieces in rows that lie along one axis, the other axes being equal."""
    rows: dict[tuple[int, ...], list[Piece]] = {}
    for piece in sorted(pieces, key=lambda piece: piece.place):
        rows.setdefault(piece.place[:axis] + piece.place[axis + 1 :], []).append(piece)
    return list(rows.values())


def signature(pieces: Sequence[Piece]) -> Any:
    """What tells values apart, in whatever shape or order of dimensions: the sizes and statistics of all their pieces.

    Norms of the same numbers in another order differ in their last digits, means by more.
    """
    found = []
    for piece in pieces:
        high, low, norm = (None if one is None or isnan(one) else one for one in (*piece.stats[:2], piece.stats[3]))
        found.append((prod(piece.shape or ()), high, low, norm and f"{norm:.4g}"))
    return tuple(found)


def shapes_of(pieces: Sequence[Piece]) -> str:
    """The first shapes that pieces have, in words."""
    found = dict.fromkeys(str(list(piece.shape)) if piece.shape is not None else "no shape" for piece in pieces)
    return " and ".join(list(found)[:3])


Way = tuple[int, ...]  # for each axis COPIES, SUM or a dimension
# Which dimensions are likely along an axis, the likeliest first: of weights, and of values (-1 is the last one).
_WEIGHTS = (0, 1, 2, 3)
_LIKELY = {"micro": (0, 1), "dp": (0, 1), "ep": (0, 1), "cp": (1, 0, 2), "tp": (-1, 0, 1, 2)}


@lru_cache(maxsize=65536)
def fitting_way(
    places: tuple[tuple[tuple[int, ...], Shape], ...],
    goal: Shape,
    copies: tuple[bool, ...],
    weight: bool,
    some: tuple[bool, ...] | None = None,
    length: int = 0,
) -> Way | None:
    """The way in which pieces of these shapes make a whole of this shape; None where there is none.

    ``copies`` says along which axes all pieces are equal, ``some`` along which some are: of copies, one may be wrong.
    An axis that is left over has SUM where it has to add up. ``length`` is that of the sequences which context parallel
    ranks cut: where heads are cut into as many parts, it tells which dimension is theirs.
    """
    some = some or copies
    used = [len({place[at] for place, _ in places}) > 1 for at in range(len(AXES))]
    ranks = {len(shape) for _, shape in places}
    if ranks != {len(goal)}:
        return None
    choices = []
    for at, axis in enumerate(AXES):
        if not used[at]:
            choices.append([COPIES])
            continue
        likely = _WEIGHTS if weight else _LIKELY[axis]
        dims = dict.fromkeys(dim % len(goal) for dim in likely if -len(goal) <= dim < len(goal)) if goal else {}
        choices.append([COPIES if copies[at] else SUM, *dims])
    best: tuple[tuple[int, int, int, int, tuple[int, ...]], Way] | None = None
    for way in product(*choices):
        if _whole_shape(places, way, 0) != goal:
            continue
        cost = (
            sum(one == SUM for one in way),
            # Ranks with other words have no parts of one value.
            sum(one == SUM for axis, one in zip(AXES, way, strict=True) if axis in BATCH_AXES and not weight),
            # Equal pieces may be copies. Tensor parallel ranks have the same words, and micro batches the same weights.
            sum((one >= 0 and some[at]) * (1 + ((AXES[at] == "tp") != weight)) for at, one in enumerate(way)),
            sum(one >= 0 and length > 0 and goal[one] != length for one in way[AXES.index("cp") :][:1]),
        )
        key = (*cost, tuple(choices[at].index(one) for at, one in enumerate(way)))
        if best is None or key < best[0]:
            best = key, way
    return best[1] if best is not None else None


Places = tuple[tuple[tuple[int, ...], Shape], ...]


@lru_cache(maxsize=65536)
def common_shape(
    target: Places, golden: Places, copies: tuple[tuple[bool, ...], tuple[bool, ...]], weight: bool, sums: bool
) -> tuple[int, Shape] | None:
    """The shape that the pieces of two runs in different layouts make on both sides, if possible along the same
    dimensions.

    Before it, how often pieces that differ would be copies, or copies would be pieces. Pieces of full size may be parts
    of ``sums``: then a cut along an axis that only one run has counts against it, too.
    """
    length = len(target[0][1])
    if any(len(shape) != length for _, shape in (*target, *golden)):
        return None
    choices = []
    used = [[len({place[at] for place, _ in side}) > 1 for at in range(len(AXES))] for side in (target, golden)]
    for axis, either in zip(AXES, zip(*used, strict=True), strict=True):
        likely = _WEIGHTS if weight else _LIKELY[axis]
        dims = (
            dict.fromkeys(dim % length for dim in likely if -length <= dim < length) if length and any(either) else {}
        )
        choices.append([COPIES, *dims])
    found: list[dict[Shape, int]] = [{}, {}]  # of each side, the shapes that it can have
    best: tuple[Any, Shape] | None = None
    for way in product(*choices):
        order = tuple(choices[at].index(one) for at, one in enumerate(way))
        shapes, wrong = [_whole_shape(side, way, 0) for side in (target, golden)], [0, 0]
        for at, (shape, flags) in enumerate(zip(shapes, copies, strict=True)):
            counted = zip(way, flags, used[at], strict=True)
            wrong[at] = sum((dim >= 0) == same for dim, same, in_use in counted if in_use or sums)
            if shape is not None:
                found[at][shape] = min(found[at].get(shape, len(AXES)), wrong[at])
        # Where each run has an axis of its own, pieces that differ on both are stretches of one value.
        differing = sum(dim < 0 and not same for flags in copies for dim, same in zip(way, flags, strict=True))
        key = sum(wrong), differing, order
        if shapes[0] is not None and shapes[0] == shapes[1] and (best is None or key < best[0]):
            best = key, shapes[0]
    if best is not None:
        return best[0][0], best[1]
    # Tensor parallel ranks may hold copies in one run, and stretches of the sequence in the other.
    apart = sorted((found[0][shape] + found[1][shape], shape) for shape in found[0] if shape in found[1])
    return apart[0] if apart and (len(apart) == 1 or apart[0][0] < apart[1][0]) else None


def _whole_shape(places: Sequence[tuple[tuple[int, ...], Shape]], way: Way, axis: int) -> Shape | None:
    if axis == len(AXES):
        return places[0][1]
    rows: dict[int, list[tuple[tuple[int, ...], Shape]]] = {}
    for one in places:
        rows.setdefault(one[0][axis], []).append(one)
    shapes = [_whole_shape(row, way, axis + 1) for _, row in sorted(rows.items())]
    return _joined_shape(shapes, way[axis])


def _joined_shape(shapes: Sequence[Shape | None], dim: int) -> Shape | None:
    first = shapes[0]
    if first is None or None in shapes:
        return None
    if dim < 0:
        return first if len(set(shapes)) == 1 else None
    if len({len(shape) for shape in shapes if shape is not None}) > 1 or dim >= len(first):
        return None
    others = {shape[:dim] + shape[dim + 1 :] for shape in shapes if shape is not None}
    if len(others) > 1:
        return None
    return (*first[:dim], sum(shape[dim] for shape in shapes if shape is not None), *first[dim + 1 :])


@dataclass(frozen=True)
class Arithmetic:
    """What is done with pieces beside putting them one behind the other.

    ``shares``: of axes along which each rank has a mean over its own part of the batch, the share that each place has
    in the whole batch; gradients are multiplied with it. ``orders``: in which order pieces along an axis follow one
    another. ``groups``: into how many stretches context parallel pieces are cut first, where a dimension is two in one.
    """

    shares: Mapping[str, Sequence[float]]
    orders: Mapping[str, str]
    groups: int = 1
    factor: float = 1.0

    def weight(self, piece: Piece, way: Way) -> float:
        """What a piece is multiplied with where the pieces are put together."""
        axes = [at for at, name in enumerate(AXES) if name in self.shares and way[at] != COPIES]
        return self.factor * prod(self.shares[AXES[at]][piece.place[at]] for at in axes)


PLAIN = Arithmetic({}, {})


def nearest(goal: float | None, pieces: Sequence[Piece], way: Way, readings: Sequence[Arithmetic]) -> Arithmetic:
    """The reading of one number of each rank that comes nearest the other side's: parts of a sum (a loss that is not
    averaged yet), or means. The last one where nothing tells."""

    def gap(one: Arithmetic) -> float:
        found = put_together(pieces, way, one)
        value = found.stats[0] if found is not None else None
        return inf if value is None or goal is None else abs(value - goal)

    return min(reversed(readings), key=gap)


def put_together(pieces: Sequence[Piece], way: Way, arithmetic: Arithmetic) -> Known | None:
    """The whole value; None where a piece is not known. Of copies the first one's stands for all."""
    node = _node(sorted(pieces, key=lambda piece: piece.place), way, 0, arithmetic)
    return None if node is None else known(_times(node, arithmetic.factor))


def known(node: Any) -> Known:
    """A node with its recipe as a text."""
    shape, stats, exact, recipe = node
    return Known(shape, stats, exact, None if recipe is None else _text(recipe))


def _node(pieces: Sequence[Piece], way: Way, axis: int, arithmetic: Arithmetic) -> Any:
    if axis == len(AXES):
        piece = pieces[0]
        return None if piece.shape is None else (piece.shape, piece.stats, EXACT, piece.file)
    rows: dict[int, list[Piece]] = {}
    for piece in pieces:
        rows.setdefault(piece.place[axis], []).append(piece)
    dim, name = way[axis], AXES[axis]
    chosen = sorted(rows)[:1] if dim == COPIES else sorted(rows)
    nodes = [_node(rows[at], way, axis + 1, arithmetic) for at in chosen]
    if None in nodes:
        return None
    shares = arithmetic.shares.get(name)
    if shares is not None and dim != COPIES:
        nodes = [_times(node, shares[at]) for node, at in zip(nodes, chosen, strict=True)]
    return joined(nodes, dim, arithmetic.orders.get(name, BLOCKS), arithmetic.groups if name == "cp" else 1)


def _times(node: Any, weight: float) -> Any:
    if weight == 1.0:
        return node
    shape, stats, exact, recipe = node
    return shape, scaled(stats, weight), exact, None if recipe is None else ["times", weight, recipe]


def joined(nodes: list[Any], dim: int, order: str, groups: int) -> Any:
    """Nodes (shape, statistics, whether they are exact, recipe) as one: concatenated, or added up."""
    if len(nodes) == 1:
        return nodes[0]
    shape = _joined_shape([node[0] for node in nodes], dim)
    if shape is None:
        return None
    recipes = [node[3] for node in nodes]
    recipe: Any = None
    if None not in recipes:
        recipe = ["sum", recipes] if dim == SUM else ["cat", dim, order, groups, recipes]
    stats = [node[1] for node in nodes]
    exact = tuple(all(node[2][at] for node in nodes) for at in range(4))
    if dim != SUM:
        return shape, of_concatenation(stats, [prod(node[0]) for node in nodes]), exact, recipe
    if shape == ():  # one number: it is all four statistics
        return shape, tuple(_total([one[at] for one in stats]) for at in range(4)), exact, recipe
    total = tuple(_total([one[at] for one in stats]) for at in range(4))
    return shape, total, (False, False, exact[2], False), recipe


def added_up(values: Sequence[Known]) -> Known | None:
    """The sum of values of one shape."""
    nodes = [(one.shape, one.stats, one.exact, None if one.recipe is None else _recipe(one.recipe)) for one in values]
    node = joined(nodes, SUM, BLOCKS, 1)
    return None if node is None else known(node)


def of_concatenation(stats: Sequence[Stats], counts: Sequence[int]) -> Stats:
    """The statistics of a concatenation, which follow from those of the parts; all of them are exact."""
    filled = [(one, count) for one, count in zip(stats, counts, strict=True) if count]
    if not filled:
        return (None, None, None, None)
    columns = [[one[at] for one, _ in filled] for at in range(4)]
    highs, lows, means, norms = ([] if None in column else [float(one) for one in column if one is not None]
                                 for column in columns)  # fmt: skip
    total = sum(count for _, count in filled)
    mean = sum(one * count for one, (_, count) in zip(means, filled, strict=True)) / total if means else None
    return (
        _extreme(max, highs), _extreme(min, lows), mean,
        sqrt(sum(one * one for one in norms)) if norms else None,
    )  # fmt: skip


def _extreme(choose: Any, values: list[float]) -> float | None:
    if not values:
        return None
    return float("nan") if any(map(isnan, values)) else float(choose(values))


def scaled(stats: Stats, weight: float) -> Stats:
    """The statistics of a tensor whose elements are multiplied with a positive number."""
    return tuple(None if one is None else one * weight for one in stats)  # type: ignore[return-value]


def breaks(stat: str, bound: float, goal: float | None) -> bool:
    """Whether a statistic is beyond what is only a bound."""
    if goal is None or isnan(goal) or isnan(bound):
        return False
    slack = 1e-3 * max(abs(goal), abs(bound))
    return bool(goal < bound - slack if stat == "min" else goal > bound + slack)


def _total(values: Sequence[float | None]) -> float | None:
    return None if None in values else float(sum(value for value in values if value is not None))


# A recorded placement: its mesh says which ranks hold which piece.


def read_placement(value: Any, shape: Shape) -> Placement | str:
    """A placement as layout.json has it; a text says what is wrong with it."""
    try:
        mesh = np.asarray(value["mesh"])
        whole, local = (tuple(int(size) for size in value[key]) for key in ("global_shape", "local_shape"))
        ops = value.get("reduce_ops") or [""] * len(value["placements"])
        ways = [_way_of(one, op) for one, op in zip(value["placements"], ops, strict=True)]
        factors = value.get("split_factors") or [None] * len(ways)
        if mesh.dtype.kind not in "iu" or mesh.ndim != len(ways) or len(factors) != len(ways) or mesh.size > 1 << 20:
            return "its mesh and its placements do not fit"
    except (KeyError, TypeError, ValueError, AttributeError):
        return "is no placement"
    placement = Placement(
        tuple(int(rank) for rank in mesh.reshape(-1)), tuple(mesh.shape), tuple(ways),
        tuple(bool(one) for one in factors), whole, local,
    )  # fmt: skip
    if whole != shape:
        return f"its global shape is {list(whole)}, but dump.json has {list(shape)}"
    expected = [1] * len(whole)
    for size, dim in zip(placement.mesh_shape, ways, strict=True):
        if dim >= len(whole):
            return f"it is split along dimension {dim}, which {list(whole)} does not have"
        if dim >= 0:
            expected[dim] *= size
    fits = len(local) == len(whole) and all(
        have <= -(-size // parts) if parts > 1 else have == size
        for have, size, parts in zip(local, whole, expected, strict=True)
    )
    return placement if fits else f"a piece of {list(whole)} in {expected} parts cannot be {list(local)}"


def _way_of(placement: Mapping[str, Any], reduce_op: str) -> int:
    (kind,) = placement
    if kind == "Shard":
        dim = placement[kind]["dim"]
        if not isinstance(dim, int) or dim < 0:
            raise ValueError(kind)
        return dim
    if kind == "Replicate":
        return COPIES
    reduce_op = reduce_op or placement["Partial"].get("reduce_op", "sum")
    return {"sum": SUM, "norm": NORM, "avg": MEAN}.get(reduce_op, UNKNOWN)


def of_placement(pieces: Mapping[int, Piece], placement: Placement) -> Any:
    """The node of the whole tensor whose pieces lie on the ranks of a mesh; None where one of them is missing."""
    if any(rank not in pieces for rank in placement.mesh) or UNKNOWN in placement.ways:
        return None
    ranks = np.asarray(placement.mesh).reshape(placement.mesh_shape)
    # Strided pieces were cut from what the later dimensions of the mesh had cut already.
    order = sorted(range(len(placement.ways)), key=lambda at: (placement.inner[at], at))
    return _of_mesh(ranks, order, placement.ways, pieces)


def _of_mesh(ranks: Any, order: list[int], ways: tuple[int, ...], pieces: Mapping[int, Piece]) -> Any:
    if not order:
        piece = pieces[int(ranks.reshape(-1)[0])]
        return None if piece.shape is None else (piece.shape, piece.stats, EXACT, piece.file)
    at, *rest = order
    dim = ways[at]
    parts = np.split(ranks, ranks.shape[at], axis=at)
    nodes = [_of_mesh(part, rest, ways, pieces) for part in (parts[:1] if dim == COPIES else parts)]
    if None in nodes:
        return None
    if dim == NORM:  # each element is the root of the ranks' summed squares
        shape, norms = nodes[0][0], [node[1][3] for node in nodes]
        total = None if None in norms else sqrt(sum(norm * norm for norm in norms))
        return shape, ((total,) * 4 if shape == () else (None, None, None, total)), EXACT, None
    node = joined(nodes, SUM if dim == MEAN else dim, BLOCKS, 1)
    return node if dim != MEAN or node is None else _times(node, 1 / len(nodes))


def rows_of(placement: Placement, rank: int) -> Any:
    """Which rows of a distributed tensor a rank holds, along its first dimension."""
    mesh = np.asarray(placement.mesh).reshape(placement.mesh_shape)
    at = np.argwhere(mesh == rank)[0]
    rows = np.arange(placement.whole[0])
    # Strided pieces were cut from what the later dimensions of the mesh had cut already.
    for dim in sorted(range(mesh.ndim), key=lambda dim: (placement.inner[dim], dim)):
        if placement.ways[dim] == 0:
            size = -(-len(rows) // mesh.shape[dim])
            rows = rows[at[dim] * size : (at[dim] + 1) * size]
    return rows


# Recipes: the files of a value's pieces and what is done with them, as one text in place of a file's name.

_MOST_PIECES = 4096


def _text(recipe: Any) -> str:
    return recipe if isinstance(recipe, str) else WHOLE + json.dumps(recipe, separators=(",", ":"))


def _recipe(text: str) -> Any:
    return json.loads(text[len(WHOLE) :]) if text.startswith(WHOLE) else text


def rearranged_recipe(name: str, orders: Sequence[Any]) -> str:
    """The recipe of what a name stands for, with stretches along some dimensions in another order."""
    if not orders:
        return name
    recipe = _recipe(name)
    for order in orders:
        recipe = ["stretches", order.dim, order.groups, order.stretches, recipe]
    return _text(recipe)


def files_of(name: str) -> list[str]:
    """The files that a name stands for."""
    if not name.startswith(WHOLE):
        return [name]
    found: list[str] = []

    def walk(recipe: Any) -> None:
        if isinstance(recipe, str):
            found.append(recipe)
        elif isinstance(recipe, list):
            for part in recipe[-1] if recipe[0] in ("sum", "cat") else recipe[-1:]:
                walk(part)

    try:
        walk(json.loads(name[len(WHOLE) :]))
    except (ValueError, RecursionError, IndexError):
        return []
    return found[:_MOST_PIECES]


Open = Callable[[Path, str], HostTensor]


def _open_piece(folder: Path, name: str) -> HostTensor:
    return open_tensor(inside(folder, name), at_once=AT_ONCE)


def load_whole(folder: Path, name: str, open_piece: Open = _open_piece) -> HostTensor:
    """Open the files that a name stands for and put them together, piece by piece."""
    if not name.startswith(WHOLE):
        return open_piece(folder, name)
    try:
        return _load(folder, json.loads(name[len(WHOLE) :]), open_piece)
    except (KeyError, TypeError, IndexError, ValueError, RecursionError) as error:
        raise DamagedTensor(
            f"cannot be put together: {error}", where=files_of(name)[0] if files_of(name) else ""
        ) from None


def _load(folder: Path, recipe: Any, open_piece: Open) -> HostTensor:
    if isinstance(recipe, str):
        return open_piece(folder, recipe)
    kind = recipe[0]
    if kind == "times":
        return added([_load(folder, recipe[2], open_piece)], float(recipe[1]))
    if kind == "sum":
        return added([_load(folder, part, open_piece) for part in recipe[1]], 1.0)
    if kind == "stretches":
        return rearranged(_load(folder, recipe[4], open_piece), *recipe[1:4])
    dim, order, groups, parts = recipe[1:]
    return concatenated([_load(folder, part, open_piece) for part in parts], dim, order, groups)
