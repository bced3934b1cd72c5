"""The whole run in a few arrays: what is suspicious or unmatched and how the error moves along the execution."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from twinprobe._graph.read.db import TARGET, Config, Graph
from twinprobe._view.nodes import OWN_ERROR, GraphView, badness, bands, level_of, worst_in

Floats = npt.NDArray[np.float32]
Orders = npt.NDArray[np.int64]
_OVERFLOWS = ("medium", "high", "critical")
NO_LEVEL = -1
Value = TypeVar("Value")


@dataclass(frozen=True)
class Overview:
    """One value per node of one side, in execution order (children before their parents)."""

    order: Orders
    level: npt.NDArray[np.int8]
    overflow: npt.NDArray[np.int8]
    unmatched: npt.NDArray[np.bool_]
    micro: npt.NDArray[np.int32]
    module: npt.NDArray[np.bool_]
    leaf: npt.NDArray[np.bool_]

    def suspicious(self, values: Floats | None = None, above: float | None = None) -> npt.NDArray[np.bool_]:
        """Which nodes the file marks or, with a limit, whose metric lies above it."""
        if values is None or above is None:
            return self.level > 0
        return np.nan_to_num(values, nan=-1.0) > above

    def chosen(self, *, suspicious: npt.NDArray[np.bool_] | None, unmatched: bool | None, levels: list[int],
               overflow: list[str], what: str, micro: int | None) -> Orders:  # fmt: skip
        """Places in the order that pass all filters."""
        keep = np.ones(len(self.order), dtype=bool) if suspicious is None else suspicious.copy()
        if unmatched is not None:
            keep &= self.unmatched == unmatched
        if levels:
            keep &= np.isin(self.level, levels)
        if overflow:
            keep &= np.isin(self.overflow, [_OVERFLOWS.index(name) + 1 for name in overflow if name in _OVERFLOWS])
        if what in ("modules", "apis"):
            keep &= self.module == (what == "modules")
        if micro is not None:
            keep &= self.micro == micro
        found: Orders = self.order[keep]
        return found

    def counts(self, levels: int) -> dict[str, Any]:
        """How many nodes there are of each sort."""
        return {
            "nodes": len(self.order),
            "unmatched": int(self.unmatched.sum()),
            "suspicious": int((self.level > 0).sum()),
            "levels": [int((self.level == number).sum()) for number in range(levels)],
            "overflow": {name: int((self.overflow == at + 1).sum()) for at, name in enumerate(_OVERFLOWS)},
        }


class Cache:
    """The last few results by key; computed once even if two requests ask at the same time."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._known: OrderedDict[Any, Any] = OrderedDict()
        self._locks: dict[Any, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, key: Any, make: Callable[[], Value]) -> Value:
        """The result for a key, from memory or made now."""
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            with self._lock:
                if key in self._known:
                    self._known.move_to_end(key)
                    found: Value = self._known[key]
                    return found
            made = make()
            with self._lock:
                self._known[key] = made
                while len(self._known) > self._size:
                    self._locks.pop(self._known.popitem(last=False)[0], None)
            return made


def read_overview(config: Config, graph: Graph, side: str) -> Overview:
    """Walk once over the nodes of a side."""
    known = bands(config.colors)
    levels: dict[Any, int] = {}
    rows = []
    for order, precision, overflow, unmatched, micro, kind, leaf in graph.outline(side):
        level = levels.get(precision)
        if level is None:
            found = level_of(precision, known)
            level = NO_LEVEL if found is None else found
            if len(levels) < 10_000:
                levels[precision] = level
        rows.append((order, level, _OVERFLOWS.index(overflow) + 1 if overflow in _OVERFLOWS else 0, unmatched,
                     micro if isinstance(micro, int) else 0, str(kind) != "1", leaf))  # fmt: skip
    columns = np.array(rows, dtype=np.int64).reshape(-1, 7).T
    kinds = (np.int64, np.int8, np.int8, np.bool_, np.int32, np.bool_, np.bool_)
    return Overview(*(column.astype(kind) for column, kind in zip(columns, kinds, strict=True)))


def read_metric(graph: Graph, metric: str, overview: Overview) -> Floats:
    """A metric of every node of the run under test, not a number where there is none."""
    values = np.full(len(overview.order), np.nan, dtype=np.float32)
    places = {int(order): place for place, order in enumerate(overview.order)}
    if metric == OWN_ERROR:
        pairs = ((row[0], row[1]) for row in graph.errors("target"))
    else:
        pairs = ((order, worst_in(text, metric)) for order, text in graph.outputs("target"))
    for order, value in pairs:
        if isinstance(value, (int, float)) and order in places:
            values[places[order]] = value
    return values


def strip(overview: Overview, values: Floats | None, bins: int) -> dict[str, Any]:
    """Error over execution order, cut into at most ``bins`` pieces: the worst of each, and which node it is."""
    count = len(overview.order)
    if not count:
        return {"nodes": 0, "level": [], "value": [], "order": [], "unmatched": []}
    edges = np.linspace(0, count, min(bins, count) + 1).astype(np.int64)
    rank = overview.level.astype(np.float64) * 1e6
    if values is not None:
        rank += np.clip(np.nan_to_num(values.astype(np.float64), nan=-1.0), -1, 1e5)
    rank += overview.leaf * 1e-9  # of a module and its only child, show the child: it came first
    worst = [int(a + np.argmax(rank[a:b])) for a, b in pairwise(edges)]
    tops = None if values is None else np.fmax.reduceat(values, edges[:-1])
    return {
        "nodes": count,
        "level": [int(overview.level[place]) for place in worst],
        "value": None if tops is None else [None if np.isnan(top) else min(float(top), 1e30) for top in tops],
        "order": [int(overview.order[place]) for place in worst],
        "unmatched": [round(float(overview.unmatched[a:b].mean()), 3) for a, b in pairwise(edges)],
    }


_MOST_POINTS, _MOST_LAYERS, _MOST_PARTS = 400, 128, 80
_BEYOND = 3
# The number of a layer is the first in a module's path: blocks.3.attention.out is attention.out of layer 3 of blocks.
_LAYER = re.compile(
    r"(?:Module|Cell)\.(?P<stack>.*?)\.(?P<layer>\d+)(?:\.(?P<part>.+))?\.\w+\.(?P<way>forward|backward)\.\d+"
)


def growth(graph: Graph) -> dict[str, Any]:
    """How the error grows along the run, with what noise explains: forward and backward apart, and layer by layer."""
    rows = [(str(name), order, error, expected) for name, order, error, expected in graph.growth(TARGET)
            if isinstance(order, int) and isinstance(error, (int, float))]  # fmt: skip
    injected = bool(graph.injected(TARGET))
    found: dict[str, Any] = {}
    for way in ("forward", "backward"):
        chosen = [row for row in rows if f".{way}" in row[0]]
        step = max(1, -(-len(chosen) // _MOST_POINTS))
        groups = [chosen[first : first + step] for first in range(0, len(chosen), step)]
        worst = [max(group, key=lambda row: row[2]) for group in groups]
        bounds = [max((row[3] for row in group if isinstance(row[3], float)), default=None) for group in groups]
        found[way] = {"order": [row[1] for row in worst], "error": [row[2] for row in worst], "expected": bounds,
                      "layers": _layers(chosen, way, injected=injected)}  # fmt: skip
    return found


def _layers(rows: list[tuple[str, int, float, Any]], way: str, *, injected: bool) -> dict[str, Any] | None:
    """The errors of layers that are built alike, part by part; of several stacks of layers the one with most."""
    stacks: dict[str, dict[int, dict[str, tuple[float, int, float | None]]]] = {}
    for name, order, error, expected in rows:
        match = _LAYER.fullmatch(name)
        if match is None or match["way"] != way:
            continue
        parts = stacks.setdefault(match["stack"], {}).setdefault(int(match["layer"]), {})
        part = match["part"] or ""
        if part not in parts or error > parts[part][0]:
            parts[part] = (error, order, error / expected if isinstance(expected, float) and expected > 0 else None)
    if not stacks:
        return None
    stack, layers = max(stacks.items(), key=lambda entry: len(entry[1]))
    numbers = sorted(layers)[:_MOST_LAYERS]
    names = list(dict.fromkeys(part for number in numbers for part in layers[number]))[:_MOST_PARTS]
    if len(numbers) < 2:
        return None
    lines = [[layers[number].get(part, (None, None, None)) for part in names] for number in numbers]
    errors, orders, times = ([[point[column] for point in line] for line in lines] for column in range(3))
    return {"stack": stack, "numbers": numbers, "parts": names, "error": errors, "order": orders,
            "leaves": _leaving(errors, orders, times, injected=injected)}  # fmt: skip


def _leaving(errors: list[list[Any]], orders: list[list[Any]], times: list[list[Any]], *, injected: bool) -> int | None:
    """The place of the layer that leaves the pack; None where all stay together, or where noise explains all.

    That is the one furthest beyond noise; else the one that raises the error most over all that ran before it: later
    layers only inherit. What the first layer of all has can have come from before it.
    """
    beyond = [max((value for value in line if value is not None), default=0.0) for line in times]
    if max(beyond) > _BEYOND:
        return beyond.index(max(beyond))
    run = sorted((order, error, layer) for layer, line in enumerate(errors)
                 for order, error in zip(orders[layer], line, strict=True) if error is not None)  # fmt: skip
    if not injected or not run:
        return None
    so_far = max(error for _, error, _ in run) / 1000  # from nothing to something is no larger a step than that
    steps = dict.fromkeys(range(len(errors)), 0.0)
    for _, error, layer in run:
        if layer != run[0][2]:
            steps[layer] = max(steps[layer], error / so_far if so_far else 0.0)
        so_far = max(so_far, error)
    leader = max(steps, key=lambda layer: steps[layer])
    return leader if steps[leader] > _BEYOND else None


_EQUAL = 1e-9
_AMPLIFIED = 10
_TOLD = ("NormRelativeErr", "Cosine", "MaxRelativeErr")


def first_known(view: GraphView) -> dict[str, Any] | None:
    """The first divergence as a file of ours tells it; None if the file does not know."""
    summary = view.config.summary.get((view.step, view.rank), {})
    if not summary.get("first_node"):
        return None
    node = view.graph.node(TARGET, summary["first_node"])
    sentence, stack = summary.get("first_sentence", ""), summary.get("first_stack", "")
    return _report(view, node["node_name"], sentence, stack) if node is not None else None


def first_of(view: GraphView, places: Orders) -> dict[str, Any] | None:
    """The first of the suspicious nodes in execution order."""
    rows = view.graph.by_order(TARGET, [int(places[0])]) if len(places) else []
    return _report(view, rows[0]["node_name"], "") if rows else None


def _report(view: GraphView, name: str, sentence: str, stack: str = "") -> dict[str, Any]:
    detail = view.detail(TARGET, name)
    target, golden = detail["target"], detail["golden"]
    shown = {key: target.get(key) for key in ("name", "order", "level", "origin", "verdict", "error", "match")}
    return {**shown, "parent": target["parent"], "sentence": sentence, "stack": stack, **facts(target, golden)}


def facts(target: dict[str, Any], golden: dict[str, Any] | None) -> dict[str, Any]:
    """By how much the inputs and the outputs of a node differ, and whether the difference arose in it.

    ``differs`` counts the inputs that are not the same, whether or not a number says by how much; ``argument`` names
    the one that differs where others agree: often a weight.
    """
    own = target.get("arguments")
    if own is not None:
        metric = OWN_ERROR
        given, made = (_judged(target, part, own) for part in ("inputs", "outputs"))
    elif golden is not None and any("md5" in tensor for tensor in target["outputs"]):
        metric = "md5"
        given, made = (_digests(target[part], golden[part]) for part in ("inputs", "outputs"))
    else:
        metric = next((name for name in _TOLD if _measured(target["outputs"], name)), OWN_ERROR)
        given, made = (_measured(target[part], metric) for part in ("inputs", "outputs"))
    if golden is not None and own is None:
        # A metric that was not taken, or of one statistic only, does not make two inputs equal.
        for values, part in ((given, "inputs"), (made, "outputs")):
            values.update((name, None) for name in _unlike(target, golden, part) if not values.get(name))
    elif golden is not None and any(not given[name] for name in _unlike(target, golden, "inputs")):
        # One call corresponds to several: the value agrees with that of another call than the one shown next to it.
        given = {name: value for name, value in given.items() if value}
    most, out = (max((x for x in values.values() if x is not None), default=None) for values in (given, made))
    if metric == OWN_ERROR:
        out = target.get("error")
    some = [name for name, value in given.items() if value is None or value > _EQUAL]
    argument = some[0].removeprefix(f"{target['name']}.") if len(some) == 1 < len(given) else None
    how = target.get("origin") or (None if argument else _how(most, out, bool(some)))
    return {
        "metric": metric, "input": most if given else None, "output": out, "argument": argument, "how": how,
        "differs": len(some), "inputs": len(given),
        "outputs": sum(value is None or value > _EQUAL for value in made.values()),
    }  # fmt: skip


def _how(given: float | None, made: float | None, differs: bool) -> str | None:
    if made is None or made <= _EQUAL:
        return None
    if given is None or given <= _EQUAL:
        return None if differs else "injected"
    return "amplified" if made > _AMPLIFIED * given else "inherited"


def _judged(node: dict[str, Any], part: str, own: dict[str, list[float | None]]) -> dict[str, float | None]:
    """The judge's error of each value; those that it does not list agree."""
    names = [tensor["name"] for tensor in node[part]]
    return {name: own.get(name.removeprefix(f"{node['name']}."), [0.0])[0] for name in names}


def _unlike(target: dict[str, Any], golden: dict[str, Any], part: str) -> list[str]:
    """The values of both sides whose recorded statistics are not the same."""
    there = {tensor["name"].removeprefix(golden["name"]): tensor for tensor in golden[part]}
    pairs = [(tensor, there.get(tensor["name"].removeprefix(target["name"]))) for tensor in target[part]]
    keys = ("Max", "Min", "Mean", "Norm", "md5", "shape")
    return [a["name"] for a, b in pairs if b is not None and any(a.get(key) != b.get(key) for key in keys)]


def _measured(tensors: list[dict[str, str]], metric: str) -> dict[str, float | None]:
    found = {tensor["name"]: badness(tensor.get(metric, ""), metric) for tensor in tensors}
    return {name: value for name, value in found.items() if value is not None}


def _digests(target: list[dict[str, str]], golden: list[dict[str, str]]) -> dict[str, float | None]:
    pairs = zip(target, golden, strict=False)
    return {a["name"]: float(a["md5"] != b["md5"]) for a, b in pairs if "md5" in a and "md5" in b}
