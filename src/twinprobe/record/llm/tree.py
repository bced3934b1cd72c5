"""model_tree.json: all modules of a model, in the order of their first calls, those never called marked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

ROOT = "root"


def module_names(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Every module with its full name, the model itself as ``root``."""
    for path, module in model.named_modules():
        yield (f"{ROOT}.{path}" if path else ROOT), module


def model_tree(model: torch.nn.Module, first_calls: Mapping[str, int] | None) -> dict[str, Any]:
    """The tree as it stands in the file; without calls it is in the order of definition and nothing is marked."""
    tree, _ = _node(ROOT, model, first_calls)
    if first_calls is not None:
        tree["order"] = "execution"
    return tree


def _node(name: str, module: torch.nn.Module, calls: Mapping[str, int] | None) -> tuple[dict[str, Any], int | None]:
    """A module and when it, or anything in it, was first called."""
    found = [_node(f"{name}.{child}", part, calls) for child, part in module.named_children()]
    if calls is not None:
        found = sorted(found, key=lambda one: (one[1] is None, one[1] if one[1] is not None else 0))
    node: dict[str, Any] = {"name": name, "type": type(module).__name__, "children": [one for one, _ in found]}
    if calls is None:
        return node, None
    times = [time for time in (calls.get(name), *(time for _, time in found)) if time is not None]
    if not times:
        node["called"] = False
    return node, min(times, default=None)
