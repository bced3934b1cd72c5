"""Weights of one implementation written into another; what was written where is the truth about their layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Rules = Sequence[tuple[str, str]]


@dataclass
class Made:
    """Two models with equal weights, and how each is called."""

    target: nn.Module
    golden: nn.Module
    call_target: Callable[[nn.Module], Tensor]
    call_golden: Callable[[nn.Module], Tensor]
    layers: dict[str, set[str]] = field(default_factory=dict)
    """Path of a target layer -> the golden layers that hold its weights."""


def randomise(model: nn.Module) -> nn.Module:
    """Other values in every parameter and buffer, small enough for every depth."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if not value.is_floating_point():
                continue
            noise = torch.randn(value.shape, generator=generator)
            if "running_var" in name or (value.dim() == 1 and name.endswith("weight")):
                value.copy_(1 + 0.1 * noise.abs())
            elif not re.search(r"inv_freq|rope|\.cos|\.sin|theta|cache", name):
                value.copy_(noise / max(1, value[0].numel()) ** 0.5 if value.dim() > 1 else 0.1 * noise)
    return model.eval()


def in_order(target: nn.Module, golden: nn.Module) -> dict[str, set[str]]:
    """Copy weights that both models register in one order and size: a linear layer may be a convolution."""
    mine, theirs = target.state_dict(), golden.state_dict()
    pairs = list(zip(mine.items(), theirs.items(), strict=True))
    layers: dict[str, set[str]] = {}
    for (name, value), (other, source) in pairs:
        if value.numel() != source.numel():
            raise ValueError(f"{name} {tuple(value.shape)} is not {other} {tuple(source.shape)}")
        with torch.no_grad():
            value.copy_(source.reshape(value.shape))
        layers.setdefault(owner(name), set()).add(owner(other))
    return layers


def by_rules(target: nn.Module, golden: nn.Module, rules: Rules, skip: str = "$^") -> dict[str, set[str]]:
    """Copy golden weights under names that regular expressions give.

    All rules are applied in turn. A name that ends in ``@1/3`` is the second of three parts, joined along the first
    axis; one that ends in ``@T`` is stored the other way round; names that match ``skip`` have no counterpart.
    """
    mine = target.state_dict()
    parts: dict[str, dict[int, tuple[str, Tensor]]] = {}
    for other, source in golden.state_dict().items():
        if re.search(skip, other):
            continue
        name = other
        for pattern, text in rules:
            name = re.sub(pattern, text, name)
        name, _, how = name.partition("@")
        if name not in mine:
            raise ValueError(f"{other} became {name}, which the target has not")
        value = source.t() if how == "T" else source
        parts.setdefault(name, {})[int(how[0]) if "/" in how else 0] = (other, value)
    layers: dict[str, set[str]] = {}
    for name, found in parts.items():
        joined = torch.cat([found[at][1] for at in sorted(found)]) if len(found) > 1 else found[0][1]
        with torch.no_grad():
            mine[name].copy_(joined.reshape(mine[name].shape))
        layers.setdefault(owner(name), set()).update(owner(other) for other, _ in found.values())
    left = [
        name for name, value in mine.items()
        if name not in parts and value.is_floating_point() and not re.search(skip, name)
    ]  # fmt: skip
    if left:
        raise ValueError(f"not written: {left[:5]}")
    return layers


def owner(name: str) -> str:
    """The path of the module that holds a parameter."""
    return name.rpartition(".")[0]


def plain(output: Any) -> Tensor:
    """The tensor in what a model returns."""
    if isinstance(output, Tensor):
        return output
    for name in ("logits", "last_hidden_state", "sample"):
        if getattr(output, name, None) is not None:
            return getattr(output, name)  # type: ignore[no-any-return]
    return plain(output[0])
