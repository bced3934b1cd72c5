"""One number, one verdict, one origin per call, folded from its rows: what colours a node."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._align.calls import canonical
from twinprobe._compare.one import Comparison
from twinprobe._judge.deviation import DIFFERS
from twinprobe._judge.operations import BUFFERED, UNINITIALISED
from twinprobe._measure.statistics import MINUS_INF, NAN, NUMBER, PLUS_INF, StatDifference
from twinprobe._runs.names import parse_op
from twinprobe._runs.run import DIGESTS, STATISTICS, TENSORS, Run
from twinprobe._runs.table import FLOAT, INPUT, INT, OUTPUT, PARAMETER, STATS, TENSOR, VALUE

if TYPE_CHECKING:
    import polars as pl

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

VERDICTS = ("pass", "warning", "error")
_SEVERITY = {verdict: severity for severity, verdict in enumerate(VERDICTS)}
# Below these sizes the seed's rule looks at the absolute difference, with the same number as its limit.
_SMALL = {"float32": 1e-6, "float64": 1e-6, "float16": 1e-3, "bfloat16": 1e-3}


@dataclass
class CallValues:
    """Per target call; NaN and -1 where nothing was compared."""

    severity: NDArray[np.int8]
    drift: Floats
    error: Floats
    origin: list[str]
    rule: list[str]
    expected: Floats
    """The relative error that noise explains, at the value whose error stands furthest above it."""
    times: Floats
    """How many times that noise the error is."""
    arguments: list[str]
    """The values of a call that differ, as JSON by argument: error, what noise explains, times noise."""

    def verdict(self, call: int) -> str | None:
        """The worst verdict of a call's values."""
        return VERDICTS[self.severity[call]] if self.severity[call] >= 0 else None


def call_values(comparison: Comparison) -> CallValues:
    """Fold a comparison's rows into its target's calls."""
    judged, evidence = comparison.judged, comparison.evidence
    pairs = evidence.pairs
    rows = comparison.target.table.height
    calls = judged.calls.of_row[:rows]
    role = judged.calls.role[:rows]
    count = len(comparison.target.ops)
    paired = pairs["g_row"].is_not_null().to_numpy()[:rows]

    severity = np.full(count, -1, dtype=np.int8)
    of_row = np.fromiter((_SEVERITY[verdict] for verdict in judged.verdict[:rows]), dtype=np.int8, count=rows)
    compared = np.zeros(count, dtype=bool)
    compared[calls[paired]] = True
    chosen = compared[calls]
    np.maximum.at(severity, calls[chosen], of_row[chosen])

    error = _fold(np.fmax, judged.error[:rows], calls, (role == OUTPUT) & paired, count)
    anywhere = _fold(np.fmax, judged.error[:rows], calls, paired, count)
    error = np.where(np.isnan(error), anywhere, error)
    origin = [""] * count
    rules = [""] * count
    for call, word, rule in zip(calls.tolist(), judged.origin, pairs["rule"][:rows].to_list(), strict=False):
        if word and origin[call] != "injected":
            origin[call] = word
        if rule and not rules[call]:
            rules[call] = rule
    times, expected = np.full(count, np.nan), np.full(count, np.nan)
    if judged.noise is not None:
        times = _fold(np.fmax, judged.noise.times[:rows], calls, (role == OUTPUT) & paired, count)
        expected = _fold(np.fmax, judged.noise.expected[:rows], calls, (role == OUTPUT) & paired, count)
    arguments = _arguments(comparison, rows, paired)
    return CallValues(severity, _drift(comparison, rows), error, origin, rules, expected, times, arguments)


def _arguments(comparison: Comparison, rows: int, paired: Bools) -> list[str]:
    """By call, the values that differ with the judge's own numbers: statistics that agree may hide a difference."""
    judged, run = comparison.judged, comparison.target
    texts: list[str] = [""] * len(run.ops)
    with np.errstate(invalid="ignore"):
        differs = (comparison.evidence.deviation.state[:rows] == DIFFERS) | (judged.error[:rows] > 0)
    places = np.flatnonzero(differs & paired)
    nothing = np.full(rows, np.nan)
    noise = judged.noise
    columns = (judged.error, nothing if noise is None else noise.expected, nothing if noise is None else noise.times)
    numbers = [column[places].tolist() for column in columns]
    calls = judged.calls.of_row[places].tolist()
    names = run.table["name"].gather(places).to_list()
    per_call: dict[int, dict[str, list[float | None]]] = {}
    for call, name, *three in zip(calls, names, *numbers, strict=True):
        argument = name.removeprefix(f"{run.ops[call]}.")
        per_call.setdefault(call, {})[argument] = [float(f"{x:.4g}") if np.isfinite(x) else None for x in three]
    for call, known in per_call.items():
        texts[call] = json.dumps(known, ensure_ascii=False, separators=(",", ":"))
    return texts


def _drift(comparison: Comparison, rows: int) -> Floats:
    """The seed's own number per call: how much worse the outputs are, by the kind of data that was recorded."""
    evidence, calls = comparison.evidence, comparison.judged.calls
    pairs = evidence.pairs[:rows]
    of_row, role, count = calls.of_row[:rows], calls.role[:rows], len(comparison.target.ops)
    paired = pairs["g_row"].is_not_null().to_numpy()
    compared = np.zeros(count, dtype=bool)
    compared[of_row[paired]] = True
    if evidence.mode == DIGESTS:
        differs = (evidence.deviation.state[:rows] == DIFFERS).astype(np.float64)
        drift = _fold(np.fmax, differs, of_row, paired, count)
    elif evidence.metrics is not None:
        ratio = evidence.metrics["one_thousandth"].to_numpy()[:rows]
        before = _fold(np.fmin, ratio, of_row, paired & np.isin(role, (INPUT, PARAMETER)), count)
        after = _fold(np.fmin, ratio, of_row, paired & (role == OUTPUT), count)
        drift = np.clip(np.where(np.isnan(before), 1.0, before) - after, 0.0, 1.0)
    else:
        assert evidence.differences is not None
        worst = _relative_errors(pairs, evidence.differences)
        if evidence.estimate is not None:  # two tensors of equal statistics may be far apart
            apart = np.where(evidence.estimate.lower > 0, np.minimum(evidence.estimate.relative, 1.0), np.nan)
            worst = np.fmax(worst, apart[:rows])
        drift = _fold(np.fmax, worst, of_row, paired & (role == OUTPUT), count)
    drift = np.where(np.isnan(drift), 0.0, drift)
    drift[calls.exempt] = 0.0
    return np.where(compared, drift, np.nan)


def _relative_errors(pairs: pl.DataFrame, differences: dict[str, StatDifference]) -> Floats:
    """The largest relative error of a row's four statistics, small values judged by their absolute apart."""
    limits = {text: _SMALL.get(canonical(text) or "", 0.0) for text in pairs["t_dtype"].unique().to_list()}
    limit = np.fromiter((limits[text] for text in pairs["t_dtype"].to_list()), dtype=np.float64, count=pairs.height)
    worst = np.full(pairs.height, np.nan)
    for stat in STATS:
        apart = differences[stat]
        case, diff, relative = (whole[: pairs.height] for whole in (apart.case, apart.diff, apart.relative))
        with np.errstate(invalid="ignore"):
            small = np.abs(pairs[f"t_{stat}"].to_numpy()) <= limit
            by_size = np.where(np.abs(diff) <= limit, 0.0, 1.0)
        share = np.where(small & (limit > 0), by_size, relative)
        share = np.where(case == NUMBER, np.minimum(share, 1.0), 0.0)
        share[np.isin(case, (NAN, PLUS_INF, MINUS_INF))] = 1.0
        worst = np.fmax(worst, share)
    return worst


def _fold(combine: Any, values: Floats, calls: NDArray[np.int64], mask: Bools, count: int) -> Floats:
    folded = np.full(count, np.nan)
    combine.at(folded, calls[mask], values[mask])
    return folded


# Colours, and the number between them that a node carries: two generations, two senses.

UNMATCHED_COLOUR = "#C7C7C7"
_FINE = ("#FFFCF3", "#FFEDBE", "#FFDC7F", "#FFC62E", "#FF704D")
_UNMATCHED = "no counterpart on the other side (未匹配)"

# How files call what was recorded.
TASKS = {STATISTICS: "summary", TENSORS: "all", DIGESTS: "md5"}

_WORDS = {
    STATISTICS: "relative error of the output, |(test - golden) / golden|, by statistics and sketches (输出的相对误差)",
    TENSORS: "drop in the share of elements within one thousandth, from inputs to outputs (双千分之一指标的下降)",
}
_VERDICT_WORDS = {
    "pass": "equal, or equal within rounding (一致)",
    "warning": "differs, or cannot be compared in full (有差异)",
    "error": "differs beyond what its inputs explain (异常)",
}
# What the added fields of a value mean.
TOOL_TIPS = {
    STATISTICS: {
        "Max diff": "maximum: test minus golden (最大值之差)",
        "Min diff": "minimum: test minus golden (最小值之差)",
        "Mean diff": "mean: test minus golden (平均值之差)",
        "L2norm diff": "L2 norm: test minus golden (二范数之差)",
    },
    DIGESTS: {"md5": "checksum of the data: equal or not (数据校验值是否一致)"},
    TENSORS: {
        "Cosine": "cosine of the angle between both tensors; 1 is best (余弦相似度)",
        "EucDist": "Euclidean distance; 0 is best (欧氏距离)",
        "MaxAbsErr": "largest absolute difference; 0 is best (最大绝对误差)",
        "MaxRelativeErr": "largest relative difference; 0 is best (最大相对误差)",
        "One Thousandth Err Ratio": "share of elements within 0.1 %; 1 is best (双千分之一)",
        "Five Thousandths Err Ratio": "share of elements within 0.5 %; 1 is best (双千分之五)",
    },
}


def verdict_colours() -> dict[str, dict[str, object]]:
    """The bands of ``.vis.db`` files: pass is 0, warning 0.5, error 1."""
    edges = {"pass": ("#FFFCF3", [0, 0.3]), "warning": ("#FFDC7F", [0.3, 0.6]), "error": ("#FF704D", [0.6, 1])}
    colours: dict[str, dict[str, object]] = {
        colour: {"value": band, "description": _VERDICT_WORDS[level], "accuracy_level": level}
        for level, (colour, band) in edges.items()
    }
    colours[UNMATCHED_COLOUR] = {"value": [], "description": _UNMATCHED, "accuracy_level": "unmatched node"}
    return colours


def drift_colours(mode: str) -> dict[str, dict[str, object]]:
    """The bands of ``.vis`` files. With checksums 1 is equal and 0 is different, against the sense of the others."""
    if mode == DIGESTS:
        bands: dict[str, tuple[list[float], str]] = {"#FFFCF3": ([1, 1], "every checksum is equal (校验值相同)"),
                 "#FF704D": ([0, 0], "a checksum differs (校验值不同)")}  # fmt: skip
    else:
        edges = [0, 0.05, 0.1, 0.15, 0.2, 1] if mode == TENSORS else [0, 0.2, 0.4, 0.6, 0.8, 1]
        bands = {colour: (edges[index : index + 2], _WORDS[mode]) for index, colour in enumerate(_FINE)}
    colours: dict[str, dict[str, object]] = {
        colour: {"value": band, "description": words} for colour, (band, words) in bands.items()
    }
    colours[UNMATCHED_COLOUR] = {"value": [], "description": _UNMATCHED}
    return colours


def drift_index(drift: float, mode: str) -> float | int:
    """The number of a ``.vis`` node."""
    if mode == DIGESTS:
        return 0 if drift else 1
    return min(drift, 1.0) if drift else 0


# Where NaN, infinity or a jump in size begins: three levels of alarm per call.

CRITICAL, HIGH, MEDIUM = "critical", "high", "medium"
_JUMP = 100.0


def overflow_levels(run: Run) -> list[str | None]:
    """The alarm of each call.

    critical: sound inputs, an output that is not; high: neither is sound, or the largest output norm is over a
    hundred times the largest input norm; medium: only the inputs are not. Calls whose memory nobody has written yet
    and calls that were given an infinity on purpose raise none.
    """
    table = run.table
    count = len(run.ops)
    op = table["op"].to_numpy()
    role = table["role"].to_numpy()
    tensor = (table["kind"] == TENSOR).to_numpy()
    bad = tensor & ~(np.isfinite(_known(table, "max")) & np.isfinite(_known(table, "min")))
    given = np.isin(role, (INPUT, PARAMETER))
    before, after = _any(op, bad & given, count), _any(op, bad & (role == OUTPUT), count)
    norm = _known(table, "norm")
    small, large = np.zeros(count), np.zeros(count)
    for largest, mask in ((small, tensor & (role == INPUT)), (large, tensor & (role == OUTPUT))):
        np.fmax.at(largest, op[mask], norm[mask])
    with np.errstate(divide="ignore", invalid="ignore"):
        jump = (large / small > _JUMP) & (small > 0)
    called = [parse_op(name) for name in run.ops]
    silent = np.array([not call.is_module and call.body in UNINITIALISED for call in called], dtype=bool)
    buffered = np.array([call.body in BUFFERED for call in called], dtype=bool)
    # An infinity that the program itself passes in (a mask's fill value) is no accident.
    plain = (table["kind"] == VALUE).to_numpy() & given & ~np.isfinite(_known(table, "max"))
    silent |= _any(op, plain, count)
    before &= ~buffered
    jump &= ~buffered
    levels = np.select([after & ~before, (after & before) | jump, before], [3, 2, 1], default=0)
    levels[silent] = 0
    words = (None, MEDIUM, HIGH, CRITICAL)
    return [words[level] for level in levels.tolist()]


def _known(table: pl.DataFrame, stat: str) -> NDArray[np.float64]:
    """A statistic; where it was recorded as no number at all it says nothing and counts as sound."""
    numbers = table[stat].to_numpy()
    recorded = table[f"{stat}_kind"].is_in([FLOAT, INT]).to_numpy()
    return np.where(recorded, numbers, 0.0)


def _any(op: NDArray[np.int32], mask: Bools, count: int) -> Bools:
    any_of = np.zeros(count, dtype=bool)
    any_of[op[mask]] = True
    return any_of
