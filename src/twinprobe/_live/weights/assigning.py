"""Copying the weights of whole models: the LayerMap and the aligner say which layers belong together."""

from __future__ import annotations

from typing import Any

import numpy as np

from twinprobe._live.frameworks.adapter import Adapter, adapter_of
from twinprobe._live.frameworks.layouts import AS_IS, Layout, View
from twinprobe._live.pairing.layer_map import LayerMap, as_layer_map, outside
from twinprobe._live.pairing.layers import mapped_paths, pair_modules
from twinprobe._live.weights.copying import WeightReport, check_models, copy_aligned
from twinprobe._live.weights.matching import has_rules
from twinprobe.errors import TwinProbeError, listed


def assign_weight(target: object, source: object, layer_map: Any = None) -> bool:
    """Copy weights from source to target, paired by layer_map or automatically.

    If weights do not fit, it does not raise: it prints the reason, changes nothing and returns False.
    """
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False)
    try:
        report = copy_weights(target, source, layer_map)
    except TwinProbeError as error:
        console.print(f"Weights were not copied: {error}", markup=False)
        return False
    console.print(str(report), markup=False)
    return True


def copy_weights(
    target: object, source: object, layer_map: Any = None, *, known: list[tuple[str, str]] | None = None
) -> WeightReport:
    """Copy weights from source to target; one without a counterpart is an error unless layer_map leaves it out.

    ``known`` are pairs of paths that are already known, for example from running the models.
    """
    chosen = as_layer_map(layer_map)
    mapped = mapped_paths(target, source, chosen)
    check_models(target, source)
    left_out = _left_out(target, chosen), _left_out(source, chosen)
    pairs = [
        pair
        for pair in (known if known is not None else pair_modules(target, source, chosen))
        if pair in mapped or not (pair[0] in left_out[0] or pair[1] in left_out[1])
    ]
    report = copy_aligned(target, source, pairs, mapped=mapped, left_out=left_out, groups=chosen.groups)
    ignored = _left_out(target, chosen, ignored_only=True) if report.kept else set()
    kept = [name for name in report.kept if name.rpartition(".")[0] in ignored]
    if kept:
        report.notices.append(f"weights of ignored layers were not copied: {listed(kept)}")
    return report


def _left_out(model: Any, layer_map: LayerMap, *, ignored_only: bool = False) -> set[str]:
    """Paths of the layers whose own weights are left to the user."""
    if layer_map.is_empty:
        return set()
    alone: set[int] = set()
    if not ignored_only:
        alone |= {id(api.layer) for api in layer_map.apis}
        alone |= {id(layer) for group in layer_map.groups for layer in (*group.first, *group.second)}
    taking_part = {
        path
        for path, layer in outside(model, lambda layer: id(layer) in alone or layer_map.is_ignored_inside(layer))
        if id(layer) not in alone and not layer_map.is_ignored(layer)
    }
    return {path for path, _ in adapter_of(model).modules(model)} - taking_part


# Models of one shape: every layer with weights has its like at the same path, and one rule for each pair of classes.
#
# Most copies are of this kind. They need no search, so that hundreds of layers cost little more than moving their
# bytes. Whatever is not plain (a map, a rule of the user's, shared tensors, another dtype) is left to the general
# way.

# Families whose layout follows from the class alone, with all weights in the layer itself.
_BY_CLASS = frozenset({"linear", "convolution", "transposed convolution", "embedding", "norm", "bilinear", "prelu"})

Holding = dict[str, tuple[Any, dict[str, Any]]]  # the layers that hold tensors, by path, with what they hold
Plan = list[tuple[str, str, View, View]]  # where a weight lies in target and source, and how each is seen
Copy = tuple[Any, Any, View, View]


def copy_plain(target: Any, source: Any) -> bool:
    """Copy the weights of a plain pair of models; False, and nothing changed, where they are not plain."""
    if has_rules():
        return False
    adapters = adapter_of(target), adapter_of(source)
    sides = _holding(adapters[0], target), _holding(adapters[1], source)
    if sides[0] is None or sides[1] is None or sides[0].keys() != sides[1].keys():
        return False
    copies = _copies(adapters, sides[0], sides[1])
    if copies is None or not all(_fit(adapters, *copy) for copy in copies):
        return False
    for index, adapter in enumerate(adapters):  # what is shared needs a closer look
        if len({adapter.key(copy[index]) for copy in copies}) != len(copies):
            return False
    for wanted, offered, here, there in copies:
        values = there.of(adapters[1].read(offered))
        memory = adapters[0].memory(wanted)
        if memory is not None:
            here.of(memory)[...] = values
            continue
        if here is not AS_IS or not (values.flags.c_contiguous and values.flags.writeable):
            array = np.empty(adapters[0].shape(wanted), values.dtype)
            here.of(array)[...] = values
            values = array
        adapters[0].write(wanted, values)
    return True


def _holding(adapter: Adapter, model: Any) -> Holding | None:
    """None where one layer is in two places."""
    holding: Holding = {}
    seen: set[int] = set()
    todo = [("", model)]
    while todo:
        front, module = todo.pop()
        if id(module) in seen:
            return None
        seen.add(id(module))
        own = adapter.weights(module)
        if own:
            holding[front] = module, own
        todo += [(f"{front}{name}.", child) for name, child in adapter.children(module).items()]
    return holding


def _copies(adapters: tuple[Adapter, Adapter], target: Holding, source: Holding) -> list[Copy] | None:
    plans: dict[tuple[type, type], Plan | None] = {}
    copies: list[Copy] = []
    for path, (here, own) in target.items():
        there, partners = source[path]
        kinds = type(here), type(there)
        if kinds not in plans:
            plans[kinds] = _plan(adapters[0].layout(here), adapters[1].layout(there))
        plan = plans[kinds]
        if plan is None or len(own) != len(partners):
            return None
        before = len(copies)
        for place, other_place, view, other_view in plan:
            wanted, offered = own.get(place), partners.get(other_place)
            if wanted is not None and offered is not None:
                copies.append((wanted, offered, view, other_view))
        if len(copies) - before != len(own):
            return None
    return copies


def _plan(target: Layout | None, source: Layout | None) -> Plan | None:
    if target is None or source is None or target.family != source.family or target.family not in _BY_CLASS:
        return None
    if target.whole or source.whole:
        return None
    partners = {part.name: part for part in source.parts}
    pairs = [(part, partners[part.name]) for part in target.parts if part.name in partners]
    return [(part.place, partner.place, part.view, partner.view) for part, partner in pairs]


def _fit(adapters: tuple[Adapter, Adapter], wanted: Any, offered: Any, here: View, there: View) -> bool:
    shapes = adapters[0].shape(wanted), adapters[1].shape(offered)
    if adapters[0].dtype(wanted) != adapters[1].dtype(offered):
        return False
    if here is there:  # the common views are one object each
        return shapes[0] == shapes[1]
    return here.shape(shapes[0]) == there.shape(shapes[1])
