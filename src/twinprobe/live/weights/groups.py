"""Weights of layers that a LayerMap groups: copied where they pair up in their order, shape by shape."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from twinprobe.live.weights.layers import Slot, slots_below
from twinprobe.live.weights.matching import Match
from twinprobe.live.weights.pairs import Side
from twinprobe.live.weights.stores import Store, framework_of

if TYPE_CHECKING:
    from twinprobe.live.layer_map import Group


def match_group(target: Side, source: Side, group: Group) -> Match | None:
    """The copies that a group asks for, or the notice why there are none; None for a group of other models."""
    places = [_places(side) for side in (target, source)]
    members = [group.one, group.other]
    if not all(id(layer) in places[0] for layer in members[0]):
        members.reverse()
    if not all(id(layer) in known for side, known in zip(members, places, strict=True) for layer in side):
        return None
    wanted, offered = (
        _weights(side.store, known, layers)
        for side, known, layers in zip((target, source), places, members, strict=True)
    )
    if not wanted and not offered:
        return Match()
    across = framework_of(target.model) != framework_of(source.model)
    if [slot.shape for slot in wanted] == [slot.shape for slot in offered] and not (
        across and any(_may_be_turned(*pair) for pair in zip(wanted, offered, strict=True))
    ):
        return Match(copies=list(zip(wanted, offered, strict=True)))
    thirds = _thirds(wanted, offered) or [(part, third) for third, part in _thirds(offered, wanted)]
    if thirds and not (across and any(_may_be_turned(*pair) for pair in thirds)):
        return Match(copies=thirds)
    return Match(notices=[_kept(members, wanted, offered)])


def _thirds(whole: list[Slot], parts: list[Slot]) -> list[tuple[Slot, Slot]]:
    """One layer that holds three others, q, k and v say, one after the other: each third with its part."""
    found = []
    for slot in whole:
        names = [part for part in parts if part.name == slot.name]
        found += [(replace(slot, view=replace(slot.view, third=at)), part) for at, part in enumerate(names)]
    fits = all(third.shape == part.shape and third.held.shape != part.held.shape for third, part in found)
    return found if len(found) == len(parts) == 3 * len(whole) and fits else []


def _places(side: Side) -> dict[int, tuple[str, Any]]:
    found: dict[int, tuple[str, Any]] = {}

    def visit(module: Any, path: str) -> None:
        found.setdefault(id(module), (path, module))
        for name, child in side.store.children(module).items():
            visit(child, f"{path}.{name}" if path else name)

    visit(side.model, "")
    return found


def _weights(store: Store, places: dict[int, tuple[str, Any]], layers: tuple[Any, ...]) -> list[Slot]:
    """What the layers hold, in the order of the group and of definition."""
    return [slot for layer in layers for slot in slots_below(store, layer, places[id(layer)][0])]


def _may_be_turned(wanted: Slot, offered: Slot) -> bool:
    """A square matrix of a class of the user's own may be stored either way."""
    known = wanted.name == "weight" and offered.name == "weight"
    return not known and len(wanted.shape) == 2 and wanted.shape[0] == wanted.shape[1]


def _kept(members: list[tuple[Any, ...]], wanted: list[Slot], offered: list[Slot]) -> str:
    ones, others = (" + ".join(type(layer).__name__ for layer in side) for side in members)
    shapes = [", ".join(str(list(slot.shape)) for slot in slots) or "none" for slots in (wanted, offered)]
    return (
        f"the group {ones} and {others} keeps the weights it has: they do not pair up in order ({shapes[0]} against"
        f" {shapes[1]}); set them yourself, or put each side into a module of its own, map the two and register a rule"
        " for them with add_special_init"
    )
