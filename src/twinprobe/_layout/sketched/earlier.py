"""Values before the first difference that differ although their statistics do not: the first difference is there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from twinprobe._align.calls import dims, epsilon
from twinprobe._judge.search import OUTSIDE
from twinprobe._judge.summary import Divergence
from twinprobe._layout.sketched.blocks import block_sets
from twinprobe._layout.whole import Whole
from twinprobe._layout.wrong_ranks import (
    FEWEST_BLOCKS,
    NEARER,
    NO_REPLICA,
    in_one_stretch,
    misplaced,
    numbers_of,
    only_on,
    other_data,
    owners_of,
    same_together,
    shards_of,
    strange_shards,
    with_copies,
)
from twinprobe._runs.names import FORWARD, parse_op
from twinprobe._runs.run import Run
from twinprobe._runs.table import PARAMETER

if TYPE_CHECKING:
    import polars as pl

ON_RANKS = "differs on rank"
_MOST_WORDS = 64  # values that ranks were given
_LAST_VALUES, _MOST_VALUES = 24, 2000  # of which ranks are asked: those at the end, and all
_MOST_BLOCKS = 0.25  # of a piece's blocks may be nearer, if it is far off as a whole
_SAME = 1e-6  # relative: norms of the same numbers
_EPSILONS = 2  # by which copies in 16 bits differ where they are no copies
ODD = (NO_REPLICA, "adds them up", "shard differs")
_VALUE = r"\.(input|output|parameters)\."
_PLACES = r"\.(index_\w+|__getitem__)\.\d+\."  # their whole numbers are places in a rank's own batch


def earlier_value(first: Divergence | None, target: Run, golden: Run, pairs: pl.DataFrame) -> Divergence | None:
    """What ranks were given, or hold, and differs before the first difference; None where there is nothing."""
    if first is None or not isinstance(target, Whole) or isinstance(golden, Whole) or first.op not in target.ops:
        return None
    return _other_data(first, target, golden, pairs) or _other_shards(first, target, golden, pairs)


def moved(first: Divergence, op: str, argument: str, other: str, order: int, module: str, said: str) -> Divergence:
    """A first difference in another place, a value that comes from outside."""
    return replace(first, op=op, row=f"{op}.{argument}", golden_row=other, order=order, argument=argument,
                   module=module, sentence=said, begins=OUTSIDE, target_values={}, golden_values={}, kinds=[],
                   relative_error=None, error_eps=None, expected_eps=None, times_noise=None)  # fmt: skip


def _other_data(first: Divergence, whole: Whole, golden: Run, pairs: pl.DataFrame) -> Divergence | None:
    """Whole numbers that ranks were given and that differ: words of a batch have extremes, but no other statistics.

    Then the first difference is there, and not in a call that makes something else of them; so are other values of
    golden's statistics that the call was given, or the very first call: samples in another order than their labels.
    """
    whole_numbers = pairs["t_dtype"].str.contains("int") & ~pairs["t_name"].str.contains(_PLACES)
    given = pairs["t_name"].str.contains(r"\.input\.") & whole_numbers & pairs["t_max"].is_not_null()
    values = pairs["t_name"].str.contains(r"\.input\.") & pairs["t_dtype"].str.contains("float")
    there = values & pairs["t_name"].str.contains(".forward.", literal=True) & (pairs["t_name"] != first.row)
    given |= there & (there.fill_null(value=False).cum_sum() == 1)
    if "inputs agree" in first.sentence:
        given |= pairs["t_name"].str.starts_with(f"{first.op}.input.") & values
    rows = pairs.with_row_index("order").filter(given & pairs["t_row"].is_not_null() & pairs["g_row"].is_not_null())
    columns = rows.select("order", "t_row", "g_row", "t_name", "g_name").head(_MOST_WORDS)
    for order, row, partner, name, other in columns.iter_rows():
        op = whole.pieces["op"][row]
        ranks = other_data(whole, row, golden, partner) if order <= first.order else []
        data = "int" in pairs["t_dtype"][order]
        if ranks and (data or len(ranks) < len(whole.ranks)):
            argument, words = name.removeprefix(f"{op}."), "comes from outside" if data else "has golden's statistics,"
            which = f"{ON_RANKS}{'s' * (len(ranks) > 1)} {numbers_of(ranks)}"
            # Which ranks are wrong is not known if samples may be dealt in another order.
            said = f"{argument}: it {words} and {which if len(ranks) < len(whole.ranks) else 'differs'}"
            around = op if parse_op(op).is_module else whole.parents.get(op)
            return moved(first, op, argument, other, order, parse_op(around).body if around else "", said)
    return None


def _other_shards(first: Divergence, whole: Whole, golden: Run, pairs: pl.DataFrame) -> Divergence | None:
    """A parameter before the first difference whose shards lie on other ranks, or have other numbers on some ranks:
    their statistics are golden's."""
    held = pairs["t_name"].str.contains(".parameters.", literal=True) & pairs["t_row"].is_not_null()
    rows = pairs.with_row_index("order").filter(held & pairs["g_row"].is_not_null())
    around, above = {first.op}, first.op
    while above := whole.parents.get(above) or "":
        around.add(above)  # whose parameters come after all that is called inside
    for order, row, partner, name, other in rows.select("order", "t_row", "g_row", "t_name", "g_name").iter_rows():
        if order > first.order and whole.pieces["op"][row] not in around:
            continue
        said = misplaced(whole, row, golden, partner) or _other_numbers(whole, row, golden, partner)
        if said:
            op, _, argument = name.rpartition(".parameters.")
            words = f"parameters.{argument}: the parameter differs: {said}"
            return moved(first, op, f"parameters.{argument}", other, order, parse_op(op).body, words)
    return None


def _other_numbers(whole: Whole, row: int, golden: Run, partner: int) -> str:
    """Whether some ranks have other numbers than golden in their shards, and others have golden's, in words.

    A fused parameter lies in another order on all ranks. After a step, noise may have moved a parameter.
    """
    if whole.step != 0 or not whole.is_cut(row):
        return ""
    ranks = other_data(whole, row, golden, partner) or strange_shards(whole, row, golden, partner)
    if not ranks or len(ranks) >= len(whole.pieces_of(row)):
        return ""
    return f"rank{'s' * (len(ranks) > 1)} {numbers_of(ranks)} {'have' if len(ranks) > 1 else 'has'} other numbers there"


def farther(whole: Whole, row: int, other: Run, partner: int, least: float, share: float = 0.5) -> set[int]:
    """The pieces of a value that are much farther from golden's than others, by so much of usual blocks.

    ``share``: of a piece's blocks, that may be nearer.
    """
    sets, gaps = block_sets(whole, row, other, partner)[0], defaultdict[int, list[float]](list)
    for one in sets:
        for at in one.own if len(one.own) == 1 else ():
            gaps[at].append(abs(sqrt(one.own[at]) - sqrt(one.golden)) / sqrt(len(one.blocks)))
    if min(map(len, gaps.values()), default=0) < FEWEST_BLOCKS:
        return set()
    usual = sqrt(sum(one.golden for one in sets) / sum(len(one.blocks) for one in sets))
    ranked = sorted((float(np.quantile(gap, share)), at) for at, gap in gaps.items())
    for split, ((near, _), (away, _)) in enumerate(pairwise(ranked), 1):
        if away > least * usual and near <= NEARER * away:
            return with_copies(whole, row, {at for _, at in ranked[split:]})
    return set()


def odd_ranks(
    whole: Whole, golden: Run, pairs: pl.DataFrame, before: int, said: dict[str, str], differ: Callable[[], bool]
) -> Divergence | None:
    """The first value before a row that some ranks alone have wrong, of the noise that 16 bits explain.

    Ranks compute alike: copies are equal, and of shards those of other ranks tell how far noise goes, or those of other
    micro batches. Parameters have none before the first step. ``said``: of single ranks, by names; ``differ`` says
    whether the runs differ at all. They do if most of what a rank, or a micro batch, gives in the end is far off.
    """
    known = pairs["t_row"].is_not_null() & pairs["g_row"].is_not_null() & pairs["t_name"].str.contains(_VALUE)
    rows = pairs.with_row_index("order").filter(known).select("order", "t_row", "g_row", "t_name", "g_name", "g_dtype")
    values = [one for one in rows.iter_rows() if one[0] < before and ("float16" in (one[-1] or "") or one[3] in said)]

    def apart(row: int, dtype: str, times: float) -> bool:
        if whole.table["role"][row] == PARAMETER or "float16" not in dtype:
            return whole.step == 0 and whole.table["role"][row] == PARAMETER
        high, low, _, norm = zip(*(piece.stats for piece in whole.pieces_of(row)), strict=True)
        least = times * epsilon(dtype)
        return any(None not in one and max(one) - min(one) > least * max(map(abs, one)) for one in (high, low, norm))

    # Nothing was rounded yet in what the model is given or holds: where other ranks have golden's to the last bit, one
    # has another batch or shard, whatever 16 bits leave of it.
    given = next((one for one in values if ".input." in one[3] and FORWARD in one[3]), None)
    for order, row, partner, name, other, dtype in values:
        held = whole.step == 0 and whole.table["role"][row] == PARAMETER
        if not whole.is_cut(row) or not (held or name == (given or [""] * 4)[3]):
            continue
        ranks = (
            set()
            if same_together(whole, row, golden, partner)
            else farther(whole, row, golden, partner, epsilon(dtype))
        )
        exact = [one.gap <= _SAME for one in block_sets(whole, row, golden, partner)[0]
                 if not {whole.pieces_of(row)[at].rank for at in one.own} & ranks] if ranks else []  # fmt: skip
        if exact and all(exact):
            return _odd(whole, (order, row, name, other), f"{shards_of(sorted(ranks))}, the others have golden's")
    # A parameter that is not copied may have no effect.
    sure = {name for name, words in said.items() if FORWARD in name and (words.endswith(ODD[-1]) or "put." in name)}
    certain = any(one[3] in sure and apart(one[1], one[-1], _EPSILONS) for one in values)
    cut = [one for one in values if FORWARD in one[3] and whole.is_cut(one[1]) and not certain]

    def places(order: tuple[Any, ...], least: float, share: float) -> set[tuple[int, ...]]:
        pieces = whole.pieces_of(order[1])
        return {pieces[at].place for at in farther(whole, order[1], golden, order[2], least, share)}

    # What only a part of the batch has wrong stays there: what dies out is no difference.
    odd = {place for one in cut[-_LAST_VALUES:] for place in places(one, epsilon(one[-1]), _MOST_BLOCKS)}
    if not certain and values and differ():
        odd |= {place for one in cut[-_LAST_VALUES:] for place in places(one, 0.0, 0.5)}
    elif not certain and not odd:
        return None
    asked = {one[0] for one in cut[:_MOST_VALUES]}
    for order, row, partner, name, other, dtype in values:
        words = said.get(name, "") if apart(row, dtype, 1) else ""
        wrong = farther(whole, row, golden, partner, epsilon(dtype)) if not words and order in asked else set()
        pieces = whole.pieces_of(row)
        if wrong and ({pieces[at].place for at in wrong} <= odd or not whole.is_cut(row, batch=True)):
            words = owners_of(whole, row, wrong, "agree better")
            words += ", on the other ranks it agrees better" if words.startswith(("rank", "the shards")) else ""
            alone = only_on(whole, whole.pieces["op"][row]) if words else ""
            words += f"; made by {alone} alone" if alone else ""
        if words:
            return _odd(whole, (order, row, name, other), words)
    return None


def _odd(whole: Whole, place: tuple[int, int, str, str], words: str) -> Divergence:
    order, row, name, other = place
    op, argument = whole.pieces["op"][row], whole.pieces["suffix"][row].removeprefix(".")
    inside = whole.parents.get(op) if argument.startswith("input") or not parse_op(op).is_module else op
    words = f"{argument}: {'the parameter differs; ' * argument.startswith('parameters')}{words}"
    return Divergence(op, name, other, "", {}, {}, None, words, "injected", order,
                      parse_op(inside).body if inside else "", argument, OUTSIDE)  # fmt: skip


def cut_through(first: Divergence, target: Run, golden: Run, pairs: pl.DataFrame) -> str:
    """Whether a projection that seems to be two in one is cut into as many stretches as there are ranks, in words.

    What differs first is half as wide as what the module before it gives, whose outputs agree: each rank halves its
    own part, and the first ranks have nothing but the first half.
    """
    if not isinstance(target, Whole) or isinstance(golden, Whole) or target.layout.tp < 2:
        return ""
    row = pairs.filter(pairs["t_name"] == (first.row or ""))
    around = first.op if first.row and not first.row.startswith(f"{first.op}.") else target.parents.get(first.op)
    shape = dims(row["g_shape"][0]) if row.height else None
    if not shape or around is None:
        return ""
    held = pairs["t_name"].str.contains(".parameters.", literal=True) & pairs["t_row"].is_not_null()
    rows = pairs.with_row_index("order").filter(held & pairs["g_row"].is_not_null())
    for order, own, partner, name in reversed(rows.select("order", "t_row", "g_row", "t_name").rows()):
        op, _, parameter = name.rpartition(".parameters.")
        goal = dims(golden.table["shape"][partner])
        if order > first.order or target.parents.get(op) != around or not goal or len(goal) != 2:
            continue
        if goal[0] != 2 * shape[-1] or not in_one_stretch(target, own, golden, partner):
            return ""
        ranks = numbers_of(range(target.layout.tp // 2))
        return (f"each rank has one stretch of {parse_op(op).body}.{parameter}, so that rank {ranks} has the first "
                "half: if it is two projections in one, each rank needs a part of both")  # fmt: skip
    return ""
