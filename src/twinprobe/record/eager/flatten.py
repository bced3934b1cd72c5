"""Tensors inside nested arguments: found in the order in which they are recorded, or replaced where they stand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

_DEPTH_LIMIT = 400
_SCALARS = frozenset({int, float, bool, str, type(None)})
_CONTAINERS = frozenset({list, tuple, dict})


def tensors_in(value: Any, is_tensor: Callable[[Any], bool], found: list[Any], depth: int = 0) -> list[Any]:
    """Append every tensor inside ``value``."""
    kind = type(value)
    if kind in _SCALARS:
        return found
    if kind is not tuple and kind is not list and is_tensor(value):
        found.append(value)
    elif depth < _DEPTH_LIMIT:
        if isinstance(value, list | tuple):
            for item in value:
                if is_tensor(item):
                    found.append(item)
                elif type(item) not in _SCALARS:
                    tensors_in(item, is_tensor, found, depth + 1)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            for field in dataclasses.fields(value):
                tensors_in(getattr(value, field.name, None), is_tensor, found, depth + 1)
        elif isinstance(value, Mapping):
            for item in value.values():
                tensors_in(item, is_tensor, found, depth + 1)
    return found


def replaced(value: Any, swap: Callable[[Any], Any]) -> Any:
    """``value`` with ``swap`` applied to what is no list, tuple or dict; the same object where nothing changed."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is list or kind is tuple:
        items = None  # a new list only where something changes
        for at, item in enumerate(value):
            inner = type(item)
            if inner in _SCALARS:
                continue
            new = replaced(item, swap) if inner in _CONTAINERS else swap(item)
            if new is not item:
                if items is None:
                    items = list(value)
                items[at] = new
        return value if items is None else kind(items)
    if kind is dict:
        if not value:
            return value
        pairs = {key: replaced(item, swap) for key, item in value.items()}
        return pairs if any(pairs[key] is not item for key, item in value.items()) else value
    return swap(value)
