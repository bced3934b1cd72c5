"""How well two module calls fit that are no layers: names, classes, sizes and values of what they take and give."""

from __future__ import annotations

from functools import lru_cache

from twinprobe.align.auto.kinds import class_kind, function_of
from twinprobe.align.auto.layer_scores import _like_sizes
from twinprobe.align.auto.layers import Facts
from twinprobe.align.auto.prints import row_values_agree
from twinprobe.align.auto.words import agreement, likeness, meaning, own_name

_EQUAL_OUTPUT, _EQUAL_INPUT = 2.0, 1.0


@lru_cache(maxsize=65536)
def names_fit(path: str, cls: str, other_path: str, other_cls: str) -> float:
    """What attribute and class names say, from about -1.5 to 4."""
    score = agreement(meaning(path), meaning(other_path)) + 0.75 * likeness(own_name(path), own_name(other_path))
    score += 0.5 if cls and cls == other_cls else 0.4 * likeness(cls, other_cls)
    numbered = path.rpartition(".")[2].isdecimal(), other_path.rpartition(".")[2].isdecimal()
    score += 0.5 if all(numbered) else -0.5 if any(numbered) else 0.0
    return score + (1.0 if path and path == other_path else 0.0)


@lru_cache(maxsize=65536)
def kinds_fit(cls: str, other_cls: str) -> float:
    """What the classes of modules without parameters say they compute."""
    functions = function_of(cls), function_of(other_cls)
    if all(functions):
        return 2.0 if functions[0] == functions[1] else -6.0
    kinds = class_kind(cls), class_kind(other_cls)
    if all(kinds):
        return 1.0 if kinds[0] == kinds[1] else -3.0
    return 0.0


def values_fit(target: Facts, node: int, golden: Facts, other: int) -> tuple[float, bool]:
    """What sizes and values of inputs and outputs say, and whether the outputs hold equal values."""
    score = 0.0
    same_output = False
    for mine, theirs, worth, size in (
        (target.input_row(node), golden.input_row(other), _EQUAL_INPUT, 0.5),
        (target.output_row(node), golden.output_row(other), _EQUAL_OUTPUT, 0.75),
    ):
        score += size * _like_sizes(target.prints.shape(mine), golden.prints.shape(theirs))
        if row_values_agree(target.prints, mine, golden.prints, theirs):
            score += worth
            same_output = worth == _EQUAL_OUTPUT
    return score, same_output
