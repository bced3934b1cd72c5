"""Which layer of one model belongs to which of the other, before anything has run: for copying weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twinprobe._align.auto.aligner import align_sides
from twinprobe._align.calls import RunCalls
from twinprobe._live.frameworks.adapter import Adapter, adapter_of
from twinprobe._live.live_run import LiveRun
from twinprobe._live.pairing.layer_map import LayerMap, as_layer_map, kind_of, outside
from twinprobe._record.entries import Row
from twinprobe._runs.names import FORWARD, parse_op
from twinprobe._runs.run import Run
from twinprobe._runs.table import INPUT, OUTPUT, PARAMETER, Leaf, table_of
from twinprobe.errors import BadInput

WHOLE = ("attention", "LSTM", "GRU", "RNN")  # kinds of layers that are one thing, whatever is inside


@dataclass
class LayerTree:
    """The layers of a model that are compared, each with its weights."""

    adapter: Adapter
    model: Any
    layers: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Any, layer_map: LayerMap) -> LayerTree:
        tree = cls(adapter_of(model), model)
        for path, layer in outside(model, lambda layer: layer_map.settles(layer) or kind_of(layer) in WHOLE):
            if layer_map.settles(layer) or layer_map.is_ignored(layer):
                continue
            tree.layers[path] = layer
            tree.weights[path] = dict(tree.adapter.parameters(layer))
            if kind_of(layer) in WHOLE:
                tree.weights[path] = {
                    f"{inner}.{name}": tensor
                    for inner, below in tree.adapter.modules(layer)
                    for name, tensor in tree.adapter.parameters(below).items()
                }
        return tree

    @property
    def holding(self) -> list[str]:
        """The paths of the layers that hold weights."""
        return [path for path, weights in self.weights.items() if weights]

    def sizes(self, path: str) -> list[list[int]]:
        """What the weights of a layer look like, transposed or not; MindSpore's Conv1d has an axis of one more."""
        return sorted(sorted(int(size) for size in tensor.shape if size != 1) for tensor in self.weights[path].values())


def structure(tree: LayerTree) -> Run:
    """The layers of a model as if each had been called once, in the order of definition."""
    name = {
        path: ".".join(filter(None, (tree.adapter.container, path, type(layer).__name__))) + ".forward.0"
        for path, layer in tree.layers.items()
    }
    parents = {name[path]: name.get(_around(path, name)) if path else None for path in name}
    order = _inside_first(list(name))
    rows = []
    for op, path in enumerate(order):
        for parameter, tensor in tree.weights[path].items():
            shape = [int(size) for size in tensor.shape]
            if len(shape) == 2 and tree.adapter.is_transposed(tree.layers[path], parameter):
                shape.reverse()
            rows.append((op, PARAMETER, f"{name[path]}.parameters.{parameter}", Leaf("Tensor", "float32", shape)))
    title, ops = Path(type(tree.model).__name__), [name[path] for path in order]
    run = Run(title, "statistics", "L0", tree.adapter.name, ops, table_of(rows), [])
    run.__dict__["parents"] = parents
    return run


def _around(path: str, paths: Collection[str]) -> str:
    """The nearest of these modules that a module lies in; the model where there is none."""
    while path:
        path = path.rpartition(".")[0]
        if path in paths:
            break
    return path


def _inside_first(paths: list[str]) -> list[str]:
    """Each path after those inside it, as calls end; given are paths in the order of definition."""
    order: list[str] = []
    around: list[str] = []
    for path in paths:
        while around and not _within(path, around[-1]):
            order.append(around.pop())
        around.append(path)
    return order + around[::-1]


Pair = tuple[str, str]


def pair_by_flow(
    target: LayerTree, source: LayerTree, target_run: LiveRun, source_run: LiveRun, pairs: list[Pair]
) -> None:
    """Add every layer that no rule has paired and whose input comes from a paired layer, until none is left."""
    feeds = _feeding(target, target_run), _feeding(source, source_run)
    while True:
        partners = {pair[0]: pair[1] for pair in reversed(pairs)}
        taken = set(partners), {pair[1] for pair in pairs}
        fresh = []
        for path in target.holding:
            if path in taken[0]:
                continue
            sources = {partners[feeder] for feeder in feeds[0].get(path, ()) if feeder in partners}
            fitting = [
                to
                for to in source.holding
                if to not in taken[1] and sources & feeds[1].get(to, set()) and source.sizes(to) == target.sizes(path)
            ]
            if len(fitting) == 1:
                fresh.append((path, fitting[0]))
        ends = [[pair[side] for pair in fresh] for side in (0, 1)]
        fresh = [pair for pair in fresh if ends[0].count(pair[0]) == ends[1].count(pair[1]) == 1]
        if not fresh:
            return
        pairs += fresh


def _feeding(tree: LayerTree, run: LiveRun) -> dict[str, set[str]]:
    """For each layer that holds weights: the layers whose result it takes as it is."""
    made: dict[Row, str] = {}
    taken: dict[str, set[Row]] = defaultdict(set)
    names = [parse_op(name) for name in run.ops]
    notes = run.live.value if run.live is not None else []
    for row, (op, role) in enumerate(zip(run.columns["op"], run.columns["role"], strict=True)):
        name, held = names[op], getattr(notes[row], "row", None)
        if held is None or not name.is_module or name.direction != FORWARD or not tree.weights.get(name.body):
            continue
        if role == OUTPUT:
            made.setdefault(held, name.body)
        elif role == INPUT:
            taken[name.body].add(held)
    return {path: {made[row] for row in rows if row in made} for path, rows in taken.items()}


_MOST_STRANGERS = 0.2  # of the layers that hold weights may have another path where the rest have the same


def pair_modules(target: object, source: object, layer_map: Any = None) -> list[Pair]:
    """Pairs of (target path, source path) of the layers that belong together; "" is the model itself."""
    chosen = as_layer_map(layer_map)
    sides = LayerTree.of(target, chosen), LayerTree.of(source, chosen)
    mapped = mapped_paths(target, source, chosen)
    return [*mapped, *(_by_name(*sides) or pair_trees(*sides, structure(sides[0]), structure(sides[1])))]


def pair_by_names(target: object, source: object, layer_map: LayerMap) -> list[Pair]:
    """All layers of the same path, if those that hold weights have the same paths in both models; else none."""
    return _by_name(LayerTree.of(target, layer_map), LayerTree.of(source, layer_map))


def mapped_paths(target: object, source: object, layer_map: LayerMap) -> list[Pair]:
    """The pairs that the user has mapped, as paths."""
    if not layer_map.pairs:
        return []
    places = [{id(module): path for path, module in adapter_of(model).modules(model)} for model in (target, source)]
    pairs = []
    for layer, partner in layer_map.pairs:
        if id(layer) in places[0] and id(partner) in places[1]:
            pairs.append((places[0][id(layer)], places[1][id(partner)]))
        elif id(partner) in places[0] and id(layer) in places[1]:
            pairs.append((places[0][id(partner)], places[1][id(layer)]))
        else:
            raise BadInput(
                f"LayerMap.map pairs a {type(layer).__name__} and a {type(partner).__name__}: not one of each model",
                hint="map layers of the models that are being compared",
            )
    return pairs


def _by_name(target: LayerTree, source: LayerTree) -> list[Pair]:
    if set(target.holding) != set(source.holding):
        return []
    return [(path, path) for path in target.layers if path in source.layers]


def pair_trees(target: LayerTree, source: LayerTree, target_run: Run, source_run: Run) -> list[Pair]:
    """Pair layers by how the two models ran, or by their structure in the form of a run."""
    holding = set(target.holding), set(source.holding)
    known = _specials(target, source)
    if len(holding[0] ^ holding[1]) <= _MOST_STRANGERS * len(holding[0] | holding[1]):
        taken = {path for pair in known for path in pair}
        known += [
            (path, path)
            for path in target.holding
            if path in holding[1] and path not in taken and target.sizes(path) == source.sizes(path)
        ]
    if isinstance(target_run, LiveRun) and isinstance(source_run, LiveRun):
        taken = {path for pair in known for path in pair}
        known += [pair for pair in _by_indices(target, source, target_run, source_run) if not taken.intersection(pair)]
    names = [_first_calls(run) for run in (target_run, source_run)]
    given = [
        (names[0][path], names[1][partner])
        for path, partner in [("", ""), *known]
        if path in names[0] and partner in names[1]
    ]
    aligned = []
    for relation in align_sides(RunCalls(target_run), RunCalls(source_run), given).relations:
        ends = parse_op(relation.target[0]), parse_op(relation.golden[0])
        if relation.one_to_one and all(end.is_module for end in ends):
            aligned.append((ends[0].body, ends[1].body))
    aligned = [pair for pair in dict.fromkeys(aligned) if pair[0] in target.weights and pair[1] in source.weights]
    pairs = list(known) + [pair for pair in aligned if bool(target.weights[pair[0]]) == bool(source.weights[pair[1]])]
    _unfold(target, source, [pair for pair in aligned if pair not in pairs], pairs)
    if isinstance(target_run, LiveRun) and isinstance(source_run, LiveRun):
        pair_by_flow(target, source, target_run, source_run, pairs)
    _by_looks(target, source, pairs)
    if target.weights.get("") and source.weights.get(""):
        pairs.append(("", ""))
    return list(dict.fromkeys(pairs))


def _by_indices(target: LayerTree, source: LayerTree, target_run: LiveRun, source_run: LiveRun) -> list[Pair]:
    """Tables that look up the same indices, where no other of that size does: the order of calls tells less."""
    readers: list[dict[object, list[str]]] = [defaultdict(list), defaultdict(list)]
    for tree, run, found in zip((target, source), (target_run, source_run), readers, strict=True):
        names = [parse_op(name) for name in run.ops]
        for row, (op, role) in enumerate(zip(run.columns["op"], run.columns["role"], strict=True)):
            name = names[op]
            if role == INPUT and name.is_module and name.direction == FORWARD and tree.weights.get(name.body):
                tensor = run.tensor(row) if "int" in str(run.columns["dtype"][row]).lower() else None
                if tensor is not None and name.call == 0:
                    found[tensor.shape, tensor.data.astype("int64").tobytes(), str(tree.sizes(name.body))].append(
                        name.body
                    )
    single = [key for key, paths in readers[0].items() if len(paths) == len(readers[1].get(key, ())) == 1]
    return [(readers[0][key][0], readers[1][key][0]) for key in single]


def _first_calls(run: Run) -> dict[str, str]:
    calls: dict[str, str] = {}
    for name in run.ops:
        op = parse_op(name)
        if op.is_module and op.direction == FORWARD:
            calls.setdefault(op.body, name)
    return calls


def _unfold(target: LayerTree, source: LayerTree, wrapped: list[Pair], pairs: list[Pair]) -> None:
    """A layer against a module that wraps it: the layers inside, where they look alike and nothing else claims them."""
    for ends in wrapped:
        inner = []
        for side, (tree, path) in enumerate(zip((target, source), ends, strict=True)):
            taken = {pair[side] for pair in pairs}
            inner.append([below for below in tree.holding if _within(below, path) and below not in taken])
        if [target.sizes(path) for path in inner[0]] == [source.sizes(path) for path in inner[1]]:
            pairs += zip(*inner, strict=True)


def _by_looks(target: LayerTree, source: LayerTree, pairs: list[Pair]) -> None:
    """Layers that no rule has paired, defined in another order say: by the sizes of what they hold, if these tell."""
    around = dict(pairs)
    for inside_pairs in (True, False):
        looks: list[dict[object, list[str]]] = []
        for side, tree in enumerate((target, source)):
            taken = {pair[side] for pair in pairs}
            by_look: dict[object, list[str]] = {}
            for path in tree.holding:
                if path not in taken:
                    outer = path.rpartition(".")[0]
                    place = (around.get(outer, "?") if side == 0 else outer) if inside_pairs else ""
                    by_look.setdefault((place, str(tree.sizes(path))), []).append(path)
            looks.append(by_look)
        for look, targets in looks[0].items():
            sources = looks[1].get(look, [])
            if len(targets) == len(sources) == 1:
                pairs.append((targets[0], sources[0]))


def _within(path: str, outer: str) -> bool:
    return path == outer or not outer or path.startswith(f"{outer}.")


def _specials(target: LayerTree, source: LayerTree) -> list[Pair]:
    """Attention and recurrent layers, whose weights do not look alike, by kind and order."""
    pairs: list[Pair] = []
    for kind in WHOLE:
        paths = [[path for path, layer in tree.layers.items() if kind_of(layer) == kind] for tree in (target, source)]
        if len(paths[0]) == len(paths[1]):
            pairs += zip(*paths, strict=True)
    return pairs
