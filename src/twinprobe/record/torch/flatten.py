"""Tensors inside nested arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

_DEPTH_LIMIT = 400
_tensor_type, _parameter_type = torch.Tensor, torch.nn.Parameter
_SCALARS = frozenset({int, float, bool, str, type(None)})


def tensors_in(value: Any, found: list[torch.Tensor], depth: int = 0) -> list[torch.Tensor]:
    """Append every tensor inside ``value``, in the order in which it is recorded."""
    kind = type(value)
    if kind is _tensor_type or kind is _parameter_type:
        found.append(value)
    elif kind in _SCALARS:
        return found
    elif isinstance(value, torch.Tensor):
        found.append(value)
    elif depth < _DEPTH_LIMIT:
        if isinstance(value, list | tuple):
            for item in value:
                tensors_in(item, found, depth + 1)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            for field in dataclasses.fields(value):
                tensors_in(getattr(value, field.name, None), found, depth + 1)
        elif isinstance(value, Mapping):
            for item in value.values():
                tensors_in(item, found, depth + 1)
    return found


def differentiable(value: Any, found: list[torch.Tensor]) -> list[torch.Tensor]:
    """Those that could carry a gradient by their element type."""
    return [one for one in tensors_in(value, found) if one.is_floating_point() or one.is_complex()]
