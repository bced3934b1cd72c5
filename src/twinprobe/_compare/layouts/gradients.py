"""Gradients of ranks: a multiple of golden's (a missing division, clipping), of one rank alone, or of none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod
from operator import eq
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._align.calls import bare_path, dims, epsilon
from twinprobe._align.links import NONE
from twinprobe._judge.describe import describe
from twinprobe._judge.deviation import DIFFERS, PRODUCT_PRECISION, bools
from twinprobe._judge.search import ARGUMENT, EXTRA, MISSING, OUTSIDE
from twinprobe._judge.summary import Divergence
from twinprobe._layout.ranks import ONE_RANK, gradients_of, micro_batches, passes_of
from twinprobe._layout.settle import FROM_OTHERS, NO_UPDATE, SETTING
from twinprobe._layout.sketched.earlier import ODD, moved
from twinprobe._layout.sketched.updates import parameter_of, rank_factors
from twinprobe._layout.whole import Whole
from twinprobe._layout.wrong_ranks import NOT_GOLDENS, NOTHING, numbers_of, only_on, shards_of, whose
from twinprobe._runs.names import (
    BACKWARD,
    BEFORE,
    FORWARD,
    GIVEN_BACK,
    GIVEN_GRADIENT,
    SCALES,
    TOTAL_NORM,
    is_module,
    parse_op,
    updated_parameter,
)
from twinprobe._runs.run import DUMP, OPTIMIZER_FILE, open_run
from twinprobe._runs.table import STATS
from twinprobe.errors import TwinProbeError

if TYPE_CHECKING:
    import polars as pl

    from twinprobe._compare.one import Comparison

UNREDUCED = "have the gradients of their own backward passes"
_OTHER_ORDER = 4  # epsilons: the same numbers, added up in another order on each rank
_SAME_CLIP = 1e-5  # relative: norms of gradients that were multiplied by one number
_FAR = 10  # times that: no rounding
_FEW_GRADIENTS, _MOST_GRADIENTS, _SAME_FACTOR = 4, 0.9, 1e-3  # all but those that are zero in theory
_EPSILONS = 4  # by which the norm of a gradient in 16 bits is off
SAME_NORM = 1e-5  # relative: norms of the same numbers, added up in another order
_ZERO = 16 * 2.0**-23  # of the norm of all gradients
_GIVEN, _SHOWN = ".input.0", 8


def one_multiple(comparison: Comparison) -> list[str]:
    """Whether gradients that differ are the same multiple of golden's: a mean that is a sum, of experts' alone say."""
    rows = _gradients(comparison)
    ratios, precision = (rows["t_norm"] / rows["g_norm"]).to_numpy(), max(map(epsilon, rows["g_dtype"]), default=0.0)
    if not (np.abs(ratios - 1) > precision).any():
        return []
    sizes: dict[str, int] = defaultdict(lambda: 1)
    for run in (comparison.target, comparison.golden):
        folders = [run.path.parent]
        if isinstance(run, Whole):
            folders = [dump.folder for dump in run.ranks.values()]
            counts = {one: run.layout.size(one) for one in ("dp", "tp", "cp", "ep", "pp")}
            counts["micro batches"] = max(run.micro, *map(micro_batches, run.ranks.values()))
            sizes |= {one: max(count, sizes[one]) for one, count in counts.items()}
        with suppress(TwinProbeError):  # a program that counts micro batches itself calls its modules so often
            sizes["micro batches"] = max(sizes["micro batches"], passes_of(open_run(folders[0] / DUMP)))
    named = {f"{name}={size}": size for name, size in sizes.items() if size > 1}
    batch = [name for name in named if name.startswith(("dp", "cp", "ep"))]
    if len(batch) > 1:  # all ranks that have a part of the batch
        named[" x ".join(batch)] = prod(map(named.get, batch))  # type: ignore[arg-type]
    return _one_factor(ratios, named, max(precision, comparison.target.settings.get(PRODUCT_PRECISION, 0.0)))


def behind_the_scale(comparison: Comparison, scaled: Divergence) -> Divergence | None:
    """The first gradient that a module is given and that differs behind a scale of the loss, where those before it
    agree: it is wrong by itself, though the scale has excused all differences behind it."""
    pairs, state = comparison.evidence.pairs, comparison.judged.state
    given = bools(pairs["t_name"].str.contains(GIVEN_BACK))
    agree = False
    for row in np.flatnonzero(given & pairs["g_row"].is_not_null().to_numpy()).tolist():
        if row <= scaled.order or state[row] != DIFFERS:
            agree |= row > scaled.order
            continue
        if not agree:
            return None
        name, whole, golden = pairs["t_name"][row], comparison.target, comparison.golden
        op, argument = name[: name.index(".input.")], name[name.index("input.") :]
        said = f"{argument}: this gradient differs, though those of the modules behind it agree"
        if isinstance(whole, Whole) and not isinstance(golden, Whole):
            files = pairs["t_file"][row], pairs["g_file"][row]
            own = whose(whole, pairs["t_row"][row], golden, pairs["g_row"][row], files)
            alone = only_on(whole, op)
            said = "; ".join(filter(None, [said, own, alone and f"made by {alone} alone"]))
        return moved(scaled, op, argument, pairs["g_name"][row], row, parse_op(op).body, said)
    return None


def with_effect(comparison: Comparison, update: Divergence) -> Divergence | None:
    """The first value that is as far beyond its noise as the gradients that an optimizer is given, where no result of
    the pass itself shows it: these gradients are its effect. What ranks did with gradients later is another matter."""
    told = any(
        words in update.sentence for words in (NOT_GOLDENS, NOTHING, UNREDUCED, "times golden's", "not the gradient")
    )
    judged, whole, golden = comparison.judged, comparison.target, comparison.golden
    if told or update.argument != "input.0" or judged.noise is None:
        return None
    shown = "the results of the pass are within noise, the gradients that the optimizer is given are not"
    for text in whole.findings if isinstance(whole, Whole) else ():  # what a rank does otherwise in the same layer
        name, _, said = text.partition(": ")
        op, _, argument = name.partition(".input.")
        path = parse_op(op if is_module(op) else whole.parents.get(op) or op).body
        layer = updated_parameter(update.op).startswith(f"{path.rpartition('.')[0]}.")
        if layer and (said.endswith(ONE_RANK) or (SETTING in said and FROM_OTHERS in said)):
            argument = argument and f"input.{argument}"
            rows = comparison.evidence.pairs["t_name"].str.starts_with(name).fill_null(value=False).arg_max() or 0
            words = ": ".join(filter(None, [argument, said]))
            return replace(moved(update, op, argument, name, rows, path, f"{words}; {shown}"), row=name)
    if not update.times_noise:
        return None
    lost = (one for one in judged.beginnings if judged.noise.times[one.row] * _FAR >= update.times_noise)
    names = comparison.evidence.pairs["t_name"]
    found = next((one for one in lost if f".{FORWARD}." in (names[one.row] or "")), None)
    if found is None:
        return None
    first = describe(whole, golden, comparison.evidence, judged, found)
    row = comparison.evidence.pairs.row(found.row, named=True)
    own = whose(whole, row["t_row"], golden, row["g_row"], (row["t_file"], row["g_file"])) if isinstance(
        whole, Whole) and row["g_row"] is not None else ""  # fmt: skip
    sentence = first.sentence.replace(", without effect on any result", "")
    return replace(first, sentence="; ".join(filter(None, [sentence, own, shown])), origin="injected")


def not_given(whole: Whole, dumps: Mapping[int, Path]) -> list[str]:
    """The parameters of which some ranks' backward passes made gradients that their optimizers were not given, while
    another rank of the same part of the model updates all of them: else each updates its share (ZeRO)."""
    updated, found = dict[str, set[int]](), list[str]()
    for row, (op, suffix, ranks) in enumerate(whole.pieces.select("op", "suffix", "rank").iter_rows()):
        if suffix == _GIVEN and not op.startswith(TOTAL_NORM):
            updated[op], placed = set(ranks), whole.placements_of(row)[0]
            absent = sorted(set(placed.mesh) - updated[op]) if placed is not None else []
            found += (
                [f"{op}{_GIVEN}: rank {numbers_of(absent)} {NO_UPDATE}"] if absent and dumps.keys() >= {*absent} else []
            )
    parts: dict[Any, set[int]] = defaultdict(set)
    for rank in sorted(whole.ranks.keys() | dumps.keys()):  # one that makes no step has no table
        parts[whole.layout.place(rank).pp, whole.layout.place(rank).ep].add(rank)
    for ranks in parts.values():
        held = [op for op, own in updated.items() if own & ranks]
        if any(all(rank in updated[op] for op in held) for rank in ranks):
            lacking = {op: sorted(rank for rank in ranks - updated[op]
                                  if rank in dumps and gradients_of(dumps[rank], *parameter_of(f"{op}{_GIVEN}")))
                       for op in held if ranks - updated[op]}  # fmt: skip
            found += [f"{op}{_GIVEN}: rank {numbers_of(own)} {NO_UPDATE}" for op, own in lacking.items() if own]
    return [text for text in found if text not in whole.findings]


def unlike_multiples(comparison: Comparison) -> list[str]:
    """Whether the gradients of each rank are one multiple of golden's, another one on each rank, in words: so they are
    where each rank clips by the norm of what it holds."""
    whole, golden, pairs = comparison.target, comparison.golden, comparison.evidence.pairs
    if not isinstance(whole, Whole) or isinstance(golden, Whole) or len(whole.ranks) < 2:
        return []
    rows = pairs.filter(pairs["t_name"].str.contains(GIVEN_GRADIENT) & pairs["g_row"].is_not_null())
    rows = rows.filter(~rows["t_name"].str.starts_with(TOTAL_NORM))
    for of_copies in (True, False):  # rows of a fused projection may be those of several
        factors: dict[int, list[float]] = defaultdict(list)
        for row, partner in rows.select("t_row", "g_row").iter_rows():
            for rank, factor in rank_factors(whole, row, golden, partner, copies=of_copies):
                factors[rank].append(factor)
        if min(map(len, factors.values()), default=0) >= _FEW_GRADIENTS:
            break
    precision = max(map(epsilon, rows["g_dtype"]), default=0.0)
    close = max(_SAME_FACTOR, _EPSILONS * max(precision, whole.settings.get(PRODUCT_PRECISION, 0.0)))
    usual = {rank: float(np.median(own)) for rank, own in factors.items() if len(own) >= _FEW_GRADIENTS}
    if len(usual) < len(whole.ranks) or max(usual.values()) / min(usual.values()) < 1 + close:
        return []
    if any(np.mean(np.abs(np.array(factors[rank]) / one - 1) < close) < _MOST_GRADIENTS for rank, one in usual.items()):
        return []
    told = ", ".join(f"{one:.4g} times on rank {rank}" for rank, one in sorted(usual.items())[:_SHOWN])
    return [f"all gradients are a multiple of golden's, {told}: ranks clip or scale them by numbers of their own"]


def odd_multiple(comparison: Comparison, first: Divergence) -> list[str]:
    """Whose part of a gradient is wrong, where the parts of others are as many times golden's as most gradients are:
    clipping multiplies all of them by one number."""
    pairs, golden, whole = comparison.evidence.pairs, comparison.golden, comparison.target
    row = pairs.filter(pairs["t_name"] == (first.row or ""))
    if not first.row.endswith(_GIVEN) or not row.height or not isinstance(whole, Whole) or isinstance(golden, Whole):
        return []
    rows, close = _gradients(comparison), max(_SAME_FACTOR, _EPSILONS * epsilon(row["g_dtype"][0]))
    usual = float(np.median((rows["t_norm"] / rows["g_norm"]).to_numpy())) if rows.height else 0.0
    factors = rank_factors(whole, row["t_row"][0], golden, row["g_row"][0], copies=False)
    wrong = sorted(rank for rank, factor in factors if usual and abs(factor / usual - 1) > close)
    return [shards_of(wrong)] if 0 < len(wrong) < len(factors) else []


def not_updated(comparison: Comparison, findings: list[str]) -> Divergence | None:
    """A parameter that only golden's optimizer updates, or not all ranks do, where the total norm differs first, or
    nothing else."""
    first = comparison.summary.first
    if first is None and comparison.target.path.name == OPTIMIZER_FILE:
        op = next((text.partition(f"{_GIVEN}: ")[0] for text in findings if text.endswith(NO_UPDATE)), "")
        row, words = (
            f"{op}{_GIVEN}",
            "input.0: its gradient is made in backward, but not given to the optimizers of all ranks",
        )
        module = parse_op(op).body.rpartition(".")[0] if op else ""
        found = Divergence(op, row, row, "", {}, {}, None, words, "injected", NONE, module, "input.0", MISSING)
        return found if op else None
    if first is None or not first.op.startswith(TOTAL_NORM):
        return None
    known = set(comparison.target.ops)
    lacking = [op for op in comparison.golden.ops if op not in known]
    partly = [text.partition(".input.0: ")[0] for text in findings if text.endswith(NO_UPDATE)]
    if not lacking and not partly:
        return None
    op = (lacking or partly)[0]
    more = f" and {len(lacking) - 1:,} more" if len(lacking) > 1 else ""
    alone = f"only golden updates this parameter{more}: no gradient reaches the target's optimizer"
    sentence = alone if lacking else "a part of the gradient is missing"
    if lacking and isinstance(comparison.target, Whole) and known:
        # What is called most alike lies where it does.
        path = op.split(".")
        near = max(comparison.target.ops, key=lambda name: [*map(eq, name.split("."), path), False].index(False))
        place = only_on(comparison.target, near)
        sentence += f"; {updated_parameter(near)} is on {place}" if place else ""
    return replace(first, op=op, row="" if lacking else f"{op}.input.0", golden_row=f"{op}.input.0", sentence=sentence,
                   module=parse_op(op).body.rpartition(".")[0], argument="input.0", begins=MISSING)  # fmt: skip


def not_shared(comparison: Comparison, findings: Sequence[str]) -> Divergence | None:
    """A gradient of which ranks that have the same parameter were given unlike copies, where nothing else differs.

    However near golden's they are, the ranks' parameters drift apart from here on.
    """
    whole, pairs = comparison.target, comparison.evidence.pairs
    if comparison.summary.first is not None or not isinstance(whole, Whole) or whole.path.name != OPTIMIZER_FILE:
        return None
    apart = {name for name, _, said in (text.partition(": ") for text in findings)
             if NOT_GOLDENS in said or NOTHING in said or UNREDUCED in said}  # fmt: skip
    held = {text.partition(f".{BEFORE}: ")[0] for text in findings}
    asked = (pairs["t_name"].is_in(list(apart)) & pairs["t_name"].str.contains(GIVEN_GRADIENT)).fill_null(value=False)
    for row in np.flatnonzero(asked.to_numpy()).tolist():
        name, norms = pairs["t_name"][row], [piece.stats[3] or 0.0 for piece in whole.pieces_of(pairs["t_row"][row])]
        least, most, op = min(norms), max(norms), name.removesuffix(".input.0")
        if most - least > _OTHER_ORDER * epsilon(pairs["t_dtype"][row]) * most and op not in held:
            words = f"input.0: ranks are given other gradients of one parameter: norm {least:.4g} to {most:.4g}"
            module = parse_op(op).body.rpartition(".")[0]
            return Divergence(
                op, name, pairs["g_name"][row], "", {}, {}, None, words, "injected", row, module, "input.0"
            )
    return None


def before_the_gradients(comparison: Comparison) -> Divergence | None:
    """What comes first in an optimizer's step, wherever it stands: a parameter that differs before the first step of
    all, and of gradients any one before the norm of all of them, by which the others may be clipped."""
    first, pairs = comparison.summary.first, comparison.evidence.pairs
    if first is None or comparison.target.path.name != OPTIMIZER_FILE:
        return None
    judged = comparison.judged
    # Statistics are rounded once when they are recorded: a norm put together of shards is off by less than an epsilon.
    rounded = np.array([epsilon(dtype) for dtype in pairs["g_dtype"].to_list()])
    differs = (judged.state == DIFFERS) & ~(judged.error <= rounded)
    clipped = beside_clipping(comparison, first)
    told = {BEFORE: "the parameter differs", "input.0": "it comes from outside and differs"}
    for argument, said in told.items():
        given = argument == "input.0"
        if clipped < 0 and (first.argument == argument or (given and not first.op.startswith(TOTAL_NORM))):
            return None
        rows = np.flatnonzero(differs & bools(pairs["t_name"].str.ends_with(f".{argument}")))
        names = [(row, pairs["t_name"][row]) for row in rows.tolist() if row >= clipped or not given]
        names = [(row, name) for row, name in names if not name.startswith(TOTAL_NORM)]
        if names and (given or comparison.target.step == 0):
            row, name = names[0]
            other, *norms = (pairs[column][row] for column in ("g_name", "t_norm", "g_norm"))
            op = name.removesuffix(f".{argument}")
            size = "" if None in norms else f": norm {norms[0]:.4g} against {norms[1]:.4g}"
            sentence = f"{argument}: {said}{size}"
            return moved(first, op, argument, other, row, parse_op(op).body.rpartition(".")[0], sentence)
    return None


def held_otherwise(updates: Comparison) -> dict[str, str]:
    """The parameters that optimizers read with other numbers than golden's, and the rows that they stand in."""
    import polars as pl

    gaps = ((pl.col(f"t_{stat}") - pl.col(f"g_{stat}")).abs() > SAME_NORM * pl.col("g_norm") for stat in STATS)
    other = pl.any_horizontal(*gaps)
    names = updates.evidence.pairs.filter(pl.col("t_name").str.ends_with(f".{BEFORE}") & other)["t_name"].to_list()
    return {bare_path(updated_parameter(name.removesuffix(f".{BEFORE}"))): name for name in names}


def of_ranks(notes: Sequence[str], name: str | None) -> str:
    """What is said of single ranks' copies or shards of a value; of those that are said of several, the first."""
    told = (note.partition(": ")[::2] for note in notes if name and note.startswith((f"{name}: ", f"{name} and ")))
    return next((words for _, words in told if words.partition(", ")[0].endswith(ODD)), "")


def scales_the_loss(comparison: Comparison, first: Divergence) -> bool:
    """Whether a single number is multiplied by another factor, or in one run alone: a loss, if it has a way back, or
    none that is recorded while all results agree (a loss over shards, divided by a rank's own words)."""
    call = parse_op(first.op)
    run = comparison.golden if first.begins == MISSING else comparison.target
    rows = run.table.with_row_index("row").filter(run.table["name"] == f"{first.op}.output.0")
    # The whole shape of what only one run has is not known.
    shapes = [run.pieces_of(row)[0].shape if isinstance(run, Whole) else dims(shape)
              for row, shape in rows.select("row", "shape").iter_rows()]  # fmt: skip
    return (
        first.begins in (ARGUMENT, EXTRA, MISSING, OUTSIDE)
        and call.direction == FORWARD
        and bool(SCALES.search(call.body))
        and shapes == [()]
        and (rows["requires_grad"].to_list() == [True] or all(result.agrees for result in comparison.summary.results))
    )


def loss_begins(first: Divergence) -> bool:
    """Whether this is the gradient of the loss, all of it multiplied by a number."""
    return parse_op(first.op).direction == BACKWARD and any(kind["name"] == "factor" for kind in first.kinds)


def of_own_batch(finding: str, whole: Whole, dumps: Mapping[int, Path]) -> str:
    """Of gradients that differ between ranks: whether each rank's optimizer was given what its own backward gave."""
    name, _, said = finding.partition(": ")
    if not said.endswith(NOT_GOLDENS) or not name.endswith(".input.0"):
        return finding
    row = int(np.flatnonzero((whole.table["name"] == name).to_numpy())[0])
    module, _, parameter = updated_parameter(name).rpartition(".")
    for piece in whole.pieces_of(row):
        own = gradients_of(dumps[piece.rank], module, parameter)
        if piece.stats not in own:
            return finding
    ranks = numbers_of(sorted({piece.rank for piece in whole.pieces_of(row)}))
    return f"{name}: ranks {ranks} {UNREDUCED}: nothing has reduced them"


def _one_factor(every: NDArray[np.float64], sizes: Mapping[str, int], precision: float = 0.0) -> list[str]:
    """Whether the norms of gradients that differ are one multiple of golden's, in words with the size that it is of.

    ``precision``: the epsilon of their type.
    """
    close = max(_SAME_FACTOR, _EPSILONS * precision)
    differ = np.abs(every - 1) >= close
    if not differ.any():
        return []
    factors = every[differ]
    usual = float(np.median(factors)) if len(factors) >= _FEW_GRADIENTS else 0.0
    if not usual or np.mean(np.abs(factors / usual - 1) < close) < _MOST_GRADIENTS:
        # Of several optimizers, the one that steps first tells: what it makes of its gradients reaches those of others.
        first = int(differ.argmax())
        other = np.abs(every[first:] / every[first] - 1) >= close
        factors = every[first:][: int(other.argmax()) or None]
        usual = float(np.median(factors))
        if len(factors) < _FEW_GRADIENTS / 2:
            return []
    why = [name for name, size in sizes.items() if abs(max(usual, 1 / usual) / size - 1) < close]
    told = f", as many as {' or '.join(why)}" if why else ""
    if few := len(factors) < _MOST_GRADIENTS * len(every):
        told += ", the others agree" if len(factors) == differ.sum() else ""
    count = len(factors) if few else int(np.sum(np.abs(every / usual - 1) < close))
    counted = f"all {count:,}" if count == len(every) else f"{count:,} of {len(every):,}"
    digits = 4 if precision < _SAME_FACTOR else 2
    # Where not all differ, only a number of ranks is no chance.
    said = f"the gradients of {counted} parameters are {usual:.{digits}g} times golden's{told}"
    return [said] if why or not few else []


def _gradients(comparison: Comparison) -> pl.DataFrame:
    """The pairs of what optimizers were given, but zeros."""
    pairs = comparison.evidence.pairs.with_row_index("order")
    named = pairs["t_name"].str.contains(GIVEN_GRADIENT) & ~pairs["t_name"].str.starts_with(TOTAL_NORM)
    found = pairs.filter(named & (pairs["g_norm"] > 0) & (pairs["t_norm"] > 0))
    every = float(np.linalg.norm(found["g_norm"].to_numpy()))
    return found.filter(found["g_norm"] > _ZERO * every)  # else zero in theory, and noise


def beside_clipping(comparison: Comparison, first: Divergence) -> int:
    """The first row of a gradient that is wrong by itself, where clipping has moved all others by one factor; or -1.

    The norm of all gradients is that of the wrong one, too: what is divided by it is off everywhere.
    """
    rows = _gradients(comparison)
    own = rows.filter(rows["t_name"] == first.row)
    if not own.height or not any(op.startswith(TOTAL_NORM) for op in comparison.target.ops):
        return NONE
    ratios, close = (rows["t_norm"] / rows["g_norm"]).to_numpy(), max(_SAME_CLIP, *map(epsilon, rows["g_dtype"]))
    off = np.abs(ratios / (own["t_norm"][0] / own["g_norm"][0]) - 1)
    clipped, wrong = off <= close, rows["order"].to_numpy()[off > _FAR * close]
    wrong = wrong[comparison.judged.state[wrong] == DIFFERS]
    return int(wrong[0]) if len(wrong) and np.mean(clipped) > 0.5 else NONE
