"""Which weight of the source goes to which weight of the target, for one pair of layers; rules of the user's own."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Any, overload

from twinprobe._live.frameworks.adapter import adapter_of, framework_of
from twinprobe._live.frameworks.layouts import TRANSPOSED
from twinprobe._live.weights.layers import (
    PROJECTIONS,
    Layer,
    Slot,
    StoredTensor,
    held_below,
    joined,
    layer_at,
    own_attention,
    raw_layer,
    submodule,
)
from twinprobe.errors import BadInput

COUNTERS = {"batches", "num_batches_tracked"}


@dataclass(frozen=True)
class Problem:
    """One weight of one side that finds no place on the other."""

    target: Layer | None  # None where no layer is aligned with the other one
    source: Layer | None
    wanted: Slot | None  # of the target
    offered: Slot | None  # of the source
    why: str
    in_one_layer: bool = False  # both layers are there, and one of them has no such weight: a bias, a scale

    @property
    def notice(self) -> str:
        """The same where it is no error: what was left as it is."""
        slot, layer = (self.wanted, self.target) if self.offered is None else (self.offered, self.source)
        assert slot is not None
        assert layer is not None
        which, other, end = ("raw", "base", "; it keeps its values") if self.offered is None else ("base", "raw", "")
        return f"only {which} has {slot.held} ({layer.kind}), {other}'s layer has no such weight{end}"


@dataclass
class Match:
    """What a pair of layers needs: copies, values to fill in; and what prevents it."""

    target: Layer | None = None
    source: Layer | None = None
    copies: list[tuple[Slot, Slot]] = field(default_factory=list)
    fills: list[tuple[Slot, float]] = field(default_factory=list)
    must_be: list[tuple[Slot, float, Problem]] = field(default_factory=list)  # source weights the target cannot hold
    problems: list[Problem] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def refuse(self, wanted: Slot | None, offered: Slot | None, why: str, *, in_one_layer: bool = False) -> None:
        """A weight cannot be copied."""
        self.problems.append(Problem(self.target, self.source, wanted, offered, why, in_one_layer))

    def pair(self, wanted: Slot, offered: Slot) -> None:
        """Two weights belong together: copy one to the other, if their shapes agree."""
        if wanted.shape == offered.shape:
            self.copies.append((wanted, offered))
        elif wanted.held.is_buffer and offered.held.is_buffer:
            self.notices.append(f"{wanted.held} keeps its values: {offered.held} of the source has another shape")
        else:
            self.refuse(wanted, offered, "their shapes differ")

    def one_sided(self, slot: Slot, *, in_target: bool) -> None:
        """A weight that only one layer has: harmless when it is fixed to the value that changes nothing."""
        who, wanted, offered = ("target", slot, None) if in_target else ("source", None, slot)
        if slot.held.trainable:
            self.refuse(wanted, offered, f"only the {who} has {slot.name!r}", in_one_layer=True)
        elif slot.neutral is None:
            self.notices.append(f"{slot.held.name}: only the {who} keeps a {slot.name}, it was not copied")
        elif in_target:
            self.fills.append((slot, slot.neutral))
        else:
            why = f"only the source has {slot.name!r}, and it is not {slot.neutral:g}"
            self.must_be.append((slot, slot.neutral, Problem(self.target, self.source, wanted, offered, why, True)))

    def by_name(self, wanted: dict[str, Slot], offered: dict[str, Slot]) -> None:
        """What has the same name, then the same meaning, then a shape that occurs once on each side."""
        for name_of in (attrgetter("name"), attrgetter("alias")):
            partners = {name_of(slot): key for key, slot in offered.items()}
            for key, slot in list(wanted.items()):
                partner = partners.get(name_of(slot))
                if partner in offered:
                    self.pair(wanted.pop(key), offered.pop(partner))
        wanted, offered = (
            {key: slot for key, slot in slots.items() if not slot.held.is_buffer} for slots in (wanted, offered)
        )
        here, there = (Counter(slot.shape for slot in slots.values()) for slots in (wanted, offered))
        for key, slot in list(wanted.items()):
            if here[slot.shape] == there[slot.shape] == 1:
                partner = next(name for name, candidate in offered.items() if candidate.shape == slot.shape)
                self.copies.append((wanted.pop(key), offered.pop(partner)))
        for slot in wanted.values():
            alike = next((candidate for candidate in offered.values() if candidate.shape == slot.shape), None)
            why = "the source's layer has no partner for it by name or shape"
            if alike is not None:
                why = "several weights have this shape and the names do not tell which is which"
            self.refuse(slot, alike, why, in_one_layer=not offered)
        if not wanted:
            for slot in offered.values():
                why = "the target's layer has no partner for it by name or shape"
                self.refuse(None, slot, why, in_one_layer=True)


def match_layers(target: Layer, source: Layer) -> Match:
    """Match by the rule of the common family, everything else by name and then by shape."""
    match = Match(target, source)
    if target.family is not None and target.family == source.family:
        for name in target.slots | source.slots:
            wanted, offered = target.slots.get(name), source.slots.get(name)
            if wanted is not None and offered is not None:
                match.pair(wanted, offered)
            elif name not in COUNTERS:
                slot = wanted or offered
                assert slot is not None
                match.one_sided(slot, in_target=slot is wanted)
        match.by_name(dict(target.others), dict(source.others))
    elif {target.family, source.family} == {"linear", "convolution"} and (slots := _as_linear(target, source)):
        match.by_name(*slots)
    elif target.family is not None and source.family is not None:
        firsts = next(iter(target.slots.values()), None), next(iter(source.slots.values()), None)
        if firsts != (None, None):
            match.refuse(*firsts, f"a {target.family} and a {source.family} hold different weights")
    elif framework_of(target.module) == framework_of(source.module):
        match.by_name(*_turned(match, target, source))
    else:
        _match_across_frameworks(match, target, source)
    return match


def _match_across_frameworks(match: Match, target: Layer, source: Layer) -> None:
    """At most one side is of a known class: take names, and mind matrices that the known side stores turned."""
    wanted, offered = target.slots | target.others, source.slots | source.others
    known, free = (wanted, offered) if target.family else (offered, wanted)
    matrix = known.get("weight") if "linear" in (target.family, source.family) else None
    partner = next((slot for slot in free.values() if slot.alias == "weight"), None)
    if matrix is not None and partner is not None and len(matrix.shape) == 2:
        if matrix.shape == matrix.shape[::-1] == partner.shape:
            pair = (matrix, partner) if known is wanted else (partner, matrix)
            match.refuse(*pair, "a square matrix in a class of your own may be stored transposed or not")
            for slots, slot in zip((wanted, offered), pair, strict=True):
                del slots[next(key for key, candidate in slots.items() if candidate is slot)]
        elif matrix.shape == partner.shape[::-1]:
            free[partner.name] = Slot(partner.name, partner.held, TRANSPOSED)
    match.by_name(wanted, offered)


def _as_linear(target: Layer, source: Layer) -> list[dict[str, Slot]]:
    """A convolution of one point is a linear layer; nothing for any other convolution."""
    found = []
    for layer in (target, source):
        slots, weight = layer.slots | layer.others, layer.slots.get("weight")
        if layer.family == "convolution":
            if weight is None or any(size != 1 for size in weight.shape[2:]):
                return []
            slots = {**slots, "weight": replace(weight, view=replace(weight.view, pointwise=True))}
        found.append(slots)
    return found


def _turned(match: Match, target: Layer, source: Layer) -> list[dict[str, Slot]]:
    """The weights of two layers of one framework as they are stored; a matrix of a class of the user's own is turned
    where only that fits a linear layer."""
    found = [_stored(target), _stored(source)]
    for own, known in ((0, 1), (1, 0)):
        matrix, weight = (found[side].get("weight") for side in (own, known))
        if (target, source)[known].family != "linear" or matrix is None or weight is None:
            continue
        if len(matrix.shape) == 2 and matrix.shape == weight.shape[::-1] != weight.shape:
            found[own]["weight"] = replace(matrix, view=TRANSPOSED)
            match.notices.append(f"{matrix.held} is stored as [in, out]: it is copied transposed")
    return found


def _stored(layer: Layer) -> dict[str, Slot]:
    """The weights as they are stored, under their names within the layer."""
    names = [(slot.held.name.removeprefix(f"{layer.path}."), slot.held) for slot in layer.weights]
    return {name: Slot(name, held) for name, held in names}


_SHOWN = 5
_JOINED = re.compile("qkv|query_key_value|c_attn|in_proj|w_?pack")  # what layers are called that hold q, k and v


def refusal(problems: Sequence[Problem], targets: Sequence[Slot], sources: Sequence[Slot]) -> BadInput:
    """The error for all of them, with the nearest partner of each."""
    lines = []
    for problem in problems[:_SHOWN]:
        sides = _side("target", problem.target, problem.wanted), _side("source", problem.source, problem.offered)
        if problem.wanted is not None:
            near, side = nearest(problem.wanted, sources, taken=problem.offered), "source"
        else:
            assert problem.offered is not None
            near, side = nearest(problem.offered, targets), "target"
        lines.append(f"{', '.join(filter(None, sides))}: {problem.why}; {_advice(near, side)}")
    if len(problems) > _SHOWN:
        lines.append(f"and {len(problems) - _SHOWN} more")
    names = [layer.kind if layer else "OtherClass" for layer in (problems[0].target, problems[0].source)]
    return BadInput(
        "weights cannot be copied; nothing was changed:\n  " + "\n  ".join(lines),
        hint=f"align other layers with LayerMap, leave these out with LayerMap.ignore, or copy them with"
        f" add_special_init({', '.join(names)}, function)",
    )


def _side(which: str, layer: Layer | None, slot: Slot | None) -> str:
    if layer is None:
        return ""
    if slot is not None:
        turned = ", transposed" if slot.view.transposed else ""
        return f"{which} {slot.held} ({layer.kind}{turned})"
    held = [str(weight.held) for weight in layer.weights]
    return f"{which} {layer.path or 'model'} ({layer.kind}) with {', '.join(held) or 'no weights'}"


def _advice(near: tuple[StoredTensor, bool, bool] | None, side: str) -> str:
    if near is None:
        return f"the {side} has no weight to offer"
    held, holds_three, fits = near
    if holds_three:
        return (
            f"nearest partner in the {side}: {held}; LayerMap.group([the one], [q, k, v]) copies one that holds three"
        )
    return f"nearest fitting partner in the {side}: {held}" if fits else f"none fits, nearest by name: {held}"


def nearest(
    slot: Slot, candidates: Sequence[Slot], taken: Slot | None = None
) -> tuple[StoredTensor, bool, bool] | None:
    """The weight of the other model that fits best: as one projection in a joined one, by shape, then by name; with
    whether it is such a one, and whether its shape fits at all."""

    def rank(candidate: Slot) -> tuple[bool, bool, float]:
        alike = difflib.SequenceMatcher(None, slot.held.name, candidate.held.name).ratio()
        return _is_third(slot, candidate) or _is_third(candidate, slot), candidate.shape == slot.shape, alike

    free = [candidate for candidate in candidates if taken is None or candidate.held.key != taken.held.key]
    if not free:
        return None
    best = max(free, key=rank)
    return best.held, *rank(best)[:2]


def _is_third(part: Slot, whole: Slot) -> bool:
    """Whether one may be the projection of q, k or v in a layer that has all three."""
    if part.name != whole.name or not part.shape or (3 * part.shape[0], *part.shape[1:]) != whole.shape:
        return False
    part_of, whole_of = (slot.held.name.split(".")[-2:-1] for slot in (part, whole))
    return bool(part_of and whole_of) and part_of[0] in PROJECTIONS and bool(_JOINED.search(whole_of[0].lower()))


Paths = tuple[str, str]


@dataclass
class LayerPair:
    """An aligned pair: a function of the user's own, or two layers to match, or nothing but a notice."""

    target: Layer
    source: Layer
    special: Init | None = None
    without_rule: bool = False


def layer_pairs_of(
    target: Any, source: Any, pairs: Iterable[Paths], mapped: Collection[Paths] | None
) -> list[LayerPair]:
    """The layers of each pair that no rule for an enclosing module covers, in the order given."""
    wanted = list(dict.fromkeys(pairs))
    around = tuple({outer for pair in wanted for outer in _around(pair[side])} for side in (0, 1))
    layer_pairs: dict[Paths, LayerPair] = {}
    closed: tuple[set[str], set[str]] = (set(), set())
    # From the outside in: a rule for a whole module covers everything below it.
    for paths in sorted(wanted, key=lambda pair: (len(_around(pair[0])), len(_around(pair[1])))):
        if any(closed[side] and closed[side].intersection(_around(paths[side])) for side in (0, 1)):
            continue
        below = any(paths[side] in around[side] for side in (0, 1))
        layer_pair = layer_pairs[paths] = _layer_pair(target, source, paths, mapped, below=below)
        if layer_pair.special is not None or layer_pair.without_rule or layer_pair.target.whole:
            closed[0].add(paths[0])
            closed[1].add(paths[1])
    return [layer_pairs[paths] for paths in wanted if paths in layer_pairs]


def _around(path: str) -> list[str]:
    """The paths of all modules that a module lies in, the model last."""
    outer: list[str] = []
    while path:
        path = path.rpartition(".")[0]
        outer.append(path)
    return outer


def _layer_pair(target: Any, source: Any, paths: Paths, mapped: Collection[Paths] | None, *, below: bool) -> LayerPair:
    here, there = submodule(target, paths[0]), submodule(source, paths[1])
    function = special_init(here, there)
    layers = _layers(here, there, paths, below=below)
    has_rule = layers[0].family is not None and layers[0].family == layers[1].family
    if mapped is None:
        # A pair of composed modules, nothing inside of which is paired, was put together by the user's map.
        composed = any(adapter_of(module).children(module) for module in (here, there))
        own = all(adapter_of(module).weights(module) for module in (here, there))
        by_the_user = not below and paths != ("", "") and composed and not own
    else:
        by_the_user = paths in mapped
    only_mapped = by_the_user and not has_rule
    if function is not None or (only_mapped and type(here) is type(there)):
        return LayerPair(raw_layer(here, paths[0], deep=True), raw_layer(there, paths[1], deep=True), function)
    weighs = only_mapped and any(not held.is_buffer for module in (here, there) for held in held_below(module))
    return LayerPair(*layers, without_rule=weighs)


def _layers(here: Any, there: Any, paths: Paths, *, below: bool) -> tuple[Layer, Layer]:
    wanted, offered = layer_at(here, paths[0]), layer_at(there, paths[1])
    if wanted.family == offered.family:
        return wanted, offered
    if "attention" in (wanted.family, offered.family):
        if wanted.family is None and (layout := own_attention(here)) is not None:
            return layer_at(here, paths[0], layout), offered
        if offered.family is None and (layout := own_attention(there)) is not None:
            return wanted, layer_at(there, paths[1], layout)
    if not below:
        wanted = _unwrapped(wanted) if offered.weights else wanted
        offered = _unwrapped(offered) if wanted.weights else offered
    if wanted.family != offered.family and None in (wanted.family, offered.family):
        # A rule for a whole module needs both sides; without it only what the module itself holds is its business.
        wanted, offered = (raw_layer(layer.module, layer.path) if layer.whole else layer for layer in (wanted, offered))
    return wanted, offered


def _unwrapped(layer: Layer) -> Layer:
    """The one layer with weights inside a module that adds nothing of its own, or the layer itself."""
    while layer.family is None and not layer.others:
        children = adapter_of(layer.module).children(layer.module)
        inner = [(name, child) for name, child in children.items() if held_below(child)]
        if len(inner) != 1:
            break
        layer = layer_at(inner[0][1], joined(layer.path, inner[0][0]))
    return layer


Named = type | str
Init = Callable[[Any, Any], object]

# The rules that users have registered, newest last. The function takes (target, source), whatever the call form.
USER_RULES: list[tuple[str | None, Named, str | None, Named, Init]] = []
_FRAMEWORKS = ("torch", "paddle", "mindspore")


@overload
def add_special_init(target: Named, source: Named, /) -> Callable[[Init], Init]: ...
@overload
def add_special_init(target: Named, source: Named, function: Init, /) -> Init: ...
@overload
def add_special_init(base_framework: str, base: Named, raw_framework: str, raw: Named, /) -> Callable[[Init], Init]: ...
@overload
def add_special_init(base_framework: str, base: Named, raw_framework: str, raw: Named, function: Init, /) -> Init: ...
@overload
def add_special_init(*, paddle_name: Named, torch_name: Named, func: Init) -> Init: ...
def add_special_init(*given: Any, **named: Any) -> Any:
    """Copy the weights of a pair of classes with a function of your own.

    Either `add_special_init(TargetClass, SourceClass, function)`, where `function(target, source)` sets the weights of
    the target, or `add_special_init("torch", Base, "paddle", Raw, function)`, where `function(base, raw)` sets those of
    raw. A class is given as such or by its name; subclasses follow the rule. Without the function it is a decorator.
    """
    if named.keys() == {"paddle_name", "torch_name", "func"} and not given:
        given = (named["paddle_name"], named["torch_name"], named["func"])
    elif named:
        raise BadInput(f"add_special_init got {', '.join(named)}", hint="give the classes and the function by position")
    if len(given) in (2, 4):
        return partial(add_special_init, *given)
    if len(given) not in (3, 5) or not callable(given[-1]):
        raise BadInput(
            "add_special_init takes two classes and a function",
            hint="add_special_init(TargetClass, SourceClass, function), or with the framework before each class",
        )
    *names, function = given
    if len(names) == 2:
        target, source = names
        rule: tuple[str | None, Named, str | None, Named, Init] = (None, target, None, source, function)
    else:
        base_framework, base, raw_framework, raw = names
        for framework in (base_framework, raw_framework):
            if framework not in _FRAMEWORKS:
                raise BadInput(f"unknown framework {framework!r}", hint=f"one of {', '.join(_FRAMEWORKS)}")
        rule = (raw_framework, raw, base_framework, base, lambda target, source: function(source, target))
    for kind in (rule[1], rule[3]):
        if not isinstance(kind, (type, str)):
            raise BadInput(f"{kind!r} is neither a class nor the name of one")
    USER_RULES.append(rule)
    return function


def special_init(target: Any, source: Any) -> Init | None:
    """The rule for two layers: the one nearest in the class hierarchies, the newest of several."""
    rules: list[tuple[int, int, Init]] = []
    for age, (target_framework, target_class, source_framework, source_class, function) in enumerate(USER_RULES):
        target_distance = _distance(target, target_class, target_framework)
        source_distance = _distance(source, source_class, source_framework)
        if target_distance is not None and source_distance is not None:
            rules.append((target_distance + source_distance, -age, function))
    return min(rules, key=lambda rule: rule[:2])[2] if rules else None


def _distance(layer: Any, named: Named, framework: str | None) -> int | None:
    if framework is not None and framework_of(layer) != framework:
        return None
    for distance, kind in enumerate(type(layer).__mro__):
        if kind is named or kind.__name__ == named:
            return distance
    return None
