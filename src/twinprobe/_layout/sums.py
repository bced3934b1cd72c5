"""Sums and means over ranks: their shares of a batch, copies that should be equal, and parts that nothing adds up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import nan, prod

import numpy as np

from twinprobe._align.calls import epsilon
from twinprobe._layout.pieces import Piece, same
from twinprobe._layout.ranks import REDUCTION, token_shape
from twinprobe._layout.shared import told_by_optimizers
from twinprobe._layout.sketched.blocks import CLOSE, sketch_of
from twinprobe._layout.whole import Whole
from twinprobe._layout.wrong_ranks import NEARER, NO_REPLICA, NOT_GOLDENS, NOTHING, numbers_of
from twinprobe._runs.names import BACKWARD, FORWARD, is_module
from twinprobe._runs.run import Run
from twinprobe._runs.table import INPUT, OUTPUT, STATS

# Of the largest element: how near the means of a tensor added up in two ways are, and how far those of other tensors.
_SAME_MEAN, _APART = 1e-6, 1e-4
_BIASED = 1e-3  # of the largest element: a bias that shows
_SAME_NORM = 1e-3  # relative: of the same gradients
_PLAIN = 0.1  # relative: whatever rounding makes of a norm, two parts would make it twice as large


def shares_of(whole: Whole) -> dict[str, list[float]]:
    """The share that each place of a batch axis has in the whole batch: by words where they differ, else equal."""
    layout, shares = whole.layout, {}
    for axis in ("dp", "ep", "cp"):
        size = layout.size(axis)
        if size > 1:
            counts = [0.0] * size
            for rank, dump in whole.ranks.items():
                tokens = token_shape(dump.run)
                counts[getattr(layout.place(rank), axis)] += prod(tokens) if tokens else 0
            total = sum(counts)
            shares[axis] = [count / total for count in counts] if all(counts) else [1 / size] * size
    if whole.micro > 1:
        shares["micro"] = [1 / whole.micro] * whole.micro
    return shares


def gradient_shares(
    whole: Whole, partners: Mapping[int, int], golden: Mapping[str, Sequence[float | None]], other: Run
) -> dict[str, list[float]]:
    """The shares by which the gradients of a step count: those of the words, none if they carry them already."""
    shares = shares_of(whole)
    if shares and divided_before(whole, partners, golden, batches_of(other)):
        whole.assumed.append("gradients are added up as they are: the loss was divided before backward")
        return added_up_beside(whole, other)
    return {"dp": [1 / whole.layout.dp] * whole.layout.dp} if equal_shares(whole, partners, golden) else shares


def batches_of(other: Run) -> int:
    """Of how many micro batches of one process a mean was taken, though it may add them up."""
    return other.micro if isinstance(other, Whole) and other.layout.rank_size == 1 else 1


def added_up_beside(whole: Whole, other: Run) -> dict[str, list[float]]:
    """The shares of parts that add up, beside a mean over the other run's micro batches."""
    axis, size, count = "micro" if whole.micro > 1 else "dp", max(whole.micro, 1), batches_of(other)
    return {axis: [1 / count] * (size if size > 1 else whole.layout.dp)} if count > 1 else {}


def equal_shares(whole: Whole, partners: Mapping[int, int], golden: Mapping[str, Sequence[float | None]]) -> bool:
    """Whether ranks with unequal numbers of words have equal shares of the gradients: a loss that each rank divides by
    the words of all, and multiplies by the ranks that DDP divides by. The first gradient that they cut tells."""
    words = shares_of(whole).get("dp", [])
    if whole.layout.dp < len(whole.ranks) or len(set(words)) < 2:
        return False
    roles, ops = whole.table["role"].to_list(), whole.pieces["op"].to_list()
    for row, partner in partners.items():
        goal, pieces = golden["norm"][partner], whole.pieces_of(row) if f".{BACKWARD}" in ops[row] else []
        norms = [piece.stats[3] or 0.0 for piece in pieces]
        if roles[row] == INPUT and goal and len(norms) == len(words) and len({piece.shape for piece in pieces}) > 1:
            by_words, equal = (sum((norm * share) ** 2 for norm, share in zip(norms, shares, strict=True)) ** 0.5
                               for shares in (words, [1 / len(words)] * len(words)))  # fmt: skip
            return bool(abs(equal / goal - 1) < _SAME_NORM < abs(by_words / goal - 1))
    return False


def divided_before(
    whole: Whole, partners: Mapping[int, int], golden: Mapping[str, Sequence[float | None]], batches: int = 1
) -> bool:
    """Whether the loss was divided before backward began, so that gradients carry their shares already.

    The gradient of the loss tells, or the loss: where each rank divides its sum by the words of all ranks, golden's is
    their sum. At L0, where none is recorded, the first gradient that a module is given does: the norm of all its parts
    is golden's, not as many times larger as there are parts. ``batches``: of golden's, that its values are means of.
    """
    roles, shapes, ops = whole.table["role"].to_list(), whole.table["shape"].to_list(), whole.pieces["op"].to_list()
    given = [row for row in range(whole.table.height)
             if roles[row] == INPUT and f".{BACKWARD}" in ops[row] and row in partners]  # fmt: skip
    scalars = [row for row in given if shapes[row] == "[]"]
    if scalars:
        goal = golden["max"][partners[scalars[0]]]
        values = [piece.stats[0] for piece in whole.pieces_of(scalars[0]) if not any(piece.place[4:])]
        if goal is None or None in values:
            return False
        goal *= batches
        total = sum(value for value in values if value is not None)
        if len(values) < 2 or (abs(total - goal) <= 1e-6 * abs(goal) and values[0] != goal):
            return len(values) > 1
        made = (ops[scalars[0]].replace(f".{BACKWARD}", f".{FORWARD}"), OUTPUT)
        row = next((row for row, of in enumerate(zip(ops, roles, strict=True)) if of == made and row in partners), -1)
        losses = [piece.stats[0] for piece in whole.pieces_of(row) if not any(piece.place[4:])] if row >= 0 else [None]
        goal = golden["max"][partners[row]] if row >= 0 else None
        return bool(goal and None not in losses and abs(sum(map(float, losses)) / goal / batches - 1) < _PLAIN)  # type: ignore[arg-type]
    if not given or whole.layout.tp > 1:
        return False
    pieces, goal = whole.pieces_of(given[0]), golden["norm"][partners[given[0]]]
    norms = [piece.stats[3] for piece in pieces]
    if len(pieces) < 2 or not goal or None in norms or shapes[given[0]] == str(list(pieces[0].shape or ())):
        return False
    return bool(abs(sum(norm * norm for norm in norms if norm is not None) ** 0.5 / goal - 1) < _PLAIN)


def equal_parts(whole: Whole, row: int, other: Run, goal: float | None) -> int:
    """How many parts of a sum equal gradients of a parameter are: as many as there are tensor parallel ranks, if
    golden's is as many times as large. So it is behind a mean over a cut sequence; optimizers tell what became of them.
    """
    tp, norm = whole.layout.tp, whole.pieces["norm"][row][0]
    sums = tp > 1 and norm and goal and abs(tp * norm / goal - 1) < _PLAIN
    return tp if sums and told_by_optimizers(whole, other) else 1


def odd_copies(
    groups: Sequence[Sequence[Piece]],
    goal: Sequence[float | None] | None,
    members: Mapping[int, Sequence[int]],
    parts_in: Callable[[Sequence[Piece]], str],
) -> tuple[str, Piece]:
    """Which copies differ, in words: from the other side's value, or from most others; and the first group's worst.

    Each group has copies of another part of the value. ``members``: the ranks whose shards make up a copy. ``parts_in``
    asks sketches whether the other side's value is the sum or the mean of copies.
    """
    group = groups[0]

    def distance(piece: Piece) -> float:
        if goal is not None:
            pairs = [(one, other) for one, other in zip(piece.stats, goal, strict=True) if None not in (one, other)]
            return max((abs(one - other) for one, other in pairs), default=0.0)  # type: ignore[operator]
        return -sum(same([piece, one]) for own in groups if piece in own for one in own)

    best, odd = min(group, key=distance), max(group, key=distance)
    scale = max((abs(one) for one in goal if one is not None), default=0.0) if goal is not None else 0.0
    if goal is not None and distance(best) > 1e-5 * scale:
        ranks, parts = numbers_of([piece.rank for piece in group]), parts_of(goal, group) or parts_in(group)
        if parts:
            adds = "adds them up" if parts == "sum" else "averages them"
            return f"golden's is the {parts} of what ranks {ranks} hold, {NOTHING} {adds}", odd
        if distance(best) > NEARER * distance(odd):  # else it is off by noise
            return f"the copies of ranks {ranks} differ{NOT_GOLDENS}", odd
    wrong: set[int] = set()
    for own in groups:
        good = min(own, key=distance)
        wrong |= {rank for one in own if not same([one, good]) for rank in members.get(one.rank, [one.rank])}
    return (f"rank {numbers_of(sorted(wrong))}'s {NO_REPLICA}" if wrong else ""), odd


def other_parts(whole: Whole, group: Sequence[Piece], said: str) -> str:
    """What is said of parts that nothing adds up; of parts that some ranks gave to a recorded sum as they are, that
    others gave another one."""
    wrong = []
    for piece in group:
        table = whole.ranks[piece.rank].run.table
        taken = table.filter(table["name"].str.contains(REDUCTION + r".*\.input\.") & (table["norm"] == piece.stats[3]))
        wrong += [piece.rank] if piece.stats not in taken.select(*STATS).rows() else []
    return f"rank {numbers_of(wrong)} adds another value to the sum" if len(wrong) < len(group) else said


def parts_of(goal: Sequence[float | None], group: Sequence[Piece]) -> str:
    """Whether a value is the sum or the mean of what the ranks hold: means tell, if no rank's own comes near."""
    high, low, mean, _ = goal
    means = [piece.stats[2] for piece in group if piece.stats[2] is not None]
    if high is None or low is None or mean is None or len(means) < len(group):
        return ""
    scale = max(abs(high), abs(low))
    if any(abs(own - mean) <= _APART * scale for own in means):
        return ""
    found = {"sum": sum(means), "mean": sum(means) / len(means)}
    return next((word for word, value in found.items() if abs(value - mean) <= _SAME_MEAN * scale), "")


def parts_of_number(pieces: Sequence[Piece], golden: Mapping[str, Sequence[float | None]], partner: int | None) -> bool:
    """Whether the other side's single number is the sum or the mean of the ranks', of which none is it."""
    goal, own = golden["max"][partner] if partner is not None else None, [piece.stats[0] for piece in pieces]
    if goal is None or None in own or any(piece.shape != () for piece in pieces):
        return False
    total, nearest = sum(map(float, own)), min(abs(float(one) - goal) for one in own)  # type: ignore[arg-type]
    return min(abs(total - goal), abs(total / len(own) - goal)) <= NEARER * nearest


def sum_and_bias(whole: Whole, row: int, goal: Sequence[float | None], group: Sequence[Piece]) -> str:
    """Whether a value is the sum of what the ranks hold, to which each of them has added the bias of its module."""
    bias = bias_of(whole, whole.pieces["op"][row])
    return "" if bias is None else parts_of(goal, [
        piece._replace(stats=(*piece.stats[:2], (piece.stats[2] or nan) - bias * (1 - 1 / len(group)), piece.stats[3]))
        for piece in group
    ]).replace("mean", "")  # fmt: skip


def bias_too_often(whole: Whole, op: str, mean: float | None, goal: float | None, scale: float) -> list[str]:
    """Whether a mean is off by the bias of a module, as often as ranks could have added it before a sum, in words."""
    bias, tp = bias_of(whole, op), whole.layout.tp
    if tp == 1 or bias is None or mean is None or goal is None or abs(bias) < _BIASED * scale:
        return []
    if abs(mean - goal - (tp - 1) * bias) > _SAME_MEAN * scale:
        return []
    return [f"it is off by {tp - 1} times the bias: each of {tp} ranks adds it before the sum"]


def bias_of(whole: Whole, op: str) -> float | None:
    """The mean of the bias of a module, which is called or makes a call, if all ranks have the same one."""
    module = op if is_module(op) else whole.parents.get(op) or ""
    rows = np.flatnonzero((whole.table["name"] == f"{module}.parameters.bias").to_numpy()).tolist()
    pieces = whole.pieces_of(rows[0]) if rows else []
    return pieces[0].stats[2] if pieces and same(pieces) else None


def parts_by_sketches(whole: Whole, row: int, other: Run, partner: int, group: Sequence[Piece]) -> str:
    """Whether a value is the sum or the mean of what the ranks hold: sketches add up as the elements do."""
    if isinstance(other, Whole) or whole.micro > 1:
        return ""
    goal = sketch_of(other, other.table["name"][partner])
    names = {piece.rank: name for piece, name in zip(whole.pieces_of(row), whole.names_of(row), strict=True)}
    own = [sketch_of(whole.ranks[piece.rank].run, names[piece.rank]) for piece in group]
    if goal is None or any(one is None or one["count"] != goal["whole"] for one in (goal, *own)):
        return ""
    close = max(CLOSE, epsilon(other.table["dtype"][partner])) * float(np.linalg.norm(goal["sums"]))
    nearest = min(float(np.linalg.norm(one["sums"] - goal["sums"])) for one in own)
    if nearest <= close:
        return ""
    total = np.sum([one["sums"] for one in own], axis=0, dtype=np.float64)
    found = {"sum": total, "mean": total / len(own)}
    close = max(close, NEARER * nearest)  # what 16 bits leave of a sum is noisier than one rounding
    return next((word for word, value in found.items() if np.linalg.norm(value - goal["sums"]) <= close), "")
