"""What two runs were set to: what layers were built with (an epsilon, a momentum), how gradients are clipped and
cleared."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from twinprobe._judge.deviation import sketches_of
from twinprobe._judge.flow import NONE
from twinprobe._judge.kinds.by_statistics import cosine
from twinprobe._judge.operations import differing_settings
from twinprobe._judge.rules import PASS
from twinprobe._judge.search import ARGUMENT, Beginning
from twinprobe._judge.summary import Divergence, Summary
from twinprobe._runs.names import FORWARD, LAYERS, TOTAL_NORM, listed, parse_op
from twinprobe._runs.run import Run
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, TENSOR, VALUE

if TYPE_CHECKING:
    import polars as pl

    from twinprobe._judge.verdicts import Judged

_SAME_NORM = 1e-2  # relative: of all gradients together
_PARALLEL = 0.99  # the cosine of two sketches; unrelated ones stay below 0.64
_PROPORTION, _SAME = 1 - 1e-5, 1e-2  # of tensors in proportion, but for rounding; relative: of equal sketches

_MOMENTUM, _MOST = "momentum", 4
LATER = "its running statistics differ after the step, which an evaluation will use"
_Found = dict[str, tuple[str, list[str]]]  # by the path of the target's layer: its first call, and what differs


def settings_of_layer(target: Run, golden: Run, pairs: pl.DataFrame, path: str) -> list[str]:
    """The settings that differ in the layer of this path and change what it gives: ``eps: 0.01 against 1e-05``."""
    words = _differing(target, golden, pairs).get(path, ("", []))[1]
    return [text for text in words if not text.startswith(f"{_MOMENTUM}:")]


def built_clause(words: list[str]) -> str:
    """What a sentence says of such settings."""
    how = "are set to" if words[0].startswith("training:") else "were built with"
    return f"the layers {how} {'; '.join(words)}"


def with_settings(summary: Summary, target: Run, golden: Run, pairs: pl.DataFrame) -> Summary:
    """The summary of runs whose results do not differ beyond noise, with the settings of layers that do: a note.

    A momentum changes no result of a step, but the statistics that later ones read: alone, it is a divergence. Running
    statistics come before an optimizer's step.
    """
    found = _differing(target, golden, pairs)
    averages = [(op, text) for op, words in found.values() for text in words if text.startswith(f"{_MOMENTUM}:")]
    others = [(path, [text for text in words if not text.startswith((f"{_MOMENTUM}:", "training:"))])
              for path, (_, words) in found.items()]  # fmt: skip
    layers = [f"{path} ({'; '.join(words)})" for path, words in others if words]
    if layers:
        note = f"layers were built differently, with no effect on these results beyond noise: {listed(layers)}"
        summary = replace(summary, notes=[*summary.notes, note])
    if not averages:
        return summary
    op, text = averages[0]
    row = f"{op}.output.0"
    place = next(iter(pairs.select((pairs["t_name"] == row).arg_true()).to_series()), NONE)
    golden_row = pairs["g_name"][place] if place != NONE else ""
    more = f", as in {len(averages) - 1} more" if len(averages) > 1 else ""
    divergence = Divergence(
        op, row, golden_row or row, "", {}, {}, None, f"{built_clause([text])}{more}: {LATER}", "injected", place,
        module=parse_op(op).body, begins=ARGUMENT, kinds=[{"name": ARGUMENT, "sentence": text, "confidence": 0.9}],
    )  # fmt: skip
    later = summary.others if summary.first is None else [summary.first, *summary.others]
    return replace(summary, first=divergence, others=later)


def _differing(target: Run, golden: Run, pairs: pl.DataFrame) -> _Found:
    """The paired layers whose settings differ. Those of an activation are arguments of the function that it calls."""
    import polars as pl

    sides = [layers if isinstance(layers := run.settings[LAYERS], dict) else {} for run in (target, golden)]
    both = pairs.filter(pl.col("t_op").is_not_null() & pl.col("g_op").is_not_null())
    found: _Found = {}
    for here, there in both.select("t_op", "g_op").unique(maintain_order=True).iter_rows():
        one, two = parse_op(target.ops[here]), parse_op(golden.ops[there])
        if not (one.is_module and two.is_module and one.direction == FORWARD) or one.body in found:
            continue
        built: list[dict[str, Any]] = [side.get(op.body) or {} for side, op in zip(sides, (one, two), strict=True)]
        if words := differing_settings(*built):
            if one.cls != two.cls and target.framework == golden.framework:  # a class may have a momentum of its own
                words = [text.replace(f"{_MOMENTUM}:", f"{_MOMENTUM} of running statistics:") for text in words]
            found[one.body] = one.text, words[:_MOST]
    return found


def clipping(pairs: pl.DataFrame) -> str:
    """How the runs clip their gradients, where that differs, or the norms before it do; empty elsewhere."""
    totals = pairs.filter(pairs["t_name"].str.starts_with(TOTAL_NORM).fill_null(value=False))
    rows = list(totals.iter_rows(named=True))
    norms = {(row["t_role"], side): row[f"{side}_norm"] for row in rows for side in "tg"}
    before, after = np.nan_to_num([[norms.get((role, side)) or 0.0 for side in "tg"] for role in (INPUT, OUTPUT)])
    # Of ranks that clip by norms of their own, no norm of all gradients is known.
    clips = [any(row["t_role"] == INPUT and row[f"{side}_kind"] in (TENSOR, VALUE) for row in rows) for side in "tg"]
    if clips[0] != clips[1]:
        return f"only the {'target' if clips[0] else 'golden'} run calls a function that clips gradients by their norm"
    if not all(clips):
        return ""
    if all(before) and abs(before[0] - before[1]) > _SAME_NORM * before[1]:
        return f"before clipping, the norm of all of them is {before[0]:.4g} against {before[1]:.4g}"
    apart = all(after) and abs(after[0] - after[1]) > _SAME_NORM * after[1]
    return f"gradients are clipped to a norm of {after[0]:.4g} against {after[1]:.4g}" if apart else ""


def kept_gradient(target: Run, golden: Run, pairs: Any, judged: Judged, beginning: Beginning) -> str:
    """What speaks for an earlier pass's gradient in what an optimiser or clipping reads: sketches add up. Empty where
    nothing does, and where the gradient is merely scaled: in proportion to golden's."""
    flow = judged.flow
    if flow is None or not (flow.updates | flow.clips)[beginning.call]:
        return ""
    rows = np.flatnonzero((flow.role == GRADIENT) & (flow.of_row >= 0) & (flow.of_row < beginning.call))
    rows = rows[flow.elements[0][rows] == flow.elements[0][beginning.row]]
    read = [sketches_of(run, pairs, side, [beginning.row]) for run, side in ((target, "t"), (golden, "g"))]
    made = sketches_of(target, pairs, "t", rows.tolist())
    if made is None or any(side is None or not side["flags"][0] for side in read):
        return ""
    meant = read[1]["sums"][0]
    more = read[0]["sums"][0] - meant
    # The gradients of two steps are much alike: those of an earlier pass are more like what is there too much.
    if (like := abs(cosine(more, meant))) > _PROPORTION:
        return ""
    likeness = [cosine(more, sums) for sums in made["sums"]]
    if max(likeness, default=0.0) > max(_PARALLEL, like):
        return f"still holds the gradient of an earlier pass, {pairs['t_name'][int(rows[int(np.argmax(likeness))])]}"
    # The pass of a step before is not in this dump; a batch may come in parts, whose gradients add up.
    passes: dict[str, Any] = {}
    for row, sums in zip(rows.tolist(), made["sums"], strict=True):
        if judged.verdict[row] == PASS:
            name = re.sub(r"(parameters_grad)\.\d+", r"\1", pairs["t_name"][row])
            passes[name] = passes.get(name, 0.0) + sums
    given = (name for name, sums in passes.items() if np.linalg.norm(sums - meant) < _SAME * np.linalg.norm(meant))
    name = next(given, "") if target.step > 0 else ""
    return f"is not what the pass of this step gave, {name}" if name else ""
