"""Colours, and the number between them that a node carries: two generations, two senses."""

from __future__ import annotations

from twinprobe.runs.run import DIGESTS, STATISTICS, TENSORS

UNMATCHED_COLOUR = "#C7C7C7"
_FINE = ("#FFFCF3", "#FFEDBE", "#FFDC7F", "#FFC62E", "#FF704D")
_UNMATCHED = "no counterpart on the other side (未匹配)"

# How files call what was recorded.
TASKS = {STATISTICS: "summary", TENSORS: "all", DIGESTS: "md5"}

_WORDS = {
    STATISTICS: "relative error of the output's statistics, |(test - golden) / golden| (输出统计量的相对误差)",
    TENSORS: "fall of the share of elements within one thousandth, inputs to outputs (双千分之一指标的下降)",
}
_VERDICT_WORDS = {
    "pass": "equal, or equal within rounding (一致)",
    "warning": "differs, or cannot be compared in full (有差异)",
    "error": "differs beyond what its inputs explain (异常)",
}
_TIPS = {
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


def tool_tips(mode: str) -> dict[str, str]:
    """What the added fields of a value mean."""
    return _TIPS[mode]


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
        bands = {colour: (edges[at : at + 2], _WORDS[mode]) for at, colour in enumerate(_FINE)}
    colours: dict[str, dict[str, object]] = {
        colour: {"value": band, "description": words} for colour, (band, words) in bands.items()
    }
    colours[UNMATCHED_COLOUR] = {"value": [], "description": _UNMATCHED}
    return colours


def verdict_index(severity: int) -> float | int | None:
    """The number of a ``.vis.db`` node."""
    return (None, 0, 0.5, 1)[severity + 1]


def drift_index(drift: float, mode: str) -> float | int:
    """The number of a ``.vis`` node."""
    if mode == DIGESTS:
        return 0 if drift else 1
    return min(drift, 1.0) if drift else 0


def worse(mode: str, indices: list[float | int]) -> float | int:
    """The index of a collection: that of its worst child."""
    return min(indices) if mode == DIGESTS else max(indices)
