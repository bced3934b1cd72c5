"""Copying the weights of whole models: the LayerMap and the aligner say which layers belong together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from twinprobe.errors import TwinProbeError
from twinprobe.live.weights.copying import copy_aligned
from twinprobe.live.weights.layers import joined
from twinprobe.live.weights.report import WeightReport
from twinprobe.live.weights.stores import Store, store_of

if TYPE_CHECKING:
    from twinprobe.live.layer_map import LayerMap


def assign_weight(target: object, source: object, layer_map: Any = None) -> bool:
    """Copy weights from source to target, paired by layer_map or by themselves.

    Never raises for weights that do not fit: it prints the reason, changes nothing and is False.
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
    """Copy weights from source to target; one that finds no partner is an error unless layer_map leaves it out.

    ``known`` are pairs of paths that were found otherwise, by running the models say.
    """
    from twinprobe.live.findings import shortened
    from twinprobe.live.layer_map import as_layer_map
    from twinprobe.live.pairing import mapped_paths, pair_modules

    chosen = as_layer_map(layer_map)
    mapped = mapped_paths(target, source, chosen)
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
        report.notices.append(f"weights of ignored layers were not copied: {shortened(kept)}")
    return report


def _left_out(model: Any, layer_map: LayerMap, *, ignored_only: bool = False) -> set[str]:
    """Paths of the layers whose own weights the user takes care of."""
    if layer_map.is_empty:
        return set()
    alone: set[int] = set()
    if not ignored_only:
        alone |= {id(api.layer) for api in layer_map.apis}
        alone |= {id(layer) for group in layer_map.groups for layer in (*group.one, *group.other)}
    found: set[str] = set()
    below: list[str] = []
    for path, layer in _modules(store_of(model), model):
        if any(not outer or path.startswith(f"{outer}.") for outer in below):
            found.add(path)
        elif id(layer) in alone or layer_map.is_ignored_inside(layer):
            below.append(path)
            found.add(path)
        elif layer_map.is_ignored(layer):
            found.add(path)
    return found


def _modules(store: Store, module: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    yield path, module
    for name, child in store.children(module).items():
        yield from _modules(store, child, joined(path, name))
