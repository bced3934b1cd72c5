"""Copying weights between two live models whose layers have other names: how they run tells what belongs together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from twinprobe.errors import BadInput
from twinprobe.live.layer_map import LayerMap
from twinprobe.live.layer_trees import Tree
from twinprobe.live.live_run import Values
from twinprobe.live.options import FORWARD, Options
from twinprobe.live.pairing import mapped_paths, pair_by_names, pair_trees
from twinprobe.live.running import Model, run_model


def copy_all_weights(raw: Model, base: Model, layer_map: LayerMap, options: Options) -> list[str]:
    """The base model's weights, to the raw one; returns what the user should know."""
    from twinprobe.live.weights.assigning import copy_weights
    from twinprobe.live.weights.plain import copy_plain

    if layer_map.is_empty and copy_plain(raw.model, base.model):
        return []
    known = pair_by_names(raw.model, base.model, layer_map)
    if known:
        known = mapped_paths(raw.model, base.model, layer_map) + known
        return copy_weights(raw.model, base.model, layer_map, known=known).notices
    try:
        known = mapped_paths(raw.model, base.model, layer_map) + _pairs_by_running(raw, base, layer_map, options)
        return copy_weights(raw.model, base.model, layer_map, known=known).notices
    except BadInput:
        # What was defined in the same order is found without running, too; its error names what is in the way.
        return copy_weights(raw.model, base.model, layer_map).notices


def _pairs_by_running(raw: Model, base: Model, layer_map: LayerMap, options: Options) -> list[tuple[str, str]]:
    trees = Tree.of(raw.model, layer_map), Tree.of(base.model, layer_map)
    return pair_trees(*trees, _dry_run(raw, layer_map, options), _dry_run(base, layer_map, options))


def _dry_run(one: Model, layer_map: LayerMap, options: Options) -> Values:
    """A forward pass that changes nothing: no statistics of norms, no gradients. Its values mean nothing yet."""
    plain = replace(options, phase=FORWARD, random="eval", single_step=False)
    with _closed(layer_map) as simple:
        return run_model(one, plain, simple, None).run


@contextmanager
def _closed(layer_map: LayerMap) -> Iterator[LayerMap]:
    """The same map without groups and functions, which play no part in copying."""
    simple = LayerMap()
    simple.__dict__.update({**layer_map.__dict__, "groups": [], "apis": []})
    yield simple
