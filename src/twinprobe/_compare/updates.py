"""What the optimizers of two runs read and wrote, added to the comparison of the runs themselves.

A run of modules alone records no call of an optimizer: its optimizer.json, compared as a run of its own, tells whether
gradients, settings and updated parameters agree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import isclose, isfinite
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from twinprobe._align.calls import MINDSPORE, bare_path, epsilon
from twinprobe._align.links import Pairs
from twinprobe._align.matcher import match_names, match_updates
from twinprobe._judge.describe import said_of, size_words, unsized
from twinprobe._judge.deviation import DIFFERS
from twinprobe._judge.flow import NONE
from twinprobe._judge.operations import other_formula
from twinprobe._judge.results import PARAMETER_GRADIENTS, UPDATED_PARAMETERS
from twinprobe._judge.search import ARGUMENT, BETWEEN, EXTRA, MISSING, OUTPUT_DIFFERS, OUTSIDE, PARAMETER_DIFFERS
from twinprobe._judge.summary import Divergence, Summary
from twinprobe._runs.names import (
    ADAPTIVE_LR,
    ANY_SETTING,
    BACKWARD,
    BEFORE,
    FUSED_BIAS,
    GRADIENTS,
    IN_OPTIMIZER,
    MODULE_BACK,
    RATE_SETTING,
    STEP_SETTING,
    TOTAL_NORM,
    UNDECAYED,
    optimizer_class,
    parse_op,
    updated_parameter,
)
from twinprobe._runs.run import DIGESTS, DUMP, Run, open_run
from twinprobe._runs.sketches import BLOCKS
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER, STATS, TENSOR
from twinprobe.errors import TwinProbeError

if TYPE_CHECKING:
    import polars as pl

    from twinprobe._judge.verdicts import Judged

SCALE_OF_LOSS = ", and the optimizer reads gradients that agree: a scale of the loss"
_FROM_OUTSIDE = " comes from outside and differs"
_NOT_OF_THE_PASS = ", though the gradients of this step's backward pass agree"
_SAME_MEAN = 1e-2  # of a loss: 16 bits
_MANY, _FEW, _MORE = 0.25, 0.1, 4.0  # of all updated parameters, twice; times the noise


def adaptive_rate(files: Iterable[Path]) -> float | None:
    """The largest rate of optimizers that make whole steps of gradients that are noise (Adam), as the first of these
    optimizer.json files that can be read has it: 0 if none does. None where no file can be read."""
    for file in files:
        with suppress(TwinProbeError):  # reported where updates are compared
            table = open_run(file).table
            settings = dict(table.filter(table["name"].str.contains(RATE_SETTING)).select("name", "max").rows())
            rates = {name: rate for name, rate in settings.items() if rate and re.search(ADAPTIVE_LR, name)}
            # RMSprop corrects no bias: its average of squares begins with a small share of the first one.
            shares = {name: 1 - (settings.get(f"{name.removesuffix('lr')}alpha") or 0.0) for name in rates}
            return max((rate / max(shares[name], 1e-4) ** 0.5 for name, rate in rates.items()), default=0.0)
    return None


def rate_of_noise(files: Sequence[Path]) -> float:
    """``adaptive_rate`` of two runs whose optimizers are set alike; 0 where they are not, or it is not known.

    An optimizer's eps is left out: frameworks mean different things by it.
    """
    rates: list[float] = []
    for file in files:
        rate = adaptive_rate([file]) if file.is_file() else None
        if not rate:
            return 0.0
        rates.append(rate)
    runs = open_run(files[0]), open_run(files[1])
    return 0.0 if _other_settings(runs, STEP_SETTING) else min(rates)


def _other_settings(runs: tuple[Run, Run], names: str) -> dict[str, tuple[list[float], list[float]]]:
    """The settings with these names that both runs have, where their values differ: all values of each run."""
    values: list[dict[str, set[float]]] = [{}, {}]
    for run, found in zip(runs, values, strict=True):
        for key, value in zip(run.table["name"].str.extract(names), run.table["max"], strict=True):
            if key is not None and value is not None and isfinite(value):
                found.setdefault(key, set()).add(value)
    mine, golden = values
    return {key: (sorted(mine[key]), sorted(golden[key])) for key in mine if mine[key] != golden.get(key, mine[key])}


def settings_without_effect(runs: tuple[Run, Run]) -> str:
    """A note on settings that differ while the updates agree: 16 bits, or few steps, show no small one. Else empty."""
    if runs[0].framework != runs[1].framework or _classes(runs[0]) != _classes(runs[1]):
        return ""  # the same number means something else
    words = [
        f"{key} {', '.join(f'{value:g}' for value in mine)} against {', '.join(f'{value:g}' for value in golden)}"
        for key, (mine, golden) in _other_settings(runs, ANY_SETTING).items()
        if key != "step"
    ]
    return f"settings of the optimizers differ, with no effect seen so far: {'; '.join(words)}" if words else ""


def written_values(runs: tuple[Run, Run], match: Callable[[Run, Run], Pairs]) -> set[tuple[float, ...]]:
    """What the optimizers of both runs wrote, by parameters: max, min, mean and norm, the target's and golden's."""
    pairs = match(*runs)
    matched = (pairs.target >= 0) & (pairs.golden >= 0)
    sides = []
    for run, rows in ((runs[0], pairs.target[matched]), (runs[1], pairs.golden[matched])):
        table = run.table.select("role", *STATS)[rows.tolist()]
        sides.append([(role, *numbers) for role, *numbers in table.iter_rows()])
    both = zip(*sides, strict=True)
    return {(*mine, *golden) for (role, *mine), (_, *golden) in both if role == OUTPUT and None not in mine}


def noise_of_steps(names: pl.Series, updates: Judged, calls: pl.Series, passes: Judged, step: int) -> str:
    """A note where gradients that optimizers were given are all that differs, and no farther off than the gradients in
    the backward passes of their modules, which agree; empty elsewhere. In the first step, noise makes few of them."""
    differs = updates.state == DIFFERS
    if step == 0:
        differs &= np.isin(updates.calls.of_row, [beginning.call for beginning in updates.beginnings])
    rows = np.flatnonzero(differs).tolist()
    differing = {str(names[row]): float(updates.error[row]) for row in rows}
    gradients = [name for name in differing if not name.startswith(TOTAL_NORM)]
    if not gradients or not all(name.endswith(".input.0") for name in gradients):
        return ""
    if step == 0 and len(gradients) > _FEW * names.str.ends_with(".input.0").to_numpy().sum():
        return ""
    off: dict[str, float] = {}
    modules = calls.str.extract(MODULE_BACK).to_list()
    for module, error in zip(modules, np.nan_to_num(passes.error).tolist(), strict=True):
        off[module or ""] = max(off.get(module or "", 0.0), error)
    may = {name: off.get(updated_parameter(name).rpartition(".")[0], 0.0) for name in gradients}
    # The norm of all gradients is no farther off than the worst of them.
    worst = max(may.values())
    if not all(error <= _MORE * may.get(name, worst) for name, error in differing.items()):
        return ""
    before = " of the steps before" if step else ""
    return f"{gradients[0]} is as far off as in its backward pass, which agrees: noise{before}"


def micro_mean(pairs: pl.DataFrame, op: str, micro: Sequence[int]) -> bool:
    """Whether a loss is divided by as many micro batches as its run has: that is no mistake, whatever comes later.

    Where only the target divides it, the loss before that is what golden has.
    """
    rows = {name: norms for name, *norms in pairs.select("t_name", "t_norm", "g_norm").iter_rows()}
    (mine, golden), (before, _) = (rows.get(f"{op}.{end}", (None, None)) for end in ("output.0", "input.0"))
    golden = before if golden is None else golden
    if micro[0] == micro[1] or mine is None or golden is None:
        return False
    return bool(np.isclose(mine * micro[0], golden * micro[1], rtol=_SAME_MEAN, atol=0.0))


def add_little(summary: Summary, target: Run, golden: Run) -> bool:
    """Whether the files of updates add nothing: to checksums, to ranks put together, to recorded calls that agree."""
    runs = target, golden
    if summary.mode == DIGESTS or any(run.arrangement or run.path.name != DUMP for run in runs):
        return True
    first = summary.first
    # Where the optimizer's calls were recorded, all that is left to add is a setting: the one that explains their
    # difference, or one that changes too little to be seen yet.
    inside = first is None or (first.module == IN_OPTIMIZER and first.begins not in (PARAMETER_DIFFERS, OUTSIDE))
    return _calls_recorded(summary, runs) and not inside


def _calls_recorded(summary: Summary, runs: tuple[Run, Run]) -> bool:
    """Whether the optimizers' calls were compared, up to the parameters that they wrote. One call for all of them (a
    fused Adam) returns nothing, and has no counterpart in a loop."""
    recorded = all(IN_OPTIMIZER in run.parents.values() for run in runs)
    return recorded and any(result.name == UPDATED_PARAMETERS for result in summary.results)


def parameter_matcher(target: Run, golden: Run, pairs: pl.DataFrame) -> Callable[[Run, Run], Pairs]:
    """How updates are paired: by the names of parameters; across frameworks, as the modules that hold them were."""
    if target.framework == golden.framework:
        return _by_names
    rows = pairs.filter((pairs["t_row"] >= 0) & (pairs["g_row"] >= 0)).select("t_row", "g_row")
    sides = []
    for run, column in ((target, "t_row"), (golden, "g_row")):
        places = rows[column].to_numpy()
        calls = [parse_op(run.ops[op]) for op in run.table["op"].to_numpy()[places].tolist()]
        values = run.table["name"].to_numpy()[places].tolist()
        sides.append([
            f"{call.body}.{name.rpartition('.parameters.')[2]}" if call.is_module and ".parameters." in name else ""
            for call, name in zip(calls, values, strict=True)
        ])  # fmt: skip
    return partial(match_updates, names={name: there for name, there in zip(*sides, strict=True) if name and there})


def _by_names(target: Run, golden: Run) -> Pairs:
    """By their names, which end with the optimizer's class: one of another class has written to the same parameters."""
    other = _classes(target) != _classes(golden)
    return match_updates(target, golden) if other else match_names(target, golden)


def _classes(run: Run) -> list[str]:
    return sorted({optimizer_class(op) for op in run.ops})


def join_updates(summary: Summary, updates: Summary, runs: tuple[Run, Run], update_runs: tuple[Run, Run]) -> Summary:
    """The summary of two runs with what the comparison of their updates says.

    An update is the first divergence where nothing before it differs, or only parameters that were read before: these
    were written to in between.
    """
    target, golden = runs
    first = summary.first
    if _calls_recorded(summary, runs):
        update = updates.first
        if first is None and update is not None and update.begins == ARGUMENT:
            return replace(summary, first=replace(update, order=NONE, module=IN_OPTIMIZER))
        return summary if first is None else _by_setting(summary, first, update)
    if first is not None and (parameter := _parameter_of_no_call(first, runs, update_runs)) is not None:
        results = [*summary.results, *updates.results]
        return replace(summary, first=parameter, others=[first, *summary.others], results=results)
    if first is not None and _loss_scaled(first, updates):
        results = [result for result in summary.results if result.name != PARAMETER_GRADIENTS]
        note = f"{first.row} is scaled on the way back{SCALE_OF_LOSS}"
        summary, first = replace(summary, first=None, others=[], results=results, notes=[*summary.notes, note]), None
    earlier = first is not None and (first.begins != PARAMETER_DIFFERS or parse_op(first.op).call in (0, NONE))
    if first is not None and not earlier:  # what is read before anything came back was not yet written to
        back = (at for at, op in enumerate(target.op_names) if op.direction in (BACKWARD, GRADIENTS))
        earlier = first.op in target.ops[: next(back, 0)]
    update = updates.first
    if target.framework == golden.framework:
        if update is None or update.op.startswith(TOTAL_NORM):
            update = _updated_in_one_run(*update_runs) or update
    else:  # a parameter may lack its counterpart for its name alone
        both = (one for one in (updates.first, *updates.others) if one is not None)
        update = next((one for one in both if one.begins not in (MISSING, EXTRA)), None)
    if update is not None and update.begins not in (ARGUMENT, MISSING, EXTRA):
        # Nothing in this file says how far gradients may be off, and Adam makes a whole step of noise: single ones say
        # nothing, nor do those that are as far off in a run that agrees.
        gradients = (result.worst for result in summary.results if result.name == PARAMETER_GRADIENTS and first is None)
        exact = first is None and not any(result.worst for result in summary.results)  # no noise that could grow
        single = not exact and not any(result.differing > _MANY * result.values for result in updates.results)
        if single or (update.relative_error or 0.0) < _MORE * max(gradients, default=0.0):
            return summary
    summary = replace(summary, results=[*summary.results, *updates.results])
    if update is None or earlier:
        return summary
    given = update.begins == OUTSIDE and update.argument == "input.0" and not update.op.startswith(TOTAL_NORM)
    if given and first is None and _FROM_OUTSIDE in update.sentence:
        passed = any(result.name == PARAMETER_GRADIENTS for result in summary.results)
        factor = _factor(update)
        cause = f": {factor:.4g} x golden's" if factor else ": is zero_grad missing?" if passed and target.step else ""
        words = "the optimizer is given another gradient" + (_NOT_OF_THE_PASS if passed else "")
        update = replace(update, sentence=f"{update.argument}: {words}{cause}{size_words(update)}")
    # A setting differs for all parameters alike, as do gradients that were kept: it is reported once.
    others = [
        replace(other, order=NONE) for other in updates.others
        if unsized(other) != unsized(update) and not (given and other.begins == OUTSIDE)
    ]  # fmt: skip
    return replace(summary, first=replace(update, order=NONE, module=IN_OPTIMIZER), others=others)


def _parameter_of_no_call(first: Divergence, runs: tuple[Run, Run], update_runs: tuple[Run, Run]) -> Divergence | None:
    """The one parameter that differs before the first step and that no recorded call shows, where the runs part in code
    that nobody recorded: the model's own, around its modules, reads it."""
    import polars as pl

    if runs[0].step != 0 or first.begins not in (BETWEEN, OUTSIDE):
        return None
    shown: set[str] = set()
    for name in runs[0].table.filter(runs[0].table["role"] == PARAMETER)["name"].to_list():
        call, _, parameter = name.rpartition(".parameters.")
        shown.add(f"{bare_path(parse_op(call).body)}.{parameter}")
    sides = []
    for run in update_runs:
        rows = run.table.filter((pl.col("role") == PARAMETER) & (pl.col("kind") == TENSOR))
        sides.append({name: stats for name, *stats in rows.select("name", "dtype", "shape", *STATS).iter_rows()})
    # A norm that another kernel adds up differs in its last digits.
    other = [
        name for name, stats in sides[0].items() if (golden := sides[1].get(name)) is not None
        and (stats[:4] != golden[:4] or not isclose(stats[-1] or 0.0, golden[-1] or 0.0, rel_tol=1e-5))
    ]  # fmt: skip
    op = other[0].rpartition(".parameters.")[0] if len(other) == 1 else ""
    path = updated_parameter(op)
    if not op or bare_path(path) in shown:
        return None
    values = [dict(zip(("dtype", "shape", *STATS), map(str, side[other[0]]), strict=True)) for side in sides]
    norms = [side[other[0]][-1] or 0.0 for side in sides]
    apart = f"norm {norms[0]:.4g} against {norms[1]:.4g}"
    sentence = f"the parameter {path} differs before the first step: {apart}; code outside of recorded calls reads it"
    return replace(
        first, op=op, row=other[0], golden_row=other[0], stack_line="", target_values=values[0],
        golden_values=values[1], sentence=sentence,
        relative_error=abs(norms[0] - norms[1]) / norms[1] if norms[1] else None,
        order=NONE, module=path.rpartition(".")[0], argument=BEFORE, begins=PARAMETER_DIFFERS,
        kinds=[{"name": PARAMETER_DIFFERS, "sentence": f"{path}: {apart}", "confidence": 0.9}],
        error_eps=None, expected_eps=None, times_noise=None,
    )  # fmt: skip


def _factor(update: Divergence) -> float | None:
    """By what a gradient is scaled as a whole: its extremes and its norm alike."""
    ratios = []
    for name in ("max", "min", "norm"):
        with suppress(KeyError, ValueError, ZeroDivisionError):
            ratios.append(float(update.target_values[name]) / float(update.golden_values[name]))
    alike = len(ratios) == 3 and np.allclose(ratios, ratios[-1], rtol=_SAME_MEAN, atol=0.0)
    return ratios[-1] if alike else None


_NO_DECAY = "MindSpore's optimizers leave out what is called gamma or beta, unless groups of parameters say otherwise"


def by_framework(first: Divergence, target: Run, golden: Run) -> Divergence:
    """The divergence, with the reason where a framework's own way of doing things is behind an update that differs."""
    why = other_formula(*(row.partition(".forward.")[0].split(".")[-2:][0] for row in (first.row, first.golden_row)))
    why = why if first.begins == OUTPUT_DIFFERS else ""
    for framework, row, words in (
        (target.framework, first.row, r"weight_decay: 0 against "),
        (golden.framework, first.golden_row, r"weight_decay: \S+ against 0(?![.\d])"),
    ):
        if framework == MINDSPORE and re.search(UNDECAYED, row) and re.search(words, first.sentence):
            why = _NO_DECAY
    return replace(first, sentence=f"{unsized(first)}: {why}{size_words(first)}") if why else first


def _by_setting(summary: Summary, first: Divergence, setting: Divergence | None) -> Summary:
    """Name the setting of an optimizer that differs: its calls show its effect (a factor, an additional call)."""
    kinds = [] if setting is None or setting.begins != ARGUMENT else [k for k in setting.kinds if k["name"] == ARGUMENT]
    if not kinds:
        return summary
    words = str(kinds[0]["sentence"]).replace("input.", "")
    # A number that was made of the setting, or of two calls that are no pair, is no effect.
    effect = size_words(first) if first.begins == ARGUMENT else f"; {said_of(first)}"
    shapes = [kind for kind in first.kinds if kind["name"] != ARGUMENT]
    first = replace(
        first,
        sentence=f"{first.argument}: a setting of the optimizer differs: {words}{effect}",
        begins=ARGUMENT,
        kinds=[{**kinds[0], "sentence": words}, *shapes],
    )
    return replace(summary, first=first, others=[other for other in summary.others if other.module != IN_OPTIMIZER])


def _loss_scaled(first: Divergence, updates: Summary) -> bool:
    """Whether gradients are off by a factor on the way back that they lose before an optimizer reads them."""
    agree = updates.first is None and bool(updates.results) and all(result.agrees for result in updates.results)
    back = parse_op(first.op).direction in (BACKWARD, GRADIENTS)
    return agree and back and any(kind["name"] == "factor" for kind in first.kinds)


def _updated_in_one_run(target: Run, golden: Run) -> Divergence | None:
    """A parameter that the optimizer of one run alone changes, because only there it has a gradient."""
    for run, other, side in ((golden, target, "golden"), (target, golden, "target")):
        there, moved = set(other.ops), []
        for number, op in enumerate(run.ops):
            if op in there or op.startswith(TOTAL_NORM):
                continue
            rows = run.table.filter((run.table["op"] == number) & (run.table["kind"] == TENSOR))
            gradient, before, after = (
                rows.filter(rows["role"] == role)["norm"].drop_nulls().to_list() for role in (INPUT, PARAMETER, OUTPUT)
            )
            if any(gradient) or before != after:  # a gradient of zeros moves nothing; 16 bits show no small step
                moved.append(op)
        if moved and 2 * len(moved) < len(run.ops):  # otherwise another optimizer, which names them differently
            more = f" and {len(moved) - 1} more" if len(moved) > 1 else ""
            sentence = f"only the {side} run's optimizer changes this parameter{more}: only there it has a gradient"
            begins, row = MISSING if side == "golden" else EXTRA, f"{moved[0]}.output.0"
            return Divergence(
                moved[0], row, row, "", {}, {}, None, sentence, "injected", NONE, argument="output.0", begins=begins,
                kinds=[{"name": begins, "sentence": sentence, "confidence": 0.9}],
            )  # fmt: skip
    return None


def silent_parts(dump: Path) -> dict[str, float]:
    """Of gradients as backward gave them, the share of elements that are nothing but rounding, by their parameters.

    Keys that all move alike change no softmax, so the gradient of their bias is zero in theory. It is one if it is
    beyond the last digit of its module's other gradients. A third of a fused bias is such a one: the blocks of sketches
    tell, beyond the last digit of others, or the name, if each head has its own queries, keys and values.
    """
    import polars as pl

    try:
        run = open_run(dump)
        sketches = run.sketches
    except (TwinProbeError, OSError):
        return {}
    rows = run.table.with_row_index("at").filter((pl.col("role") == GRADIENT) & (pl.col("kind") == TENSOR))
    largest = dict(rows.group_by("op").agg(pl.col("norm").max()).iter_rows())
    found: dict[str, float] = {}
    for at, op, name, dtype, norm in rows.select("at", "op", "name", "dtype", "norm").iter_rows():
        path = f"{bare_path(parse_op(run.ops[op]).body)}.{name.removeprefix(run.ops[op]).split('.')[1]}"
        blocks = sketches.of(np.array([at]))["block_norm"][0] if sketches is not None else np.zeros(0)
        quiet = int((blocks <= epsilon(dtype) * blocks.max(initial=0.0)).sum())
        share = (quiet + 2) / BLOCKS if 0 < quiet < BLOCKS else 0.0  # the blocks at both ends have some more
        if norm is not None and norm <= epsilon(dtype) * (largest[op] or 0.0):
            share = 1.0
        elif FUSED_BIAS.search(path):
            share = max(share, 1 / 3)
        found |= {path: min(share, 1.0)} if share else {}
    return found
