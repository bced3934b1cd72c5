"""What is to be done for each aligned pair of modules: which of them a rule speaks for, and with which layout."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from twinprobe.live.weights.attention import own_attention
from twinprobe.live.weights.layers import Held, Layer, held_below, joined, layer_at, raw_layer
from twinprobe.live.weights.special import Init, special_init
from twinprobe.live.weights.stores import Store, submodule

Paths = tuple[str, str]


@dataclass(frozen=True)
class Side:
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


def works_of(target: Side, source: Side, pairs: Iterable[Paths], mapped: Collection[Paths] | None) -> list[Work]:
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


def _work(target: Side, source: Side, paths: Paths, mapped: Collection[Paths] | None, *, below: bool) -> Work:
    here, there = (submodule(side.store, side.model, path) for side, path in zip((target, source), paths, strict=True))
    function = special_init(here, there)
    if function is not None:
        bare = raw_layer(target.store, here, paths[0], deep=True), raw_layer(source.store, there, paths[1], deep=True)
        return Work(paths, bare[0], bare[1], special=function)
    layers = _layers(target, source, here, there, paths, below=below)
    by_the_user = paths in mapped if mapped is not None else _looks_mapped(target, source, here, there, paths, below)
    known = layers[0].family is not None and layers[0].family == layers[1].family
    if by_the_user and not known:
        if type(here) is type(there):
            layers = (
                raw_layer(target.store, here, paths[0], deep=True),
                raw_layer(source.store, there, paths[1], deep=True),
            )
            return Work(paths, *layers)
        weighs = _has_weights(target, here) or _has_weights(source, there)
        return Work(paths, layers[0], layers[1], without_rule=weighs)
    return Work(paths, *layers)


def _layers(target: Side, source: Side, here: Any, there: Any, paths: Paths, *, below: bool) -> tuple[Layer, Layer]:
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


def _unwrapped(side: Side, layer: Layer) -> Layer:
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


def _has_weights(side: Side, module: Any) -> bool:
    return any(not held.is_buffer for held in held_below(side.store, module))


def _looks_mapped(target: Side, source: Side, here: Any, there: Any, paths: Paths, below: bool) -> bool:
    """A pair of composed modules, nothing inside of which is paired, was put together by the user's map."""
    if below or paths == ("", ""):
        return False
    return any(bool(side.store.children(module)) for side, module in ((target, here), (source, there))) and not (
        target.store.own(here) and source.store.own(there)
    )
