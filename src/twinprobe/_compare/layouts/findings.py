"""What was found on single ranks, added to the comparison of two wholes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from twinprobe._compare.layouts.gradients import (
    before_the_gradients,
    not_shared,
    not_updated,
    odd_multiple,
    one_multiple,
    unlike_multiples,
)
from twinprobe._compare.one import Comparison
from twinprobe._judge.describe import size_words
from twinprobe._judge.deviation import DIFFERS, bools
from twinprobe._judge.search import ARGUMENT, BETWEEN, MISSING, PARAMETER_DIFFERS
from twinprobe._judge.summary import Divergence
from twinprobe._layout.settle import SETTING
from twinprobe._layout.shared import OWN_NORMS
from twinprobe._layout.sketched.earlier import ON_RANKS, cut_through, earlier_value
from twinprobe._layout.sums import bias_too_often
from twinprobe._layout.whole import Whole, call_head
from twinprobe._layout.wrong_ranks import only_on, whose
from twinprobe._runs.names import OPTIMIZER
from twinprobe._runs.run import OPTIMIZER_FILE
from twinprobe._runs.table import INPUT, OUTPUT, PARAMETER

MOST_SUSPECTS = 4  # calls where runs part, of which the ranks are asked for
_FEW_ALIKE = 3  # findings that are listed one by one


def with_findings(comparison: Comparison, notes: list[str], lost: list[str], updates: Sequence[str] = ()) -> Comparison:
    """The comparison of two wholes with what was found on single ranks (``updates``: of what optimizers read), and
    what was assumed."""
    findings = [*updates, *_wrong_shards(comparison)]
    for name, run in zip(("target", "golden"), (comparison.target, comparison.golden), strict=True):
        if isinstance(run, Whole):
            notes = [*notes, *(f"{name}: {text}" for text in run.assumed)]
            findings += run.findings
            lost = [*lost, *run.lost]
    shown = _grouped(findings)
    updated = comparison.target.path.name == OPTIMIZER_FILE and comparison.summary.first is not None
    factor = unlike_multiples(comparison) if updated else []
    factor = factor or (one_multiple(comparison) if comparison.target.path.name == OPTIMIZER_FILE else [])
    first = not_updated(comparison, findings) or before_the_gradients(comparison) or not_shared(comparison, findings)
    runs = comparison.target, comparison.golden
    first = first or earlier_value(comparison.summary.first, *runs, comparison.evidence.pairs)
    first = first or comparison.summary.first
    if first is not None and first.begins == MISSING and isinstance(runs[0], Whole):
        inside = runs[1].parents.get(first.op) or ""
        if inside and call_head(inside) in runs[0].exchanging:  # there the target's functions were left out
            words = f"{first.row}: the difference begins in this module's own code{size_words(first)}"
            first = replace(first, op=inside, sentence=words, begins=BETWEEN, kinds=[])
    said: list[str] = []
    if first is not None:
        # What is said of its values comes before what is said of the module that it is called in.
        around = comparison.target.parents.get(first.op)
        if first.begins == ARGUMENT:
            said += [text.partition(": ")[2] for text in findings
                     if text.startswith(f"{first.op}.") and SETTING in text][:1]  # fmt: skip
        of_call = (f"{first.op}.{first.argument}: ", f"{first.op}.", f"{first.op}: ")
        for start in (f"{first.row}: ", *of_call, f"{around}: ", f"{around}.parameters."):
            said += [text.partition(": ")[2] for text in findings if text.startswith(start)][: 1 - len(said)]
        if first.begins == PARAMETER_DIFFERS:  # whose shard, rather than who gathered it
            pairs = comparison.evidence.pairs
            norms = dict(pairs.filter(pairs["t_name"].is_not_null()).select("t_name", "t_norm").iter_rows())
            told = ([text.partition(": ")[0], text.partition(": ")[2]] for text in findings)
            said = [words for name, words in told if name.startswith(f"{around}.parameters.")
                    and norms.get(name) == norms.get(first.row)][:1] or said  # fmt: skip
        said = [text for text in said if ON_RANKS not in first.sentence]  # the ranks are named already
        alone = only_on(comparison.target, first.op) if isinstance(comparison.target, Whole) else ""
        verb = "held" if first.op.startswith(OPTIMIZER) else "made"
        said += [f"{verb} by {alone} alone"] if alone and not factor and first.begins != MISSING else []
        said = said or (odd_multiple(comparison, first) if updated else [])
        said += [*factor, *_biases(comparison, first)]
        said = said or [text for text in [cut_through(first, *runs, comparison.evidence.pairs)] if text]
        said += [text.partition(": ")[2] for text in findings if OWN_NORMS in text][:1]
    if first is not None and said:
        first = replace(first, sentence="; ".join([first.sentence, *said]))
    summary = replace(comparison.summary, first=first, notes=[*shown, *notes, *comparison.summary.notes], lost=lost)
    return replace(comparison, summary=summary)


def _biases(comparison: Comparison, first: Divergence) -> list[str]:
    """Whether an output is off by the bias of its module, as often as ranks could have added it before a sum."""
    whole, pairs = comparison.target, comparison.evidence.pairs
    row = pairs.filter(pairs["t_name"] == first.row)
    if not isinstance(whole, Whole) or not first.argument.startswith("output") or not row.height:
        return []
    scale = max(abs(row["g_max"][0] or 0.0), abs(row["g_min"][0] or 0.0))
    return bias_too_often(whole, first.op, row["t_mean"][0], row["g_mean"][0], scale)


def _grouped(findings: list[str]) -> list[str]:
    """What is said of many values alike is said once, of the first."""
    names: dict[str, list[str]] = {}
    for finding in findings:
        name, _, said = finding.partition(": ")
        names.setdefault(said, []).append(name)
    shown: list[str] = []
    for said, values in names.items():
        told = values if len(values) <= _FEW_ALIKE else [f"{values[0]} and {len(values) - 1:,} more"]
        shown += [f"{name}: {said}" for name in told]
    return shown[:20] + ([f"{len(shown) - 20:,} more findings on single ranks"] if len(shown) > 20 else [])


def _wrong_shards(comparison: Comparison) -> list[str]:
    """Whose shard differs, of the calls where the runs part: of their parameters and of what they give."""
    pairs, judged = comparison.evidence.pairs, comparison.judged
    of_row, role, differs = judged.calls.of_row, judged.calls.role, judged.state == DIFFERS
    sides = ((comparison.target, "t", comparison.golden, "g"), (comparison.golden, "g", comparison.target, "t"))
    found = []
    run = comparison.target
    place = {name: at for at, name in enumerate(run.ops)}
    asked: dict[int, bool] = {}  # rows, and whether their calls took a value that was wrong already
    suspects = [beginning.call for beginning in judged.beginnings if beginning.reaches][:MOST_SUSPECTS]
    first = suspects[0] if suspects else -1
    for call in suspects:
        own = (of_row == call) & differs
        # A function is given the parameters of the module around it.
        around = place.get(run.parents.get(run.ops[call]) or "", -1) if 0 <= call < len(run.ops) else -1
        rows = (own & np.isin(role, (PARAMETER, OUTPUT))) | ((of_row == around) & differs & (role == PARAMETER))
        # What came from outside: the gradients of an optimizer do not, and are wrong on all ranks if one was.
        if call == first and run.path.name != OPTIMIZER_FILE and not (rows & (role == PARAMETER)).any():
            rows |= own & (role == INPUT)
        asked |= dict.fromkeys(np.flatnonzero(rows).tolist(), bool((own & (role == INPUT)).any()))
    at = comparison.summary.first.order if comparison.summary.first is not None else -1
    if at >= 0 and differs[at] and run.path.name != OPTIMIZER_FILE:  # what a module's own code gives to another call
        asked.setdefault(at, False)
    if comparison.summary.first is not None:  # what a call of golden's own would have made
        read = bools(pairs["t_name"] == comparison.summary.first.row)
        asked |= {row: False for row in np.flatnonzero(read & differs).tolist() if row not in asked}
    # Parameters that differ before a step come first; before the first one of all, nothing has made noise of them.
    if run.path.name == OPTIMIZER_FILE or (not suspects and run.step == 0):
        asked |= dict.fromkeys(np.flatnonzero(differs & (role == PARAMETER)).tolist()[:MOST_SUSPECTS], False)
    for row, inherited in asked.items():
        for whole, side, other, its in sides:
            files = pairs[f"{side}_file"][row], pairs[f"{its}_file"][row]
            # Without tensors, ranks that hold nothing conspicuous may be wrong too if all of them took a wrong value.
            if not isinstance(whole, Whole) or (inherited and role[row] == OUTPUT and None in files):
                continue
            later = role[row] == OUTPUT and of_row[row] != first
            words = whose(whole, pairs[f"{side}_row"][row], other, pairs[f"{its}_row"][row], files, inherited=later)
            words = f"in the golden run, {words}" if words and side == "g" and isinstance(run, Whole) else words
            found += [f"{pairs[f'{side}_name'][row]}: {words}"] if words else []
    return found
