"""Small PyTorch models, each in several variants, for comparing one with the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class Residual(nn.Module):
    """Two linear layers and a residual; ``change`` is applied between them."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor] | None = None, width: int = 12) -> None:
        super().__init__()
        self.linear1 = nn.Linear(width, width)
        self.linear2 = nn.Linear(width, 5)
        self.act = nn.ReLU()
        self.change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.act(self.linear1(x) + x)
        if self.change is not None:
            h = self.change(h)
        return self.linear2(h)


class Branches(nn.Module):
    """Two branches from one tensor; ``hook`` is registered on the output of the left one."""

    def __init__(self, hook: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 6)
        self.left = nn.Linear(6, 4)
        self.right = nn.Linear(6, 4)
        self.hook = hook

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        left, right = self.left(h), self.right(h)
        if self.hook is not None:
            left.register_hook(self.hook)
        return left * 2 + right


class Chain(nn.Module):
    """Layers one after the other; ``at`` says behind which one ``change`` comes in."""

    def __init__(self, count: int = 6, at: int = -1, change: Any = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(count)])
        self.at, self.change = at, change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for place, layer in enumerate(self.layers):
            x = torch.tanh(layer(x))
            if place == self.at:
                x = self.change(x)
        return x


class CalledInOtherOrder(nn.Module):
    def __init__(self, swapped: bool) -> None:
        super().__init__()
        self.one = nn.Linear(6, 6)
        self.two = nn.Linear(6, 6)
        self.swapped = swapped

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.swapped:
            second = self.two(x)
            return self.one(x) + second
        return self.one(x) + self.two(x)


class Shared(nn.Module):
    """One layer called twice, another between."""

    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Linear(6, 6)
        self.other = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.again(self.other(self.again(x)))


class ManyOutputs(nn.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(6, width) for width in (2, 3, 4)])
        self.scale = scale

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> list[torch.Tensor]:
        found = [head(x) for head in self.heads]
        if y is not None:
            found.append(self.heads[0](y) * self.scale)
        return found


class Activated(nn.Module):
    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.linear1 = nn.Linear(6, 6)
        self.relu = nn.ReLU(inplace=inplace)
        self.linear2 = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear2(self.relu(self.linear1(x)))


class ByFunction(nn.Module):
    """What Activated does, with a function in the place of the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear1 = nn.Linear(6, 6)
        self.linear2 = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear2(F.relu(self.linear1(x)))


class Nothing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Wrapped(nn.Module):
    """What Activated does, wrapped and named in another way, with layers that do nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.nop = Nothing()
        self.body = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Sequential(nn.Linear(6, 6)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self.nop(x))


def numbers(*shape: int, seed: int = 1) -> torch.Tensor:
    """The same numbers every time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
