"""A recorded model with the user's LayerMap laid over it: which calls take part, and what encloses them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from twinprobe.live.frameworks.adapter import Adapter
from twinprobe.live.layer_map import LayerMap
from twinprobe.live.live_rows import LiveRows
from twinprobe.live.memory import MemoryEngine
from twinprobe.runs.names import BACKWARD, FORWARD, parse_op
from twinprobe.runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER

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
        found = cls()
        for path, layer in adapter.modules(model):
            found.of.setdefault(id(layer), path)
            found.layer[path] = layer
        return found


def apply_map(engine: MemoryEngine, paths: Paths, layer_map: LayerMap) -> None:
    """Take out of a recording what the LayerMap leaves out; calls inside move up to what still encloses them."""
    if layer_map.is_empty:
        return
    scene = _Scene(engine.parents, paths, layer_map)
    kept = LiveRows()
    for call, name in enumerate(engine.rows.names):
        if not scene.drops(name):
            kept.take(name, engine.rows, (call, _ALL))
    for group in layer_map.groups:
        for side in (group.one, group.other):
            if all(id(layer) in paths.of for layer in side):
                kept = _merged(kept, [paths.of[id(layer)] for layer in side])
    parents = engine.parents
    moved = {name: _kept_parent(name, parents, scene) for name in parents if not scene.drops(name)}
    engine.rows = kept
    parents.clear()
    parents.update(moved)


class _Scene:
    def __init__(self, parents: dict[str, str | None], paths: Paths, layer_map: LayerMap) -> None:
        self._parents = parents
        self._paths = paths
        self._map = layer_map
        grouped = {id(layer) for group in layer_map.groups for layer in (*group.one, *group.other)}
        whole = {id(layer) for pair in layer_map.pairs for layer in pair} | grouped
        whole |= {id(api.layer) for api in layer_map.apis}
        self._closed = {path for path, layer in paths.layer.items() if id(layer) in whole}
        self._gone = {path for path, layer in paths.layer.items() if layer_map.is_ignored(layer)}
        self._gone_inside = {path for path, layer in paths.layer.items() if layer_map.is_ignored_inside(layer)}
        self._known: dict[str, bool] = {}

    def drops(self, name: str) -> bool:
        """Whether this call takes no part."""
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = self._is_hidden(name)
        return found

    def _is_hidden(self, name: str) -> bool:
        op = parse_op(name)
        if op.is_module and op.body in self._gone:
            return True
        inner = self._closed | self._gone_inside
        if not inner:
            return False
        if op.is_module:
            return any(op.body.startswith(f"{path}.") or (not path and op.body) for path in inner)
        around = self._parents.get(name)
        if around is None:
            return False
        path = parse_op(around).body
        return any(path == one or path.startswith(f"{one}.") or not one for one in inner)


def _kept_parent(name: str, parents: dict[str, str | None], scene: _Scene) -> str | None:
    parent = parents.get(name)
    while parent is not None and scene.drops(parent):
        parent = parents.get(parent)
    return parent


def _merged(rows: LiveRows, members: list[str]) -> LiveRows:
    """A group as one call: what the first took, what the last gave; the same backward."""
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
