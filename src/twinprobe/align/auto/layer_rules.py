"""An alignment as layer mapping rules: renames of children, class by class, as ``-lm`` files hold them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from twinprobe.align.auto.alignment import Alignment, Relation
from twinprobe.align.mapping.layer_file import TOP
from twinprobe.runs.names import FORWARD, OpName, parse_op


@dataclass
class LayerRules:
    """Class of the target -> child's name there -> its name in the golden run; and what this form cannot say."""

    classes: dict[str, dict[str, str]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def layer_rules(alignment: Alignment) -> LayerRules:
    """The renames that follow from all pairs of modules; where a class would need two names, the more frequent wins."""
    result = LayerRules()
    pairs = _module_pairs(alignment, result)
    votes: dict[tuple[str, str], Counter[str]] = {}
    for path, pair in pairs.items():
        cls, mine, theirs = _rule(path, pair.golden, pairs)
        votes.setdefault((cls, mine), Counter())[theirs] += 1
    for (cls, mine), names in sorted(votes.items(), key=lambda item: _rank(item[0])):
        theirs = names.most_common(1)[0][0]
        if mine != theirs:
            result.classes.setdefault(cls, {})[mine] = theirs
        for other, count in names.most_common()[1:]:
            text = f"{cls}: {mine} is {other} in {count} of {names.total()} places, and {theirs} in the others"
            result.left_out.append(text)
    return result


@dataclass(frozen=True)
class _Pair:
    golden: str
    cls: str


def _module_pairs(alignment: Alignment, result: LayerRules) -> dict[str, _Pair]:
    """Path of a target module -> its partner's path, for modules that are paired one to one."""
    pairs: dict[str, _Pair] = {}
    for relation in alignment.relations:
        names = [parse_op(name) for name in (*relation.target, *relation.golden)]
        if not all(name.is_module and name.direction == FORWARD for name in names):
            if any(name.is_module for name in names):
                result.left_out.append(_told(relation))
            continue
        if not relation.one_to_one:
            result.left_out.append(_told(relation))
            continue
        pair = _Pair(names[1].body, names[0].cls)
        known = pairs.setdefault(names[0].body, pair)
        if known.golden != pair.golden:
            result.left_out.append(f"{_told(relation)} (another call of it belongs to {known.golden})")
    return pairs


def _told(relation: Relation) -> str:
    shown = [" + ".join(_short(parse_op(name)) for name in side) for side in (relation.target, relation.golden)]
    return f"{relation.kind}: {shown[0]} is {shown[1]}"


def _short(name: OpName) -> str:
    return name.body if name.is_module else name.text


def _rule(path: str, other: str, pairs: dict[str, _Pair]) -> tuple[str, str, str]:
    """The class whose rule renames the way to this module, and that way on both sides."""
    above = path
    while "." in above:
        above = above.rpartition(".")[0]
        around = pairs.get(above)
        if around is not None and (other + ".").startswith(around.golden + ".") and other != around.golden:
            return around.cls, *_trimmed(path[len(above) + 1 :], other[len(around.golden) + 1 :])
    return TOP, *_trimmed(path, other)


def _trimmed(mine: str, theirs: str) -> tuple[str, str]:
    """Without equal numbers at the end, so that one rule holds for a whole stack of layers."""
    while "." in mine and "." in theirs:
        one, other = mine.rpartition("."), theirs.rpartition(".")
        if not one[2].isdecimal() or one[2] != other[2]:
            break
        mine, theirs = one[0], other[0]
    return mine, theirs


def _rank(rule: tuple[str, str]) -> tuple[bool, str, str]:
    return rule[0] != TOP, rule[0], rule[1]
