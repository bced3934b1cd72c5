"""LayerMap: what a user knows about two models that no rule can find out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

from twinprobe._live.frameworks.adapter import FRAMEWORKS, Adapter, adapter_of, framework_of
from twinprobe._record.memory.engine import LiveRows, MemoryEngine
from twinprobe._report.console import say
from twinprobe._runs.names import BACKWARD, FORWARD, parse_op
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER
from twinprobe.errors import BadInput


@dataclass(frozen=True, eq=False)
class Group:
    """Layers of one model that together do what those of the other do."""

    first: tuple[Any, ...]
    second: tuple[Any, ...]

    def last_in(self, paths: Paths) -> str:
        """The path of the last layer of that side which is in a model."""
        return next((paths.of[id(side[-1])] for side in (self.first, self.second) if id(side[-1]) in paths.of), "")


@dataclass(frozen=True, eq=False)
class ApiCall:
    """A layer that the other model writes as a call of a function: which one, and which of its calls."""

    layer: Any
    function: str
    call: int | None


class LayerMap:
    """Which layers correspond to each other, and which to leave out of a comparison.

    ``map`` takes dicts of layers, either model first, as often as needed. A mapped layer is compared as a whole: what
    is inside is not.
    """

    def __init__(self) -> None:
        self.pairs: list[tuple[Any, Any]] = []
        self.groups: list[Group] = []
        self.apis: list[ApiCall] = []
        self._ignored: dict[int, Any] = {}
        self._ignored_inside: dict[int, Any] = {}

    @property
    def map(self) -> dict[Any, Any]:
        """The mapped pairs. Assigning adds to them."""
        return dict(self.pairs)

    @map.setter
    def map(self, pairs: Mapping[Any, Any]) -> None:
        if not isinstance(pairs, Mapping):
            raise BadInput(f"LayerMap.map is a {type(pairs).__name__}", hint="give a dict {layer: layer}")
        for layer, partner in pairs.items():
            _check(layer, "LayerMap.map")
            _check(partner, "LayerMap.map")
            if self.partner(layer) not in (None, partner):
                raise BadInput(f"{type(layer).__name__} is mapped twice, to two different layers")
            self.pairs.append((layer, partner))

    @property
    def is_empty(self) -> bool:
        """Whether nothing is mapped, grouped or ignored."""
        return not (self.pairs or self.groups or self.apis or self._ignored or self._ignored_inside)

    def group(self, ones: Any, others: Any) -> None:
        """Map several layers, in execution order, to several others: the outputs of the last ones are compared."""
        group = Group(_several(ones, "LayerMap.group"), _several(others, "LayerMap.group"))
        if not group.first or not group.second:
            raise BadInput("LayerMap.group got an empty list", hint="give at least one layer of each model")
        self.groups.append(group)

    def map_api(self, layer: Any, function: str, call: int | None = None) -> None:
        """Map a layer of one model to a function of the other: its ``call``-th call, or the next free one."""
        _check(layer, "LayerMap.map_api")
        if not isinstance(function, str) or not function:
            raise BadInput(f"LayerMap.map_api got {function!r}", hint='give the name of a function, such as "relu"')
        self.apis.append(ApiCall(layer, function.rpartition(".")[2], call))

    def ignore(self, layers: Any) -> None:
        """Leave out a layer (or each of a list), but compare what is inside it."""
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
        if classes is None:
            package = import_module(FRAMEWORKS[framework_of(root) or ""][0])
            classes = getattr(package, "SequentialCell" if package.__name__ == "mindspore.nn" else "Sequential")
        wanted = classes if isinstance(classes, tuple) else (classes,)
        if not all(isinstance(kind, type) for kind in wanted):
            raise BadInput(f"LayerMap.ignore_class got {classes!r}", hint="give a class or a tuple of classes")
        for _, layer in adapter_of(root).modules(root):
            if isinstance(layer, wanted):
                self._ignored[id(layer)] = layer

    def auto(self, one: Any, other: Any) -> bool:
        """Map the layers whose weights only a special rule can copy, in the order of definition.

        If the two models do not have the same number of them, it prints why and changes nothing.
        """
        try:
            self.pairs += special_pairs(one, other, self)
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
        for pair in self.pairs:
            for mapped, partner in (pair, pair[::-1]):
                if mapped is layer:
                    return partner
        return None

    def settles(self, layer: Any) -> bool:
        """Whether a layer is mapped, or left out, with everything inside it."""
        return self.partner(layer) is not None or self.is_ignored_inside(layer)

    def refuse_strangers(self, known: set[int]) -> None:
        """Raise where it names a layer that is not among these identities."""
        named = [layer for pair in self.pairs for layer in pair]
        named += [layer for group in self.groups for layer in (*group.first, *group.second)]
        named += [api.layer for api in self.apis]
        for layer in (*named, *self._ignored.values()):
            if id(layer) not in known:
                raise BadInput(
                    f"the LayerMap names a {type(layer).__name__} that is in neither model",
                    hint="make the map from the models that are being compared",
                )


def as_layer_map(value: Any) -> LayerMap:
    """A LayerMap from what a user may give: a LayerMap, a plain dict, or nothing."""
    if isinstance(value, LayerMap):
        return value
    if not isinstance(value, Mapping | None):
        raise BadInput(f"layer_map is a {type(value).__name__}", hint="give a LayerMap or a dict {layer: layer}")
    layer_map = LayerMap()
    layer_map.map = value or {}
    return layer_map


def _check(layer: Any, where: str) -> None:
    if framework_of(layer) is None:
        raise BadInput(f"{where} got {type(layer).__name__}, which is not a layer of a model")


def _several(layers: Any, where: str) -> tuple[Any, ...]:
    several = tuple(layers) if isinstance(layers, list | tuple) else (layers,)
    for layer in several:
        _check(layer, where)
    return several


# Layers that two frameworks build so differently that only a special rule copies their weights.

# By class names along the class hierarchy, so that subclasses count.
_SPECIAL = {
    "MultiheadAttention": "attention", "MultiHeadAttention": "attention",
    "LSTM": "LSTM", "GRU": "GRU", "RNN": "RNN", "SimpleRNN": "RNN",
    "_BatchNorm": "batch norm", "_BatchNormBase": "batch norm",
}  # fmt: skip


_FRAMEWORKS = ("torch", "paddle", "mindspore")


def kind_of(layer: Any) -> str:
    """What kind of special layer this is; empty for an ordinary one. A class of the user's may have such a name too."""
    for parent in type(layer).__mro__:
        kind = _SPECIAL.get(parent.__name__)
        if kind and parent.__module__.partition(".")[0] in _FRAMEWORKS:
            return kind
    return ""


def special_pairs(first: Any, second: Any, layer_map: LayerMap) -> list[tuple[Any, Any]]:
    """The special layers of two models, in the order of definition, paired by their place."""
    layers_of = [special_layers(model, layer_map) for model in (first, second)]
    kinds = [[kind_of(layer) for layer in layers] for layers in layers_of]
    if kinds[0] != kinds[1]:
        raise BadInput(
            f"LayerMap.auto found {_listed(kinds[0])} in {type(first).__name__} and {_listed(kinds[1])} in "
            f"{type(second).__name__}",
            hint="map them by hand with LayerMap.map",
        )
    return list(zip(*layers_of, strict=True))


def special_layers(model: Any, layer_map: LayerMap) -> list[Any]:
    """The special layers of one model that a map does not name yet, in the order of definition."""
    layers = outside(model, lambda layer: layer_map.settles(layer) or bool(kind_of(layer)))
    return [layer for _, layer in layers if kind_of(layer) and not layer_map.settles(layer)]


def outside(model: Any, closes: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
    """The layers of a model with their paths, but none that is inside a layer that ``closes``."""
    closed: list[str] = []
    for path, layer in adapter_of(model).modules(model):
        if any(not outer or path.startswith(f"{outer}.") for outer in closed):
            continue
        if closes(layer):
            closed.append(path)
        yield path, layer


def _listed(kinds: list[str]) -> str:
    counts = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
    return ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "no such layer"


_TAKEN, _GIVEN = frozenset({INPUT}), frozenset({OUTPUT})
_ALL = _TAKEN | _GIVEN | {PARAMETER, GRADIENT}


@dataclass
class Paths:
    """The paths of one model's layers."""

    of: dict[int, str] = field(default_factory=dict)
    layer: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def find(cls, adapter: Adapter, model: Any) -> Paths:
        """All layers of a model; one that is used twice has its first path."""
        paths = cls()
        for path, layer in adapter.modules(model):
            paths.of.setdefault(id(layer), path)
            paths.layer[path] = layer
        return paths


def apply_map(engine: MemoryEngine, paths: Paths, layer_map: LayerMap) -> None:
    """Take out of a recording what the LayerMap leaves out; calls inside move up to what still encloses them."""
    if layer_map.is_empty:
        return
    is_hidden = _hidden_calls(engine.parents, paths, layer_map)
    kept = LiveRows()
    for call, name in enumerate(engine.rows.names):
        if not is_hidden(name):
            kept.take(name, engine.rows, (call, _ALL))
    for group in layer_map.groups:
        for side in (group.first, group.second):
            if all(id(layer) in paths.of for layer in side):
                kept = _merged(kept, [paths.of[id(layer)] for layer in side])
    parents = engine.parents
    moved: dict[str, str | None] = {}
    for name in parents:
        if not is_hidden(name):
            parent = parents[name]
            while parent is not None and is_hidden(parent):
                parent = parents.get(parent)
            moved[name] = parent
    engine.rows = kept
    parents.clear()
    parents.update(moved)


def _hidden_calls(parents: dict[str, str | None], paths: Paths, layer_map: LayerMap) -> Callable[[str], bool]:
    """A function that says whether a call is left out."""
    whole = {id(layer) for pair in layer_map.pairs for layer in pair} | {id(api.layer) for api in layer_map.apis}
    whole |= {id(layer) for group in layer_map.groups for layer in (*group.first, *group.second)}
    gone = {path for path, layer in paths.layer.items() if layer_map.is_ignored(layer)}
    closed = [
        path for path, layer in paths.layer.items() if id(layer) in whole or layer_map.is_ignored_inside(layer)
    ]  # what is inside of these

    @cache
    def is_hidden(name: str) -> bool:
        op = parse_op(name)
        if op.is_module:
            inside = any(op.body.startswith(f"{path}.") or (not path and op.body) for path in closed)
            return op.body in gone or inside
        around = parents.get(name)
        if around is None:
            return False
        path = parse_op(around).body
        return any(path == outer or path.startswith(f"{outer}.") or not outer for outer in closed)

    return is_hidden


def _merged(rows: LiveRows, members: list[str]) -> LiveRows:
    """A group as one call: the inputs of the first layer, the outputs of the last; the same backward."""
    first, last = members[0], members[-1]
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    kept = LiveRows()
    for call, name in enumerate(rows.names):
        op = parse_op(name)
        if not op.is_module or op.body not in members:
            kept.take(name, rows, (call, _ALL))
        elif op.direction == FORWARD:
            if op.body == first:
                starts[op.call] = call
            if op.body == last:
                kept.take(name, rows, (starts.get(op.call, call), _TAKEN), (call, _GIVEN))
        elif op.direction == BACKWARD:
            if op.body == last:
                ends[op.call] = call
            if op.body == first and op.call in ends:
                end = ends[op.call]
                kept.take(rows.names[end], rows, (end, _TAKEN), (call, _GIVEN))
    return kept
