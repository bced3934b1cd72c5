"""Which weight of the source goes to which weight of the target, for one aligned pair of layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from twinprobe.live.weights.layers import Layer, Slot
from twinprobe.live.weights.layouts import AS_IS, TRANSPOSED
from twinprobe.live.weights.problems import Problem

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
        _by_family(target, source, match)
        _by_name(target, source, dict(target.others), dict(source.others), match)
    elif target.family is None or source.family is None:
        _half_known(target, source, match, one_framework=one_framework)
    else:
        why = f"a {target.family} and a {source.family} keep different things"
        wanted, offered = next(iter(target.slots.values()), None), next(iter(source.slots.values()), None)
        if wanted is not None or offered is not None:
            match.problems.append(Problem(target, source, wanted, offered, why))
    return match


def _by_family(target: Layer, source: Layer, match: Match) -> None:
    for name in target.slots | source.slots:
        wanted, offered = target.slots.get(name), source.slots.get(name)
        if wanted is not None and offered is not None:
            _if_shapes_agree(target, source, wanted, offered, match)
        elif name not in COUNTERS:
            _one_sided(target, source, wanted, offered, match)


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
    here, there = _shapes(wanted), _shapes(offered)
    for key, slot in list(wanted.items()):
        if slot.held.is_buffer or here[slot.shape] != 1 or there[slot.shape] != 1:
            continue
        partner = next(name for name, one in offered.items() if one.shape == slot.shape and not one.held.is_buffer)
        match.copies.append((wanted.pop(key), offered.pop(partner)))


def _shapes(slots: dict[str, Slot]) -> Counter[tuple[int, ...]]:
    return Counter(slot.shape for slot in slots.values() if not slot.held.is_buffer)


def _same_shape(slot: Slot, others: dict[str, Slot]) -> Slot | None:
    return next((one for one in others.values() if one.shape == slot.shape and not one.held.is_buffer), None)


def _why_alone(slot: Slot, others: dict[str, Slot], side: str) -> str:
    if _same_shape(slot, others) is None:
        return f"the {side}'s layer has no partner for it by name or shape"
    return "several weights have this shape and the names do not tell which is which"
