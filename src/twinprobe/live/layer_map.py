"""LayerMap: what a user knows about two models that no rule can find out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from twinprobe.errors import BadInput
from twinprobe.live.frameworks import adapter_of, framework_of


@dataclass(frozen=True, eq=False)
class Group:
    """Layers of one model that together do what those of the other do."""

    one: tuple[Any, ...]
    other: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class ApiCall:
    """A layer that the other model writes as a call of a function: which one, and which of its calls."""

    layer: Any
    function: str
    call: int | None


class LayerMap:
    """Which layers belong together, and which take no part in a comparison.

    ``map`` takes dicts of layers, either model first, as often as needed. A mapped layer is compared as a whole: what
    is inside is not.
    """

    def __init__(self) -> None:
        self._pairs: list[tuple[Any, Any]] = []
        self.groups: list[Group] = []
        self.apis: list[ApiCall] = []
        self._ignored: dict[int, Any] = {}
        self._ignored_inside: dict[int, Any] = {}

    @property
    def map(self) -> dict[Any, Any]:
        """The mapped pairs. Assigning adds to them."""
        return dict(self._pairs)

    @map.setter
    def map(self, pairs: Mapping[Any, Any]) -> None:
        if not isinstance(pairs, Mapping):
            raise BadInput(f"LayerMap.map is a {type(pairs).__name__}", hint="give a dict {layer: layer}")
        for one, other in pairs.items():
            _check(one, "LayerMap.map")
            _check(other, "LayerMap.map")
            for known, partner in self._pairs:
                if (known is one or partner is one) and (known is not other and partner is not other):
                    raise BadInput(f"{type(one).__name__} is mapped twice, to two different layers")
            self._pairs.append((one, other))

    @property
    def pairs(self) -> list[tuple[Any, Any]]:
        """The mapped pairs as they were given."""
        return list(self._pairs)

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing."""
        return not (self._pairs or self.groups or self.apis or self._ignored or self._ignored_inside)

    def group(self, ones: Any, others: Any) -> None:
        """Several layers, in the order in which they run, are several others: what the last ones give is compared."""
        group = Group(_several(ones, "LayerMap.group"), _several(others, "LayerMap.group"))
        if not group.one or not group.other:
            raise BadInput("LayerMap.group got an empty list", hint="give at least one layer of each model")
        self.groups.append(group)

    def map_api(self, layer: Any, function: str, call: int | None = None) -> None:
        """A layer of one model is a function in the other, by its name: its ``call``-th call, or the next free one."""
        _check(layer, "LayerMap.map_api")
        if not isinstance(function, str) or not function:
            raise BadInput(f"LayerMap.map_api got {function!r}", hint='give the name of a function, such as "relu"')
        self.apis.append(ApiCall(layer, function.rpartition(".")[2], call))

    def ignore(self, layers: Any) -> None:
        """Leave out a layer (or each of a list), but not what is inside it."""
        for layer in _several(layers, "LayerMap.ignore"):
            self._ignored[id(layer)] = layer

    def ignore_recursively(self, layers: Any) -> None:
        """Leave out a layer (or each of a list) with everything inside it."""
        for layer in _several(layers, "LayerMap.ignore_recursively"):
            self._ignored[id(layer)] = layer
            self._ignored_inside[id(layer)] = layer

    ignore_recursivly = ignore_recursively  # as the old manual spells it

    def ignore_class(self, root: Any, classes: Any = None) -> None:
        """``ignore`` every layer of these classes below ``root``, itself included; the Sequential ones by default."""
        _check(root, "LayerMap.ignore_class")
        wanted = classes if classes is not None else _sequential(root)
        if not isinstance(wanted, tuple):
            wanted = (wanted,)
        if not all(isinstance(one, type) for one in wanted):
            raise BadInput(f"LayerMap.ignore_class got {classes!r}", hint="give a class or a tuple of classes")
        for _, layer in adapter_of(root).modules(root):
            if isinstance(layer, wanted):
                self._ignored[id(layer)] = layer

    def auto(self, one: Any, other: Any) -> bool:
        """Map the layers whose weights only a special rule can copy, in the order of definition.

        Says why and changes nothing where the two models do not have the same number of them.
        """
        from twinprobe.live.console import say
        from twinprobe.live.special_layers import special_pairs

        try:
            self._pairs += special_pairs(one, other, self)
        except BadInput as error:
            say(str(error))
            return False
        return True

    def is_ignored(self, layer: Any) -> bool:
        """Whether a layer itself is left out."""
        return id(layer) in self._ignored

    def is_ignored_inside(self, layer: Any) -> bool:
        """Whether everything inside a layer is left out."""
        return id(layer) in self._ignored_inside

    def partner(self, layer: Any) -> Any:
        """The layer that this one is mapped to; None where it is not mapped."""
        for one, other in self._pairs:
            if one is layer:
                return other
            if other is layer:
                return one
        return None

    def layers(self) -> list[Any]:
        """Every layer that is named anywhere, for checking that it belongs to one of the models."""
        found = [layer for pair in self._pairs for layer in pair]
        found += [layer for group in self.groups for layer in (*group.one, *group.other)]
        found += [api.layer for api in self.apis]
        return found + list(self._ignored.values())


def as_layer_map(value: Any) -> LayerMap:
    """A LayerMap from what a user may give: a LayerMap, a plain dict, or nothing."""
    if isinstance(value, LayerMap):
        return value
    found = LayerMap()
    if value is None:
        return found
    if not isinstance(value, Mapping):
        raise BadInput(f"layer_map is a {type(value).__name__}", hint="give a LayerMap or a dict {layer: layer}")
    found.map = value
    return found


def _check(layer: Any, where: str) -> None:
    if framework_of(layer) is None:
        raise BadInput(f"{where} got {type(layer).__name__}, which is no layer of a model")


def _several(layers: Any, where: str) -> tuple[Any, ...]:
    found = tuple(layers) if isinstance(layers, list | tuple) else (layers,)
    for layer in found:
        _check(layer, where)
    return found


def _sequential(root: Any) -> type:
    framework = framework_of(root)
    package = import_module({"torch": "torch.nn", "paddle": "paddle.nn"}.get(framework or "", "mindspore.nn"))
    found: type = package.SequentialCell if framework == "mindspore" else package.Sequential
    return found
