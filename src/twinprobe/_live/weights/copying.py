"""Copying the weights of one model to another: everything is checked first, then written.

The LayerMap and the aligner say which layers belong together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from twinprobe._live.frameworks.adapter import Adapter, adapter_of, framework_of
from twinprobe._live.frameworks.layouts import AS_IS, Array, Layout, View
from twinprobe._live.pairing.layer_map import Group, LayerMap, as_layer_map, outside
from twinprobe._live.pairing.layers import mapped_paths, pair_modules
from twinprobe._live.weights.layers import (
    Layer,
    Slot,
    StoredTensor,
    held_below,
    layer_at,
    own_attention,
    slots_below,
    submodule,
)
from twinprobe._live.weights.matching import (
    USER_RULES,
    LayerPair,
    Match,
    Paths,
    Problem,
    layer_pairs_of,
    match_layers,
    refusal,
)
from twinprobe._runs.names import listed
from twinprobe.errors import BadInput, TwinProbeError


@dataclass
class WeightReport:
    """Parameters that were copied, and what the user should know."""

    copied: list[tuple[str, str]] = field(default_factory=list)
    """(target parameter, source parameter); a packed one stands once for each part."""
    notices: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    """Parameters of the target that no aligned pair covers: they keep their values."""

    def __str__(self) -> str:
        lines = [f"{len(self.copied)} weights copied", *self.notices]
        if self.kept:
            lines.append(f"{len(self.kept)} keep their own values: {', '.join(self.kept[:5])}")
        return "\n".join(lines)


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
    target: object, source: object, layer_map: Any = None, *, known: list[tuple[str, str]] | None = None,
    allow_missing: bool = False,
) -> WeightReport:  # fmt: skip
    """Copy weights from source to target; one without a counterpart is an error unless layer_map leaves it out.

    ``known`` are pairs of paths that are already known, for example from running the models. ``allow_missing`` makes
    a notice of a weight that one of two paired layers lacks.
    """
    chosen = as_layer_map(layer_map)
    mapped = mapped_paths(target, source, chosen)
    check_models(target, source)
    left_out = _left_out(target, chosen), _left_out(source, chosen)
    found = known if known is not None else pair_modules(target, source, chosen)
    pairs = [
        pair
        for pair in [*found, *_attentions_of_two_kinds(target, source, found)]
        if pair in mapped or not (pair[0] in left_out[0] or pair[1] in left_out[1])
    ]
    report = copy_aligned(target, source, pairs, mapped=mapped, left_out=left_out, groups=chosen.groups,
                          allow_missing=allow_missing)  # fmt: skip
    ignored = _left_out(target, chosen, ignored_only=True) if report.kept else set()
    kept = [name for name in report.kept if name.rpartition(".")[0] in ignored]
    if kept:
        report.notices.append(f"weights of ignored layers were not copied: {listed(kept)}")
    return report


def _attentions_of_two_kinds(target: Any, source: Any, known: list[Paths]) -> list[Paths]:
    """Built-in attentions and those of the user's own four projections, in the order of definition: a composed module
    and one that is known as a whole are not paired by what they hold."""
    sides = []
    for model in (target, source):
        found: list[tuple[str, bool]] = []
        for path, module in adapter_of(model).modules(model):
            layout = adapter_of(model).layout(module)
            built_in = layout is not None and layout.family == "attention"
            if (built_in or own_attention(module) is not None) and not any(
                path.startswith(f"{one}.") for one, _ in found
            ):
                found.append((path, built_in))
        sides.append(found)
    taken = [{pair[side] for pair in known} for side in (0, 1)]
    if len(sides[0]) != len(sides[1]):
        return []
    pairs = [(one, other) for (one, mine), (other, theirs) in zip(*sides, strict=True) if mine != theirs]
    return [pair for pair in pairs if pair[0] not in taken[0] and pair[1] not in taken[1]]


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


# Copying along aligned modules.

_BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
_ALONE = "no layer of the other model is aligned with it"
LeftOut = tuple[Collection[str], Collection[str]]  # paths of the target's and the source's modules
_Value = Slot | float  # what a slot of the target receives
# For each tensor of the target what goes into it.
_Filled = dict[object, tuple[StoredTensor, list[tuple[Slot, _Value]]]]


def check_models(*models: Any) -> None:
    """Refuse what is no model of a known framework."""
    for model in models:
        if framework_of(model) is None:
            raise BadInput(
                f"weights cannot be copied to or from a {type(model).__name__}",
                hint="give a torch.nn.Module, a paddle.nn.Layer or a mindspore.nn.Cell",
            )


def copy_aligned(
    target: Any, source: Any, pairs: Iterable[Paths], *, mapped: Collection[Paths] | None = None,
    left_out: LeftOut | None = None, groups: Iterable[Group] = (), allow_missing: bool = False,
) -> WeightReport:  # fmt: skip
    """Copy parameters and buffers from source to target for each aligned (target path, source path) pair.

    The empty path is the model itself. A weight that cannot be copied is an error, and the target stays as it was.
    `mapped` are the pairs that the user's own map made: without a rule they keep their values and cost a notice. (Not
    given, pairs of composed modules with nothing paired inside count as mapped.) With `left_out`, paths of the
    target's and the source's modules, a parameter that no pair covers is an error too, unless its module is there.
    Weights of `groups` are copied where they pair up in order; otherwise a notice says so. With `allow_missing`, so it
    does of a weight that one of two paired layers lacks.
    """
    check_models(target, source)
    layer_pairs = layer_pairs_of(target, source, pairs, mapped)
    report = WeightReport()
    matches = _match_all(layer_pairs, target, source, report, left_out, allow_missing)
    for match in (match_group(target, source, group) for group in groups):
        if match is not None:
            matches.append(match)
            report.notices += match.notices
    filled = _assignments(matches)
    # Made before anything is written: weights that share a tensor may be in conflict.
    ready = {key: _array(held, parts, target, source) for key, (held, parts) in filled.items() if len(parts) > 1}
    _run_special(layer_pairs)
    write = adapter_of(target).write
    for key, (held, parts) in filled.items():
        write(held.tensor, ready[key] if key in ready else _array(held, parts, target, source))
    report.copied = [(wanted.held.name, offered.held.name) for match in matches for wanted, offered in match.copies]
    report.notices += _rounding(filled, target, source) + _untied(filled)
    covered = {
        held.key for layer_pair in layer_pairs if layer_pair.special for held in held_below(layer_pair.target.module)
    } | filled.keys()
    report.kept = [held.name for held in held_below(target) if not held.is_buffer and held.key not in covered]
    return report


def _match_all(
    layer_pairs: list[LayerPair], target: Any, source: Any, report: WeightReport, left_out: LeftOut | None,
    allow_missing: bool,
) -> list[Match]:  # fmt: skip
    matches, problems = [], list[Problem]()
    read = adapter_of(source).read
    for layer_pair in layer_pairs:
        here, there = layer_pair.target, layer_pair.source
        if layer_pair.without_rule:
            report.notices.append(
                f"{here.shown} and {there.shown} are mapped, but there is no rule to copy their weights: they keep the"
                f" values they have; register one with add_special_init({here.kind}, {there.kind}, function)"
            )
        elif layer_pair.special is None:
            match = match_layers(here, there)
            matches.append(match)
            problems += match.problems
            problems += [problem for slot, value, problem in match.must_be if (read(slot.held.tensor) != value).any()]
            report.notices += match.notices
    if allow_missing:
        report.notices += [problem.notice for problem in problems if problem.in_one_layer]
        problems = [problem for problem in problems if not problem.in_one_layer]
    if left_out is not None:
        sides = [(target, source, left_out[0]), (source, target, left_out[1])]
        for at, (model, other, ignored) in enumerate(sides):
            held = [(pair, (pair.target, pair.source)[at]) for pair in layer_pairs]
            alone = [
                Problem(None, layer, None, slot, _ALONE) if at else Problem(layer, None, slot, None, _ALONE)
                for layer, slot in _alone(held, model, ignored)
            ]
            if allow_missing:  # a norm without scale and shift has no weights to be paired by
                bare = [problem for problem in alone if _is_bare(other, (problem.target or problem.source))]
                report.notices += [problem.notice for problem in bare]
                alone = [problem for problem in alone if problem not in bare]
            problems += alone
            if problems:
                break
    if problems:
        raise refusal(problems, list(slots_below(target)), list(slots_below(source)))
    return matches


def _is_bare(model: Any, layer: Layer | None) -> bool:
    """Whether a model has a layer in the place of this one, of its class, without any weights."""
    modules = dict(adapter_of(model).modules(model))
    module = modules.get(layer.path) if layer is not None else None
    return layer is not None and type(module).__name__ == layer.kind and not held_below(module)


def _alone(
    layer_pairs: list[tuple[LayerPair, Layer]], model: Any, left_out: Collection[str]
) -> list[tuple[Layer, Slot]]:
    """Parameters of a model that no aligned pair covers."""
    covered: set[object] = set()
    for layer_pair, layer in layer_pairs:
        whole = layer_pair.special or layer_pair.without_rule
        covered |= {held.key for held in (held_below(layer.module) if whole else [s.held for s in layer.weights])}
    alone = []
    for held in held_below(model):
        path = held.name.rpartition(".")[0]
        if not held.is_buffer and held.key not in covered and path not in left_out:
            layer = layer_at(submodule(model, path), path)
            alone.append((layer, next(slot for slot in layer.weights if slot.held.key == held.key)))
            covered.add(held.key)
    return alone


def _assignments(matches: list[Match]) -> _Filled:
    """For each tensor of the target what goes into it; tied weights are one tensor."""
    filled: _Filled = {}
    seen: set[object] = set()
    for match in matches:
        given: list[tuple[Slot, _Value]] = [*match.copies, *match.fills]
        for wanted, value in given:
            mark = (wanted.seen, value.seen if isinstance(value, Slot) else value)
            if mark not in seen:
                seen.add(mark)
                filled.setdefault(wanted.held.key, (wanted.held, []))[1].append((wanted, value))
    return filled


def _array(held: StoredTensor, parts: list[tuple[Slot, _Value]], target: Any, source: Any) -> Array:
    """The new content of a tensor, in the layout of the target."""
    read = adapter_of(source).read
    values = [
        value.view.of(read(value.held.tensor)) if isinstance(value, Slot) else np.asarray(value, np.float32)
        for _, value in parts
    ]
    wanted, first = parts[0][0], values[0]
    if len(parts) == 1 and math.prod(wanted.shape) == math.prod(held.shape):
        plain = wanted.view == AS_IS and first.shape == held.shape
        if plain and first.flags.c_contiguous and first.flags.writeable:
            return first
        array: Array = np.empty(held.shape, dtype=first.dtype)
        wanted.view.of(array)[...] = first
        return array
    array = np.array(adapter_of(target).read(held.tensor))
    done = np.zeros(held.shape, dtype=bool)
    for (slot, _), given in zip(parts, values, strict=True):
        place, before, fresh = slot.view.of(array), slot.view.of(done), given.astype(array.dtype, copy=False)
        if not np.array_equal(
            place[before], np.broadcast_to(fresh, place.shape)[before], equal_nan=fresh.dtype.kind in "fc"
        ):
            sources = ", ".join(str(value.held) if isinstance(value, Slot) else str(value) for _, value in parts)
            raise BadInput(
                f"{held} is one tensor shared by several layers of the target, but the source has different values for"
                f" them: {sources}; nothing was changed",
                hint="tie the source's weights too, or untie the target's",
            )
        place[...] = fresh
        before[...] = True
    return array


def _run_special(layer_pairs: list[LayerPair]) -> None:
    """The user's own rules; what they wrote is taken back when one of them fails."""
    special = [
        (layer_pair.special, layer_pair.target.module, layer_pair.source.module)
        for layer_pair in layer_pairs
        if layer_pair.special
    ]
    held = [(adapter_of(module), weight.tensor) for _, module, _ in special for weight in held_below(module)]
    before = [(adapter, tensor, np.array(adapter.read(tensor))) for adapter, tensor in held]
    try:
        for function, module, partner in special:
            function(module, partner)
    except BaseException:
        for adapter, tensor, values in before:
            adapter.write(tensor, values)
        raise


def _rounding(filled: _Filled, target: Any, source: Any) -> list[str]:
    counts: Counter[tuple[str, str]] = Counter()
    for held, parts in filled.values():
        to = adapter_of(target).dtype(held.tensor)
        for _, value in parts:
            given = adapter_of(source).dtype(value.held.tensor) if isinstance(value, Slot) else to
            if _BITS.get(given, 0) > _BITS.get(to, 99):
                counts[given, to] += 1
    return [f"{count} weights were rounded from {given} to {to}" for (given, to), count in counts.items()]


def _untied(filled: _Filled) -> list[str]:
    """Weights that are one tensor in the source and two in the target part at the first optimizer step."""
    takers: dict[object, dict[str, Any]] = {}
    for held, parts in filled.values():
        for _, value in parts:
            if isinstance(value, Slot) and value.held.trainable:
                takers.setdefault(value.seen, {})[held.name] = value.held.name
    return [
        f"{', '.join(names)} share one tensor in the source ({next(iter(names.values()))}) but not in the target:"
        " they are equal now and will diverge in training"
        for names in takers.values()
        if len(names) > 1
    ]


def match_group(target: Any, source: Any, group: Group) -> Match | None:
    """The copies that a group asks for, or the notice why there are none; None for a group of other models."""
    places = [{id(module): path for path, module in adapter_of(model).modules(model)} for model in (target, source)]
    members = [group.first, group.second]
    if not all(id(layer) in places[0] for layer in members[0]):
        members.reverse()
    if not all(id(layer) in known for side, known in zip(members, places, strict=True) for layer in side):
        return None
    wanted, offered = (
        [slot for layer in layers for slot in slots_below(layer, known[id(layer)])]
        for known, layers in zip(places, members, strict=True)
    )  # in the order of the group and of definition
    if not wanted and not offered:
        return Match()
    across = framework_of(target) != framework_of(source)
    copies = []
    if [slot.shape for slot in wanted] == [slot.shape for slot in offered]:
        copies = list(zip(wanted, offered, strict=True))
    if not copies or (across and any(_may_be_turned(*pair) for pair in copies)):
        copies = _joined(wanted, offered) or [(part, rows) for rows, part in _joined(offered, wanted)]
    if copies and not (across and any(_may_be_turned(*pair) for pair in copies)):
        return Match(copies=copies)
    wanted_names, offered_names = (" + ".join(type(layer).__name__ for layer in side) for side in members)
    shapes = [", ".join(str(list(slot.shape)) for slot in slots) or "none" for slots in (wanted, offered)]
    return Match(
        notices=[
            f"the group {wanted_names} and {offered_names} keeps the weights it has: they do not pair up in order"
            f" ({shapes[0]} against {shapes[1]}); set them yourself, or put each side into a module of its own, map the"
            " two and register a rule for them with add_special_init"
        ]
    )


def _joined(whole: list[Slot], parts: list[Slot]) -> list[tuple[Slot, Slot]]:
    """One layer that holds others one after the other, q, k and v or gate and up: the rows of each with its part."""
    pairs = []
    for slot in whole:
        start = 0
        for part in (part for part in parts if part.name == slot.name and part.shape):
            rows = start, start + part.shape[0]
            pairs.append((replace(slot, view=replace(slot.view, rows=rows)), part))
            start = rows[1]
        if not slot.shape or start != slot.shape[0]:
            return []
    fits = all(rows.shape == part.shape and rows.held.shape != part.held.shape for rows, part in pairs)
    return pairs if len(pairs) == len(parts) and fits else []


def _may_be_turned(wanted: Slot, offered: Slot) -> bool:
    """A square matrix of a class of the user's own may be stored either way."""
    is_known = wanted.name == "weight" and offered.name == "weight"
    return not is_known and len(wanted.shape) == 2 and wanted.shape[0] == wanted.shape[1]


# Models of one structure: every layer with weights has a partner at the same path, and one rule per pair of classes.
#
# Most copies are of this kind. They need no search, so hundreds of layers cost little more than moving their bytes.
# Whatever is not plain (a map, a rule of the user's, shared tensors, another dtype) is left to the general way.

# Families whose layout follows from the class alone, with all weights in the layer itself.
_BY_CLASS = frozenset({"linear", "convolution", "transposed convolution", "embedding", "norm", "bilinear", "prelu"})

Holding = dict[str, tuple[Any, dict[str, Any]]]  # the layers that hold tensors, by path, with what they hold
Plan = list[tuple[str, str, View, View]]  # where a weight lies in target and source, and how each is seen
Copy = tuple[Any, Any, View, View]


def copy_plain(target: Any, source: Any) -> bool:
    """Copy the weights of a plain pair of models; False, and nothing changed, where they are not plain."""
    if USER_RULES:
        return False
    adapters = adapter_of(target), adapter_of(source)
    sides = _holding(adapters[0], target), _holding(adapters[1], source)
    if sides[0] is None or sides[1] is None or sides[0].keys() != sides[1].keys():
        return False
    copies = _copies(adapters, sides[0], sides[1])
    if copies is None or not all(_fit(adapters, *copy) for copy in copies):
        return False
    for index, adapter in enumerate(adapters):  # shared tensors need the general way
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
