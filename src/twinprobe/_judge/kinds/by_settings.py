"""What two runs were set to: what layers were built with (an epsilon, a momentum), and how gradients are clipped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from twinprobe._judge.flow import NONE
from twinprobe._judge.operations import differing_settings
from twinprobe._judge.search import ARGUMENT
from twinprobe._judge.summary import Divergence
from twinprobe._runs.names import FORWARD, LAYERS, TOTAL_NORM, listed, parse_op
from twinprobe._runs.run import Run
from twinprobe._runs.table import INPUT, OUTPUT, TENSOR, VALUE

if TYPE_CHECKING:
    import polars as pl

_SAME_NORM = 1e-2  # relative: of all gradients together

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


def settings_without_output(target: Run, golden: Run, pairs: pl.DataFrame) -> tuple[Divergence | None, str]:
    """Settings of layers where no result differs beyond noise: a note, and the layer with another momentum.

    A momentum changes no result of a step, but the statistics that later ones read: alone, it is a divergence.
    """
    found = _differing(target, golden, pairs)
    averages = [(op, text) for op, words in found.values() for text in words if text.startswith(f"{_MOMENTUM}:")]
    others = [(path, [text for text in words if not text.startswith((f"{_MOMENTUM}:", "training:"))])
              for path, (_, words) in found.items()]  # fmt: skip
    layers = [f"{path} ({'; '.join(words)})" for path, words in others if words]
    note = f"layers were built differently, with no effect on these results beyond noise: {listed(layers)}"
    note = note if layers else ""
    if not averages:
        return None, note
    op, text = averages[0]
    row = f"{op}.output.0"
    place = next(iter(pairs.select((pairs["t_name"] == row).arg_true()).to_series()), NONE)
    golden_row = pairs["g_name"][place] if place != NONE else ""
    more = f", as in {len(averages) - 1} more" if len(averages) > 1 else ""
    divergence = Divergence(
        op, row, golden_row or row, "", {}, {}, None, f"{built_clause([text])}{more}: {LATER}", "injected", place,
        module=parse_op(op).body, begins=ARGUMENT, kinds=[{"name": ARGUMENT, "sentence": text, "confidence": 0.9}],
    )  # fmt: skip
    return divergence, note


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
