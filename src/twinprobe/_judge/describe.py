"""What was found, in words: do the results agree, where do the runs part, what kind of difference is it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isnan, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from twinprobe._align.calls import dims
from twinprobe._judge.deviation import (
    Kind,
    Row,
    Suspect,
    dtypes_differ,
    nearby_of,
    parameters_of,
    shown_value,
    side_of,
    sizes_of,
    sketches_of,
)
from twinprobe._judge.flow import NONE, Flow
from twinprobe._judge.kinds.by_calls import attention_words, other_modules
from twinprobe._judge.kinds.by_settings import LATER, built_clause, clipping, kept_gradient, settings_of_layer
from twinprobe._judge.kinds.by_statistics import api_name, statistic_kinds
from twinprobe._judge.operations import argument_name, same_function
from twinprobe._judge.results import PARAMETER_GRADIENTS, result_rows
from twinprobe._judge.rules import RULES
from twinprobe._judge.search import (
    ARGUMENT,
    BETWEEN,
    CAUSES,
    EXTRA,
    MISSING,
    OUTPUT_DIFFERS,
    OUTSIDE,
    PARAMETER_DIFFERS,
    RANDOM,
    Beginning,
)
from twinprobe._judge.summary import Divergence
from twinprobe._judge.verdicts import Evidence, Judged
from twinprobe._runs.dtypes import COMPLEX
from twinprobe._runs.names import (
    BEFORE,
    FORWARD,
    IN_OPTIMIZER,
    LAYERS,
    OPTIMIZER,
    RUNNING_MOMENTUM,
    TOTAL_NORM,
    parse_op,
)
from twinprobe._runs.run import TENSORS, Run
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER, STATS, TENSOR
from twinprobe.errors import TwinProbeError

if TYPE_CHECKING:
    import polars as pl

# What the numbers behind a sentence say as well.
_SIZES = {RULES[rule].words for rule in ("far_norm", "far_sketch", "far_ratio", "far_point", "growth", "cosine")}
_WHOLE = re.compile("(?i)int|bool")
_BY_ARGUMENT = "the output differs because an argument differs"
_MOST_REPLACED = 6  # calls in a group that the other run does not make; more are another implementation
# Frames of a stack that are nobody's model: the frameworks themselves and what starts them. A user's own folder may be
# called torch.
_FRAMEWORK_FILES = re.compile(
    r"-packages/(torch|mindspore|paddle|accelerate|msprobe)/|/torch/(nn|optim|utils|autograd|distributed|_\w+)[/.]"
    r"|importlib|/twinprobe/_|/runpy\.py|<frozen|<string>|<__array"
)
_LARGEST = 1 << 26  # bytes of a tensor that is read once more to name the kind of its difference
_MOST_NOTES = 3
_ROLES = {INPUT: "input", PARAMETER: "parameter", OUTPUT: "output", GRADIENT: "gradient"}


def describe_first(target: Run, golden: Run | None, evidence: Evidence, judged: Judged) -> Divergence | None:
    """Where the two runs part, with both sides' values; None where they do not."""
    if judged.first_row is None:
        return None
    claims = [beginning for beginning in judged.beginnings if beginning.reaches]
    if claims:
        return describe(target, golden, evidence, judged, claims[0])
    row = evidence.pairs.row(judged.first_row, named=True)
    return describe(target, golden, evidence, judged, Beginning(row["t_op"], judged.first_row, ""))


def describe_others(target: Run, golden: Run | None, evidence: Evidence, judged: Judged, most: int) -> list[Divergence]:
    """The next beginnings that the first does not explain."""
    claims = [beginning for beginning in judged.beginnings if beginning.reaches]
    return [describe(target, golden, evidence, judged, claim, kinds=False) for claim in claims[1 : most + 1]]


def describe(
    target: Run, golden: Run | None, evidence: Evidence, judged: Judged, beginning: Beginning, *, kinds: bool = True
) -> Divergence:
    """One beginning: its call, module, line, both sides' values, and what kind of difference it is."""
    at = beginning.row
    row = evidence.pairs.row(at, named=True)
    name = row["t_name"] or row["g_name"]
    run, op = target, target.ops[beginning.call] if beginning.call != NONE else name
    if golden is not None:
        run, op = _named(target, golden, evidence.pairs, beginning) or (run, op)
    error = float(judged.error[at])
    found = _kinds(target, golden, evidence, judged, beginning) if kinds and golden is not None else []
    noise = judged.noise
    floating = row["t_dtype"] is None or not _WHOLE.search(row["t_dtype"])  # whole numbers have no epsilon
    grain = float(noise.grain[at]) if noise is not None and floating else np.nan
    weighed = _clearest(judged, at)
    times = float(noise.times[weighed]) if noise is not None else np.nan
    expected = float(noise.expected[weighed]) if noise is not None else np.nan
    size = size_of(error) if noise is None or beginning.cause in ("", EXTRA) else _size(error, error / grain, times)
    place = name.removeprefix(op).strip(".") or name
    what = _sentence(evidence, judged, beginning, found, place)
    module = _module(run, op)
    if kinds and beginning.cause == OUTPUT_DIFFERS and module != IN_OPTIMIZER and golden is not None:
        call = parse_op(op)
        noted = LAYERS in target.settings and LAYERS in golden.settings
        path = call.body if call.is_module else module
        if noted and (built := settings_of_layer(target, golden, evidence.pairs, path)):
            found.insert(0, Kind(ARGUMENT, "; ".join(built), 0.9))
            what = f"{built_clause(built)}; {what}"
    isolated = evidence.isolated
    if isolated is not None and np.isfinite(isolated.times[at]):
        sides = (("the target", isolated.target_eps[at]), ("golden", isolated.golden_eps[at]))
        shown = ", ".join(f"{eps:.3g} eps in {who}" for who, eps in sides if not isnan(eps))
        what += f"; by itself it is off by {shown}"
    return Divergence(
        op=op,
        row=name,
        golden_row=row["g_name"] or "",
        stack_line=user_line(run.stacks[op]),
        target_values=_values(row, "t"),
        golden_values=_values(row, "g"),
        relative_error=None if isnan(error) else error,
        sentence=f"{place}: {what}{size}{judged.unread_before}",
        origin=judged.origin[at],
        order=at,
        module=module,
        argument=place,
        begins=beginning.cause,
        kinds=[{"name": kind.name, "sentence": kind.sentence, "confidence": kind.confidence} for kind in found],
        error_eps=_number(error / grain),
        expected_eps=_number(expected / grain),
        times_noise=_number(times),
    )


def _clearest(judged: Judged, row: int) -> int:
    """Of all calls that are handed the value of an input: where it stands out most. Inside of a module it is explained
    by what has entered the module, which is the value itself."""
    flow, noise = judged.flow, judged.noise
    if flow is None or noise is None or flow.role[row] != INPUT or flow.source[row] != NONE:
        return row
    same = np.flatnonzero((flow.mark == flow.mark[row]) & (flow.role == INPUT) & (flow.source == NONE))
    times = np.nan_to_num(noise.times[same], nan=-1.0)
    return int(same[np.argmax(times)]) if times.max() > np.nan_to_num(noise.times[row]) else row


def _named(target: Run, golden: Run, pairs: pl.DataFrame, beginning: Beginning) -> tuple[Run, str] | None:
    """The call to be named, where it is not the one that shows the difference: one that is missing, extra or another.

    Calls that are compared as a group differ at its end; what differs in the group is where one looks first.
    """
    alone = beginning.cause in (EXTRA, MISSING) and beginning.call != NONE
    if alone and (modules := other_modules(target, golden, pairs, beginning.call)) is not None:
        return target, modules[0]
    if beginning.cause == MISSING and beginning.arguments:
        missing = pairs["g_op"][beginning.arguments[0]]
        return None if missing is None else (golden, golden.ops[missing])
    only = _replaced(target, golden, pairs, beginning)
    if max(map(len, only)) == 1:  # of several, none is the one: the call that shows the difference is named
        return (target, only[0][0]) if only[0] else (golden, only[1][0])
    return None


def _replaced(target: Run, golden: Run, pairs: pl.DataFrame, beginning: Beginning) -> list[list[str]]:
    """In a group of calls: the calls that only the target makes, and those that only golden makes."""
    group = pairs["group"][beginning.row] if "group" in pairs.columns else None
    if group is None or beginning.cause not in (OUTPUT_DIFFERS, EXTRA):
        return [[], []]
    members = pairs.filter(pairs["group"] == group)
    calls = [
        [run.ops[op] for op in members[f"{side}_op"].drop_nulls().unique().sort().to_list()]
        for run, side in ((target, "t"), (golden, "g"))
    ]
    names = [[parse_op(call).body.strip("_") for call in side] for side in calls]
    only = [
        [call for call, name in zip(side, own, strict=True) if own.count(name) > others.count(name)]
        for side, own, others in zip(calls, names, reversed(names), strict=True)
    ]
    return only if max(map(len, only)) <= _MOST_REPLACED else [[], []]


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def size_words(divergence: Divergence) -> str:
    """How large the error is, as the sentence of a divergence says it."""
    numbers = divergence.relative_error, divergence.error_eps, divergence.times_noise
    error, eps, times = (np.nan if number is None else number for number in numbers)
    return size_of(error) if divergence.begins in ("", EXTRA) else _size(error, eps, times)


def unsized(divergence: Divergence) -> str:
    """What is said of a divergence, without how large it is."""
    return divergence.sentence.replace(size_words(divergence), "")


def said_of(divergence: Divergence) -> str:
    """What is said of a divergence, without its place."""
    return divergence.sentence.removeprefix(f"{divergence.argument}: ")


def _size(error: float, eps: float, times: float) -> str:
    if isnan(error) or error == 0:
        return ""
    share = f"{error:.3g}" if error < 1e-4 else f"{error:.2%}" if error < 10 else f"{error:.1e} times"
    parts = [share if error >= 10 else f"relative error {share}"]
    if not isnan(eps):
        parts.append(f"{eps:.3g} eps")
    if 1 <= times < 1e6:
        parts.append(f"{times:.3g} times the noise")
    return f" ({', '.join(parts)})" if np.isfinite(error) else ""


def size_of(error: float) -> str:
    """How large a relative error is, as the sentence adds it; nothing where there is none."""
    if isnan(error):
        return ""
    return f" (relative error {error:.2%})" if error < 10 else f" ({error:.1e} times)"


def _sentence(evidence: Evidence, judged: Judged, beginning: Beginning, kinds: Sequence[Kind], place: str) -> str:
    """What happened at ``place``: the kind, where one is sure, else the verdict of the row."""
    named = next((kind.sentence for kind in kinds if kind.confidence >= 0.7 and kind.name != "noise"), "")
    named = named.removeprefix(f"{place}: ")
    if named.startswith(f"{place} "):
        named = f"it{named.removeprefix(place)}"
    pairs = evidence.pairs
    if beginning.cause == ARGUMENT:
        # The numbers of a tuple often differ alike: a stride, a shift.
        rows = [pairs.row(row, named=True) for row in beginning.arguments[:6]]
        values = dict.fromkeys(map(_argument, rows))
        what = "gradients flow back in one run only" if rows and _detached(rows[0]) else _BY_ARGUMENT
        later = ""
        if rows and all(re.search(RUNNING_MOMENTUM, row["t_name"] or "") for row in rows):
            what, later = "an argument differs", f": {LATER}"
        return f"{what}: {'; '.join([*values][:3])}{later}"
    if beginning.cause in (EXTRA, MISSING) and beginning.arguments:
        only = "only the golden run makes this call, for the value here"
        if beginning.cause == EXTRA:
            reader = pairs["t_name"][beginning.arguments[0]]
            only = "only the target run makes this call" + (f"; {reader} reads its result" if reader else "")
        return f"{only}; {named}" if named else only
    if outside := _beyond_the_step(pairs, judged.flow, beginning, place):
        return f"{outside}; {named}" if beginning.cause == BETWEEN and named else outside
    # Where the search has proven the cause, the kind says it all.
    proven = {OUTSIDE: "input", PARAMETER_DIFFERS: "parameter", RANDOM: "function"}.get(beginning.cause)
    if kinds and kinds[0].name == proven and (named.startswith("it ") or proven == "function"):
        return f"the parameter{named.removeprefix('it')}" if proven == "parameter" else named
    if beginning.cause == OUTPUT_DIFFERS:
        what = _BY_ARGUMENT
        by = kinds[0].sentence if kinds and kinds[0].name == "argument" and kinds[0].confidence >= 0.9 else ""
        if not by:  # a parameter that no row shows to differ: stored otherwise, in one run only
            what = RULES["injected_by_parameter"].words.removesuffix(": injected here")
            by = next((kind.sentence for kind in kinds if kind.name == "parameter" and kind.confidence >= 0.9), "")
        if by:
            return f"{what}: {by}"
    parts = judged.reason[beginning.row].split("; ")
    grouped = "group" in pairs.columns and pairs["group"][beginning.row] is not None
    other_calls = bool(kinds) and kinds[0].name in ("function", "extra", "missing")
    if grouped and other_calls and beginning.cause == OUTPUT_DIFFERS and RULES["injected"].words in parts:
        parts = [f"the same inputs give another result: {kinds[0].sentence}"]
    # The heading says already that it begins here.
    reason = "; ".join([part.removesuffix(": injected here") for part in parts if part not in _SIZES] or parts)
    flow = judged.flow
    if beginning.cause == OUTSIDE and flow is not None and (before := flow.last_module_before(beginning.row)):
        reason = f"it comes from the caller, or from the model's own code after {before}, which level mix records"
    return f"{reason}; {named}" if named and named not in reason else reason


def _beyond_the_step(pairs: pl.DataFrame, flow: Flow | None, beginning: Beginning, place: str) -> str:
    """What differs where the recorded calls of a step begin or end: running statistics, the loss, clipping."""
    name = pairs["t_name"][beginning.row] or ""
    if beginning.cause == OUTSIDE and beginning.arguments:  # nothing in this step depends on it
        return f"{argument_name(name)} differs before the call: an evaluation will use it, training does not"
    if beginning.cause == BETWEEN and flow is not None and flow.begins_backward(beginning.row):
        only_modules = all(op.is_module for op in flow.ops if op.direction == FORWARD)
        own = "the model's own code behind its last module, or " if only_modules else ""
        return f"this gradient is the first of the backward pass: {own}the loss is computed or scaled otherwise"
    if beginning.cause == BETWEEN and flow is not None and flow.ends_in(beginning.row):
        return (
            "what is computed with this result is not recorded and differs: the loss, or the model's own code behind it"
        )
    if beginning.cause == BETWEEN and flow is not None and flow.role[beginning.row] == INPUT:
        made = int(flow.target_source[beginning.row])
        if made != NONE and made == flow.golden_source[beginning.row]:
            return f"it holds the values of {pairs['t_name'][made]}, which agree, in another order than golden's"
    optimizer = beginning.cause == OUTSIDE and place == "input.0" and name.startswith(OPTIMIZER)
    clipped = clipping(pairs) if optimizer or name.startswith(TOTAL_NORM) else ""
    return f"the gradient differs: {clipped}" if clipped else ""


def _argument(row: dict[str, Any]) -> str:
    """``scale: 0.2298 against 0.1768``."""
    if _detached(row):
        name = argument_name(row["t_name"] or "")
        return f"requires_grad of {name}: {row['t_requires_grad']} against {row['g_requires_grad']}"
    shapes = "shape " if row["t_kind"] == row["g_kind"] == TENSOR else ""
    values = [row[f"{side}_shape"] if shapes else shown_value(row, side) for side in "tg"]
    return f"{argument_name(row['t_name'] or row['g_name'])}: {shapes}{values[0]} against {values[1]}"


def _detached(row: dict[str, Any]) -> bool:
    """Whether gradients flow back through this value in one run only."""
    return bool(row["t_requires_grad"] != row["g_requires_grad"] and row["t_shape"] == row["g_shape"])


def user_frame(frames: Sequence[str]) -> str:
    """The innermost frame of the user's or the model's code, not of the framework; empty where there is none."""
    own = (frame for frame in frames if not _FRAMEWORK_FILES.search(frame.partition(", line ")[0]))
    return next(own, "")


def user_line(frames: Sequence[str]) -> str:
    """The line of the user's or the model's code in one line of text; else the innermost one."""
    return " ".join((user_frame(frames) or (frames[0] if frames else "")).split())


def _module(target: Run, op: str) -> str:
    """The path of the module that a call belongs to."""
    name = parse_op(op)
    if name.is_module or (name.cls and name.prefix != "Primitive"):  # a primitive is called inside of a cell
        return name.body
    around = target.parents.get(op)
    return "" if around is None else (parse_op(around).body if "." in around else around)


def _values(row: dict[str, Any], side: str) -> dict[str, str]:
    values = {"dtype": str(row[f"{side}_dtype"]), "shape": str(row[f"{side}_shape"])}
    for stat in STATS:
        text = row[f"{side}_{stat}_text"]
        values[stat] = str(text if text is not None else row[f"{side}_{stat}"])
    digest = row[f"{side}_digest"]
    return values | ({"checksum": str(digest)} if digest is not None else {})


# What kind of difference it is.


def _kinds(target: Run, golden: Run, evidence: Evidence, judged: Judged, beginning: Beginning) -> list[Kind]:
    pairs, noise = evidence.pairs, judged.noise
    own = np.flatnonzero(judged.calls.of_row == beginning.call)
    shown = sorted({*own.tolist(), *_golden_inputs(pairs, judged.flow, beginning), beginning.row, *beginning.arguments})
    taken = beginning.cause == OUTSIDE and evidence.mode == TENSORS  # golden's value of elsewhere may have come in
    sketches = [sketches_of(run, pairs, side, shown, kept=taken) for run, side in ((target, "t"), (golden, "g"))]
    rows, alone = [], False
    for number, at in enumerate(shown):
        row = pairs.row(at, named=True)
        role = row["t_role"] if row["t_role"] is not None else row["g_role"]
        sides = [side_of(row, side, sketch, number) for side, sketch in zip("tg", sketches, strict=True)]
        weighed = _clearest(judged, at)
        expected = float(noise.expected[weighed]) if noise is not None and np.isfinite(noise.expected[weighed]) else 0.0
        op = target.ops[beginning.call] if beginning.call != NONE else ""
        whole = row["t_name"] or row["g_name"]
        name = whole.removeprefix(op).strip(".")
        if row["t_row"] is None and row["g_op"] == pairs["g_op"][beginning.row]:  # the same call, by golden's number
            name = name.removeprefix(golden.ops[row["g_op"]]).strip(".")
        name = name or whole  # a tensor of a checkpoint is a call of its own
        if at == beginning.row and beginning.cause == PARAMETER_DIFFERS:  # functions take parameters as inputs
            role = PARAMETER
        alone |= role == PARAMETER and None in sides
        rows.append(Row(name, _ROLES.get(role, "output"), sides[0], sides[1], expected))
    op = target.ops[beginning.call]
    missing = beginning.cause == MISSING and _named(target, golden, pairs, beginning)
    suspect = Suspect(
        name=missing[1] if missing else op,
        rows=rows,
        presence={EXTRA: "target", MISSING: "golden"}.get(beginning.cause, "both"),
        parameters=parameters_of(golden),
        own=parameters_of(target) if alone else (),
        tensors=nearby_of(golden, pairs.row(beginning.row, named=True), kept=taken),
        counts=sizes_of(target) | sizes_of(golden),
        from_outside=_from_outside(judged.flow, beginning),
        begun=judged.flow is not None and bool(judged.flow.start[beginning.call] > 0),
        place=IN_OPTIMIZER if judged.flow is not None and judged.flow.updates[beginning.call] else _module(target, op),
        unpaired=_unpaired(pairs, judged.flow, beginning, target, golden),
        kept=kept_gradient(target, golden, pairs, judged, beginning) if beginning.cause == OUTSIDE else "",
    )
    found = statistic_kinds(suspect)
    if evidence.mode == TENSORS:
        found += [
            kind
            for kind in _of_tensors(target, golden, evidence, judged, beginning, outside=suspect.from_outside)
            if kind is not None and kind.name != "noise"
        ]
    cause = _cause(target, golden, evidence, beginning, found)
    if cause is not None and cause.name == "input" and not suspect.from_outside:
        cause = None
    best: dict[str, Kind] = {} if cause is None else {cause.name: cause}
    for kind in sorted(found, key=lambda kind: -kind.confidence):
        best.setdefault(kind.name, kind)
    return list(best.values())


def _cause(target: Run, golden: Run, evidence: Evidence, beginning: Beginning, found: Sequence[Kind]) -> Kind | None:
    """The kind that the search itself has proven: it comes before shapes of the difference."""
    proven = _mask(target, golden, evidence, beginning)
    alone = beginning.cause in (EXTRA, MISSING) and beginning.call != NONE
    if alone and (modules := other_modules(target, golden, evidence.pairs, beginning.call)) is not None:
        paths = [parse_op(call).body for call in modules]
        proven = Kind("function", f"{paths[0]} is called where golden calls {paths[1]}", 0.96)
    if proven is not None:
        return proven
    cause = beginning.cause
    only = _replaced(target, golden, evidence.pairs, beginning)
    if any(only):
        calls = [", ".join(dict.fromkeys(map(api_name, side))) for side in only]
        kind, words = ("extra", "only the target run calls") if only[0] else ("missing", "only the golden run calls")
        if all(only) or max(map(len, only)) > 1:
            both = Kind("function", _against(evidence.pairs, beginning.row, *calls), 0.95)
            return both if all(only) else Kind(kind, f"{words} {calls[0] or calls[1]}", 0.95)
        cause = EXTRA if only[0] else MISSING
    row = evidence.pairs.row(beginning.row, named=True)
    if row["t_op"] is not None and row["g_op"] is not None and beginning.cause not in (PARAMETER_DIFFERS, OUTSIDE):
        apis = [parse_op(run.ops[row[f"{side}_op"]]) for run, side in ((target, "t"), (golden, "g"))]
        names = [(api.cls or api.body).rpartition(".")[2] for api in apis]
        if (
            apis[0].direction == FORWARD
            and not same_function(apis[0], apis[1])
            and beginning.cause in ("", ARGUMENT, OUTPUT_DIFFERS)
        ):
            return Kind("function", _against(evidence.pairs, beginning.row, *names), 0.95)
    # What came in may be golden's value in a coarser type; a call that one run alone makes may stand for another.
    better = {OUTSIDE: ("dtype",), BETWEEN: ("dtype",), EXTRA: ("function", "order"), MISSING: ("function", "order"),
              RANDOM: ("function",)}  # fmt: skip
    known = next((kind for kind in found if kind.name in better.get(beginning.cause, ())), None)
    if known is not None:
        return known
    if not cause or not CAUSES[cause].kind:
        return None
    known = next((kind for kind in found if kind.name == CAUSES[cause].kind), None)
    return known or Kind(CAUSES[cause].kind, CAUSES[cause].words, 0.9)


def _against(pairs: pl.DataFrame, row: int, target: str, golden: str) -> str:
    """What stands in one run for what stands in the other, and how an attention that was written out differs."""
    words = attention_words(pairs, row) if "attention" in f"{target} {golden}".lower() else ""
    return f"{target} against {golden}{words and f'; {words}'}"


def _mask(target: Run, golden: Run, evidence: Evidence, beginning: Beginning) -> Kind | None:
    """More elements are masked out on one side."""
    if beginning.row < 0 or evidence.estimate is None or not evidence.estimate.refilled[beginning.row]:
        return None
    rows = [sketches_of(run, evidence.pairs, side, [beginning.row])[0] for run, side in ((target, "t"), (golden, "g"))]
    counts = [int(row["fill"] + row["inf"]) for row in rows]
    text = f"another mask: {counts[0]:,} elements are masked out against {counts[1]:,}, of {int(rows[1]['count']):,}"
    return Kind("mask", text, 0.95, {"target": counts[0], "golden": counts[1]})


def _unpaired(pairs: Any, flow: Flow | None, beginning: Beginning, target: Run, golden: Run) -> list[str]:
    """Calls near the beginning that only the other run makes: what was replaced; for a missing one, where it went."""
    if beginning.cause not in (EXTRA, MISSING, BETWEEN, ""):
        return []
    # What the other run's reader of the same value takes is the replacement.
    if flow is not None and beginning.cause == EXTRA and beginning.arguments:
        made = int(flow.golden_source[beginning.arguments[0]])
        if made != NONE and pairs["t_op"][made] is None:
            return [golden.ops[pairs["g_op"][made]]]
    near = pairs.slice(max(0, beginning.row - 40), 80)
    if beginning.cause == MISSING and beginning.arguments:
        made = NONE if flow is None else int(flow.target_source[beginning.row])
        if made != NONE and pairs["g_op"][made] is None:
            return [target.ops[pairs["t_op"][made]]]
        missing = api_name(golden.ops[pairs["g_op"][beginning.arguments[0]]])
        alone = near["g_op"].is_null() & (near["group"].is_null() if "group" in near.columns else True)
        ops = near.filter(alone)["t_op"].drop_nulls().unique(maintain_order=True).to_list()
        return [target.ops[op] for op in ops if api_name(target.ops[op]) == missing]
    ops = near.filter(near["t_op"].is_null())["g_op"].drop_nulls().unique(maintain_order=True).to_list()
    return [golden.ops[op] for op in ops[:8]]


def _from_outside(flow: Flow | None, beginning: Beginning) -> bool:
    """Whether the value that differs is surely an input of the program.

    What no call made may come from code between calls; where modules alone are recorded, nearly all of it does.
    """
    if flow is None or beginning.cause != OUTSIDE:
        return beginning.cause == OUTSIDE
    only_modules = all(op.is_module or op.direction not in (FORWARD, "") for op in flow.ops)
    return not only_modules or int(flow.start[beginning.call]) == 0


def _of_tensors(
    target: Run, golden: Run, evidence: Evidence, judged: Judged, beginning: Beginning, *, outside: bool
) -> Sequence[Kind | None]:
    files = [evidence.pairs[f"{side}_file"][beginning.row] for side in "tg"]
    shape = dims(evidence.pairs["g_shape"][beginning.row])
    if None in files or shape is None or prod(shape) * 8 > _LARGEST:
        return []
    from twinprobe._judge.kinds.by_tensors import tensor_cause, tensor_kinds
    from twinprobe._measure.elements import FLOAT64, numbers

    try:
        tensors = [run.load(name) for run, name in zip((target, golden), files, strict=True)]
        if any(tensor.dtype in COMPLEX for tensor in tensors):
            return []
        arrays = [numbers(tensor.dtype, tensor.data, FLOAT64).reshape(tensor.shape) for tensor in tensors]
    except (TwinProbeError, OSError):
        return []
    if arrays[0].shape != arrays[1].shape:
        return []
    expected = float(judged.noise.expected[beginning.row]) if judged.noise is not None else 0.0
    expected = expected if np.isfinite(expected) else 0.0
    role = evidence.pairs["t_role"][beginning.row]
    if role in (INPUT, PARAMETER):
        name = (evidence.pairs["t_name"][beginning.row] or "").removeprefix(target.ops[beginning.call]).strip(".")
        role_name = _ROLES[PARAMETER if beginning.cause == PARAMETER_DIFFERS else role]
        return [tensor_cause(name, role_name, *arrays, expected=expected, from_outside=outside)]
    return tensor_kinds(*arrays, expected=expected)


# What harms nothing.


def notes(target: Run, evidence: Evidence, judged: Judged) -> list[str]:
    """What differs and harms nothing, each said once."""
    found: list[str] = []
    pairs = evidence.pairs
    other = dtypes_differ(pairs)
    if other.any() and judged.noise is not None:
        sides = pairs.filter(other).select("t_dtype", "g_dtype").unique(maintain_order=True).rows()
        named = ", ".join(" against ".join(str(dtype).rpartition(".")[2] for dtype in pair) for pair in sides[:3])
        found.append(f"{int(other.sum()):,} values have another dtype ({named}); they are judged by the coarser one")
    if judged.noise is not None and judged.noise.flips.any() and all(not one.reaches for one in judged.beginnings):
        flipped = np.flatnonzero(judged.noise.flips)
        named = pairs["t_name"][int(flipped[0])]
        count = len(np.unique(pairs["t_op"].gather(flipped).to_numpy()))
        calls = "1 call picks" if count == 1 else f"{count:,} calls pick"
        found.append(f"{calls} other elements within rounding, first {named}; what follows from it is expected")
    until = len(target.ops)
    if judged.noise is not None and not (judged.calls.role == GRADIENT).any():
        # Tokens: what follows from one that has flipped has an effect, and is expected.
        until = int(judged.calls.of_row[judged.noise.flips].min(initial=until))
    lost = [beginning for beginning in judged.beginnings if not beginning.reaches and beginning.call <= until]
    if len(lost) < len(judged.beginnings):  # what an optimizer finds follows from the steps before
        lost = [one for one in lost if not (pairs["t_name"][one.row] or "").endswith(f".{BEFORE}")]
    effect = "without effect on any result"
    if judged.flow is not None and judged.noise is not None:
        matched = evidence.pairs["g_row"].is_not_null().to_numpy()
        rows = result_rows(judged.flow, matched, matched)
        if judged.noise.far[rows["loss"]].any() and len(rows[PARAMETER_GRADIENTS]):
            effect = "with an effect on the loss alone, not on gradients"
    for beginning in lost[:_MOST_NOTES]:
        op = target.ops[beginning.call] if beginning.call != NONE else ""
        named = pairs["t_name"][beginning.row] or pairs["g_name"][beginning.row]
        arguments = [_argument(pairs.row(row, named=True)) for row in beginning.arguments[:2]]
        why = f" ({', '.join(arguments)})" if beginning.cause == ARGUMENT and arguments else ""
        found.append(f"{named or op} differs more than noise explains, {effect}{why}")
    if len(lost) > _MOST_NOTES:
        found.append(f"{len(lost) - _MOST_NOTES} more differences have no effect on any result")
    return found


def _golden_inputs(pairs: pl.DataFrame, flow: Flow | None, beginning: Beginning) -> list[int]:
    """What golden alone gives to the same call, or to a group that is compared as one: a bias, a dimension."""
    import polars as pl

    if flow is None or beginning.cause != OUTPUT_DIFFERS or pairs["g_op"][beginning.row] is None:
        return []
    group = pairs["group"][beginning.row] if "group" in pairs.columns else None
    called = pl.col("g_op") == pairs["g_op"][beginning.row] if group is None else pl.col("group") == group
    roles = [INPUT, PARAMETER] if group is None else [INPUT]
    given = pairs.select(pl.arg_where(called & pl.col("g_role").is_in(roles) & pl.col("t_row").is_null())).to_series()
    if group is None:
        return given.to_list()
    # A group hands values on inside; plain arguments belong to the way it computes.
    made = pairs.select(pl.arg_where(called & (pl.col("g_role") == OUTPUT))).to_series().to_list()
    inside = set(flow.marks[1][made].tolist())
    return [row for row in given.to_list() if flow.elements[1][row] > 1 and int(flow.marks[1][row]) not in inside]
