"""Which weight of the source goes to which weight of the target, for one aligned pair of layers."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from twinprobe._live.weights.layers import (
    PROJECTIONS,
    Held,
    Layer,
    Slot,
    held_below,
    joined,
    layer_at,
    own_attention,
    raw_layer,
)
from twinprobe._live.weights.special import Init, special_init
from twinprobe._live.weights.stores import AS_IS, TRANSPOSED, Store, submodule
from twinprobe.errors import BadInput

# What to say when a weight cannot be copied.

_SHOWN = 5
_JOINED = re.compile("qkv|query_key_value|c_attn|in_proj|w_?pack")  # what layers are called that hold q, k and v


@dataclass(frozen=True)
class Problem:
    """One weight of one side that finds no place on the other."""

    target: Layer | None  # None where no layer is aligned with the other one
    source: Layer | None
    wanted: Slot | None  # of the target
    offered: Slot | None  # of the source
    why: str


def refuse(problems: Sequence[Problem], targets: Sequence[Slot], sources: Sequence[Slot]) -> BadInput:
    """The error for all of them, with the nearest partner of each."""
    lines = [_line(problem, targets, sources) for problem in problems[:_SHOWN]]
    if len(problems) > _SHOWN:
        lines.append(f"and {len(problems) - _SHOWN} more")
    names = [layer.kind if layer else "OtherClass" for layer in (problems[0].target, problems[0].source)]
    return BadInput(
        "weights cannot be copied; nothing was changed:\n  " + "\n  ".join(lines),
        hint=f"align other layers with LayerMap, leave these out with LayerMap.ignore, or copy them with"
        f" add_special_init({', '.join(names)}, function)",
    )


def _line(problem: Problem, targets: Sequence[Slot], sources: Sequence[Slot]) -> str:
    target = _side("target", problem.target, problem.wanted)
    source = _side("source", problem.source, problem.offered)
    if problem.wanted is not None:
        near = nearest(problem.wanted, sources, taken=problem.offered)
        side = "source"
    else:
        assert problem.offered is not None
        near, side = nearest(problem.offered, targets), "target"
    both = ", ".join(filter(None, (target, source)))
    return f"{both}: {problem.why}; {_advice(near, side)}"


def _side(which: str, layer: Layer | None, slot: Slot | None) -> str:
    if layer is None:
        return ""
    if slot is not None:
        turned = ", transposed" if slot.view.transposed else ""
        return f"{which} {slot.held.name} {list(slot.held.shape)} ({layer.kind}{turned})"
    held = [str(one.held) for one in layer.weights]
    return f"{which} {layer.path or 'model'} ({layer.kind}) with {', '.join(held) or 'no weights'}"


def _advice(near: tuple[Held, bool, bool] | None, side: str) -> str:
    if near is None:
        return f"the {side} has no weight to offer"
    held, joined, fits = near
    if joined:
        return (
            f"nearest partner in the {side}: {held}; LayerMap.group([the one], [q, k, v]) copies one that holds three"
        )
    return f"nearest fitting partner in the {side}: {held}" if fits else f"none fits, nearest by name: {held}"


def nearest(slot: Slot, others: Sequence[Slot], taken: Slot | None = None) -> tuple[Held, bool, bool] | None:
    """The weight of the other model that fits best: as one projection in a joined one, by shape, then by name; with
    whether it is such a one, and whether its shape fits at all."""

    def rank(other: Slot) -> tuple[bool, bool, float]:
        alike = difflib.SequenceMatcher(None, slot.held.name, other.held.name).ratio()
        return _is_third(slot, other) or _is_third(other, slot), other.shape == slot.shape, alike

    free = [other for other in others if taken is None or other.held.key != taken.held.key]
    if not free:
        return None
    best = max(free, key=rank)
    return best.held, *rank(best)[:2]


def _is_third(part: Slot, whole: Slot) -> bool:
    """Whether one may be the projection of q, k or v in a layer that has all three."""
    if part.name != whole.name or not part.shape or (3 * part.shape[0], *part.shape[1:]) != whole.shape:
        return False
    part_of, whole_of = (one.held.name.split(".")[-2:-1] for one in (part, whole))
    return bool(part_of and whole_of) and part_of[0] in PROJECTIONS and bool(_JOINED.search(whole_of[0].lower()))


COUNTERS = {"batches", "num_batches_tracked"}


@dataclass
class Match:
    """Copies that a pair asks for, values to fill in, and what stands in the way."""

    copies: list[tuple[Slot, Slot]] = field(default_factory=list)
    fills: list[tuple[Slot, float]] = field(default_factory=list)
    must_be: list[tuple[Slot, float, Problem]] = field(default_factory=list)  # source weights the target cannot hold
    problems: list[Problem] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


def match_layers(target: Layer, source: Layer, *, one_framework: bool) -> Match:
    """Match by the rule of the common family, everything else by name and then by shape."""
    match = Match()
    if target.family is not None and target.family == source.family:
        for name in target.slots | source.slots:
            wanted, offered = target.slots.get(name), source.slots.get(name)
            if wanted is not None and offered is not None:
                _if_shapes_agree(target, source, wanted, offered, match)
            elif name not in COUNTERS:
                _one_sided(target, source, wanted, offered, match)
        _by_name(target, source, dict(target.others), dict(source.others), match)
    elif target.family is None or source.family is None:
        _half_known(target, source, match, one_framework=one_framework)
    else:
        why = f"a {target.family} and a {source.family} keep different things"
        wanted, offered = next(iter(target.slots.values()), None), next(iter(source.slots.values()), None)
        if wanted is not None or offered is not None:
            match.problems.append(Problem(target, source, wanted, offered, why))
    return match


def _one_sided(target: Layer, source: Layer, wanted: Slot | None, offered: Slot | None, match: Match) -> None:
    """A weight that only one layer has: harmless when it is fixed to the value that changes nothing."""
    slot = wanted or offered
    assert slot is not None
    who = "target" if wanted is not None else "source"
    problem = Problem(target, source, wanted, offered, f"only the {who} has {slot.name!r}")
    if slot.held.trainable:
        match.problems.append(problem)
    elif slot.neutral is None:
        match.notices.append(f"{slot.held.name}: only the {who} keeps a {slot.name}, it was not copied")
    elif wanted is not None:
        match.fills.append((wanted, slot.neutral))
    else:
        why = f"only the source has {slot.name!r}, and it is not {slot.neutral:g}"
        match.must_be.append((slot, slot.neutral, replace(problem, why=why)))


def _if_shapes_agree(target: Layer, source: Layer, wanted: Slot, offered: Slot, match: Match) -> None:
    if wanted.shape == offered.shape:
        match.copies.append((wanted, offered))
    elif wanted.held.is_buffer and offered.held.is_buffer:
        match.notices.append(f"{wanted.held} keeps its values: {offered.held} of the source has another shape")
    else:
        match.problems.append(Problem(target, source, wanted, offered, "their shapes differ"))


def _half_known(target: Layer, source: Layer, match: Match, *, one_framework: bool) -> None:
    """At most one side is of a known class: take names, and mind matrices that the known side stores turned."""
    if one_framework:
        _by_name(target, source, _stored(target), _stored(source), match)
        return
    wanted, offered = target.slots | target.others, source.slots | source.others
    known, free = (wanted, offered) if target.family else (offered, wanted)
    matrix = known.get("weight") if "linear" in (target.family, source.family) else None
    partner = next((slot for slot in free.values() if slot.alias == "weight"), None)
    if matrix is not None and partner is not None and len(matrix.shape) == 2:
        if matrix.shape == matrix.shape[::-1] == partner.shape:
            why = "a square matrix of a class of your own may be stored either way"
            pair = (matrix, partner) if known is wanted else (partner, matrix)
            match.problems.append(Problem(target, source, *pair, why))
            del wanted[next(key for key, one in wanted.items() if one is pair[0])]
            del offered[next(key for key, one in offered.items() if one is pair[1])]
        elif matrix.shape == partner.shape[::-1]:
            free[partner.name] = Slot(partner.name, partner.held, TRANSPOSED)
    _by_name(target, source, wanted, offered, match)


def _stored(layer: Layer) -> dict[str, Slot]:
    """The weights as they lie there, under their names within the layer."""
    names = [(one.held.name.removeprefix(f"{layer.path}."), one.held) for one in layer.weights]
    return {name: Slot(name, held, AS_IS) for name, held in names}


def _by_name(target: Layer, source: Layer, wanted: dict[str, Slot], offered: dict[str, Slot], match: Match) -> None:
    """Take out of both what has the same name, then the same meaning, then a shape that occurs once on each side."""
    _pair_up(target, source, wanted, offered, lambda slot: slot.name, match)
    _pair_up(target, source, wanted, offered, lambda slot: slot.alias, match)
    _pair_up_shapes(wanted, offered, match)
    for slot in wanted.values():
        if not slot.held.is_buffer:
            why = _why_alone(slot, offered, "source")
            match.problems.append(Problem(target, source, slot, _same_shape(slot, offered), why))
    if not any(not slot.held.is_buffer for slot in wanted.values()):
        for slot in offered.values():
            if not slot.held.is_buffer:
                match.problems.append(Problem(target, source, None, slot, _why_alone(slot, wanted, "target")))


def _pair_up(
    target: Layer,
    source: Layer,
    wanted: dict[str, Slot],
    offered: dict[str, Slot],
    name_of: Callable[[Slot], str],
    match: Match,
) -> None:
    partners = {name_of(slot): key for key, slot in offered.items()}
    for key, slot in list(wanted.items()):
        partner = partners.get(name_of(slot))
        if partner in offered:
            _if_shapes_agree(target, source, wanted.pop(key), offered.pop(partner), match)


def _pair_up_shapes(wanted: dict[str, Slot], offered: dict[str, Slot], match: Match) -> None:
    here, there = (
        Counter(slot.shape for slot in slots.values() if not slot.held.is_buffer) for slots in (wanted, offered)
    )
    for key, slot in list(wanted.items()):
        if slot.held.is_buffer or here[slot.shape] != 1 or there[slot.shape] != 1:
            continue
        partner = next(name for name, one in offered.items() if one.shape == slot.shape and not one.held.is_buffer)
        match.copies.append((wanted.pop(key), offered.pop(partner)))


def _same_shape(slot: Slot, others: dict[str, Slot]) -> Slot | None:
    return next((one for one in others.values() if one.shape == slot.shape and not one.held.is_buffer), None)


def _why_alone(slot: Slot, others: dict[str, Slot], side: str) -> str:
    if _same_shape(slot, others) is None:
        return f"the {side}'s layer has no partner for it by name or shape"
    return "several weights have this shape and the names do not tell which is which"


# What is to be done for each aligned pair of modules: which of them a rule speaks for, and with which layout.

Paths = tuple[str, str]


@dataclass(frozen=True)
class StoredModel:
    """One of the two models and how to reach its weights."""

    model: Any
    store: Store

    @cached_property
    def held(self) -> list[Held]:
        """All parameters and buffers."""
        return held_below(self.store, self.model)


@dataclass
class Work:
    """An aligned pair: a function of the user's own, or two layers to match, or nothing but a notice."""

    paths: Paths
    target: Layer
    source: Layer
    special: Init | None = None
    without_rule: bool = False


def works_of(
    target: StoredModel, source: StoredModel, pairs: Iterable[Paths], mapped: Collection[Paths] | None
) -> list[Work]:
    """One work for each pair that no other pair speaks for, in the order given."""
    wanted = list(dict.fromkeys(pairs))
    around = tuple({outer for pair in wanted for outer in _around(pair[at])} for at in (0, 1))
    works: dict[Paths, Work] = {}
    closed: tuple[set[str], set[str]] = (set(), set())
    # From the outside in: a rule for a whole module speaks for everything below it.
    for paths in sorted(wanted, key=lambda pair: (_depth(pair[0]), _depth(pair[1]))):
        if any(closed[at] and closed[at].intersection(_around(paths[at])) for at in (0, 1)):
            continue
        below = any(paths[at] in around[at] for at in (0, 1))
        work = works[paths] = _work(target, source, paths, mapped, below=below)
        if work.special is not None or work.without_rule or work.target.whole:
            closed[0].add(paths[0])
            closed[1].add(paths[1])
    return [works[paths] for paths in wanted if paths in works]


def _around(path: str) -> list[str]:
    """The paths of all modules that a module lies in, the model first."""
    found: list[str] = []
    while path:
        path = path.rpartition(".")[0]
        found.append(path)
    found.reverse()
    return found


def _depth(path: str) -> int:
    return path.count(".") + 1 if path else 0


def _work(
    target: StoredModel, source: StoredModel, paths: Paths, mapped: Collection[Paths] | None, *, below: bool
) -> Work:
    here, there = (submodule(side.store, side.model, path) for side, path in zip((target, source), paths, strict=True))
    function = special_init(here, there)
    if function is not None:
        return Work(paths, *_bare(target, source, here, there, paths), special=function)
    layers = _layers(target, source, here, there, paths, below=below)
    by_the_user = paths in mapped if mapped is not None else _looks_mapped(target, source, here, there, paths, below)
    known = layers[0].family is not None and layers[0].family == layers[1].family
    if by_the_user and not known:
        if type(here) is type(there):
            return Work(paths, *_bare(target, source, here, there, paths))
        weighs = _has_weights(target, here) or _has_weights(source, there)
        return Work(paths, layers[0], layers[1], without_rule=weighs)
    return Work(paths, *layers)


def _layers(
    target: StoredModel, source: StoredModel, here: Any, there: Any, paths: Paths, *, below: bool
) -> tuple[Layer, Layer]:
    one, other = layer_at(target.store, here, paths[0]), layer_at(source.store, there, paths[1])
    if one.family == other.family:
        return one, other
    if "attention" in (one.family, other.family):
        layouts = own_attention(target.store, here), own_attention(source.store, there)
        if one.family is None and layouts[0] is not None:
            return layer_at(target.store, here, paths[0], layouts[0]), other
        if other.family is None and layouts[1] is not None:
            return one, layer_at(source.store, there, paths[1], layouts[1])
    if not below:
        one = _unwrapped(target, one) if _weighs(other) else one
        other = _unwrapped(source, other) if _weighs(one) else other
    if one.family != other.family and (one.family is None or other.family is None):
        # A rule for a whole module needs both sides; without it only what the module itself holds is its business.
        one = raw_layer(target.store, one.module, one.path) if one.whole else one
        other = raw_layer(source.store, other.module, other.path) if other.whole else other
    return one, other


def _bare(target: StoredModel, source: StoredModel, here: Any, there: Any, paths: Paths) -> tuple[Layer, Layer]:
    """Both modules with everything inside them, without any rule."""
    return raw_layer(target.store, here, paths[0], deep=True), raw_layer(source.store, there, paths[1], deep=True)


def _unwrapped(side: StoredModel, layer: Layer) -> Layer:
    """The one layer with weights inside a module that adds nothing of its own, or the layer itself."""
    while layer.family is None and not layer.others:
        inner = [
            (name, child) for name, child in side.store.children(layer.module).items() if held_below(side.store, child)
        ]
        if len(inner) != 1:
            break
        ((name, child),) = inner
        layer = layer_at(side.store, child, joined(layer.path, name))
    return layer


def _weighs(layer: Layer) -> bool:
    return bool(layer.slots or layer.others)


def _has_weights(side: StoredModel, module: Any) -> bool:
    return any(not held.is_buffer for held in held_below(side.store, module))


def _looks_mapped(target: StoredModel, source: StoredModel, here: Any, there: Any, paths: Paths, below: bool) -> bool:
    """A pair of composed modules, nothing inside of which is paired, was put together by the user's map."""
    if below or paths == ("", ""):
        return False
    return any(bool(side.store.children(module)) for side, module in ((target, here), (source, there))) and not (
        target.store.own(here) and source.store.own(there)
    )
