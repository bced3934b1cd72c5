"""What the layers of two runs were built with: an epsilon, a momentum, a padding. Recorders note it in a dump."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from twinprobe._judge.flow import IN_OPTIMIZER, NONE
from twinprobe._judge.operations import differing_settings
from twinprobe._judge.origin import Divergence, Summary
from twinprobe._judge.search import ARGUMENT, OUTPUT_DIFFERS
from twinprobe._runs.names import FORWARD, LAYERS, parse_op
from twinprobe._runs.run import Run

if TYPE_CHECKING:
    import polars as pl

_MOMENTUM, _MOST = "momentum", 4
_LATER = "its running statistics differ after the step, which an evaluation will use"


def with_layer_settings(summary: Summary, target: Run, golden: Run, pairs: pl.DataFrame) -> Summary:
    """The summary, with the settings that differ in the layer where the runs part.

    A momentum changes no result of a step, but the statistics that later ones read: alone, it is a divergence.
    """
    sides = [run.settings.get(LAYERS) for run in (target, golden)]
    if not all(isinstance(side, dict) for side in sides):
        return summary
    found = _differing(target, golden, pairs, sides)
    first = summary.first
    if (
        first is not None
        and first.begins == ARGUMENT
        and "batch_norm" in first.op
        and f" {_MOMENTUM}: " in first.sentence
    ):
        return replace(summary, first=replace(first, sentence=_no_output(first)))
    if first is not None and first.module != IN_OPTIMIZER and first.begins == OUTPUT_DIFFERS:
        op = parse_op(first.op)
        words = [text for text in found.get(op.body if op.is_module else first.module, ("", []))[1]
                 if not text.startswith(f"{_MOMENTUM}:")]  # fmt: skip
        if words:
            said = first.sentence.removeprefix(f"{first.argument}: ")
            kind = {"name": ARGUMENT, "sentence": "; ".join(words), "confidence": 0.9}
            how = "are set to" if words[0].startswith("training:") else "were built with"
            sentence = f"{first.argument}: the layers {how} {'; '.join(words)}; {said}"
            return replace(summary, first=replace(first, sentence=sentence, kinds=[kind, *first.kinds]))
    if first is None or first.module == IN_OPTIMIZER:  # statistics are kept in the pass, before an optimizer's step
        summary = _without_effect(summary, found, pairs) if found else summary
    return summary


def _no_output(first: Divergence) -> str:
    """The sentence of an argument that changes no result."""
    changed = first.argument.startswith("input") and "the output differs because an " in first.sentence
    return f"{first.sentence.replace('the output differs because an ', 'an ')}: {_LATER}" if changed else first.sentence


_Found = dict[str, tuple[str, list[str]]]  # by the path of the target's layer: its first call, and what differs


def _differing(target: Run, golden: Run, pairs: pl.DataFrame, sides: list[Any]) -> _Found:
    """The paired layers whose settings differ. Those of an activation are arguments of the function that it calls."""
    import polars as pl

    both = pairs.filter(pl.col("t_op").is_not_null() & pl.col("g_op").is_not_null())
    found: _Found = {}
    for here, there in both.select("t_op", "g_op").unique(maintain_order=True).iter_rows():
        one, two = parse_op(target.ops[here]), parse_op(golden.ops[there])
        if not (one.is_module and two.is_module and one.direction == FORWARD) or one.body in found:
            continue
        built = sides[0].get(one.body), sides[1].get(two.body)
        if isinstance(built[0], dict) and isinstance(built[1], dict) and (words := differing_settings(*built)):
            if one.cls != two.cls and target.framework == golden.framework:  # a class may have a momentum of its own
                words = [text.replace(f"{_MOMENTUM}:", f"{_MOMENTUM} of running statistics:") for text in words]
            found[one.body] = one.text, words[:_MOST]
    return found


def _without_effect(summary: Summary, found: _Found, pairs: pl.DataFrame) -> Summary:
    averages = [(op, text) for op, words in found.values() for text in words if text.startswith(f"{_MOMENTUM}:")]
    others = [(path, [text for text in words if not text.startswith((f"{_MOMENTUM}:", "training:"))])
              for path, (_, words) in found.items()]  # fmt: skip
    listed = [f"{path} ({'; '.join(words)})" for path, words in others if words]
    notes = list(summary.notes)
    if listed:
        named = ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")
        notes.append(f"layers were built differently, with no effect on these results beyond noise: {named}")
    if not averages:
        return replace(summary, notes=notes)
    op, text = averages[0]
    row = f"{op}.output.0"
    place = next(iter(pairs.select((pairs["t_name"] == row).arg_true()).to_series()), NONE)
    golden_row = pairs["g_name"][place] if place != NONE else ""
    more = f", as in {len(averages) - 1} more" if len(averages) > 1 else ""
    sentence = f"the layers were built with {text}{more}: {_LATER}"
    divergence = Divergence(
        op, row, golden_row or row, "", {}, {}, None, sentence, "injected", place, module=parse_op(op).body,
        begins=ARGUMENT,
        kinds=[{"name": ARGUMENT, "sentence": text, "confidence": 0.9}],
    )  # fmt: skip
    later = [] if summary.first is None else [summary.first]
    return replace(summary, first=divergence, others=[*later, *summary.others], notes=notes)
