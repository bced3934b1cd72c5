"""Small networks that the recording tests train."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Residual(nn.Module):
    """Dropout, in-place activations, an in-place residual sum, views, and a submodule called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.3)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.act(self.first(x))
        h = self.drop(h)
        h = self.norm(h)
        h += x
        h = h.view(-1, 4, 2).mul_(1.5).view(-1, 8)
        h = self.act(self.first(h))
        h = h + 1
        h[:, 0] = 0.0
        return self.last(h)


class Checkpointed(nn.Module):
    """A block that is computed again in backward."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.front = nn.Linear(8, 8)
        self.block = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.front(x)
        return x + checkpoint(self.block, x, use_reentrant=self.reentrant)


class Convolutional(nn.Module):
    """A residual network for small pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.body = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4))
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x.view(-1, 1, 2, 4).repeat_interleave(2, dim=2))
        out = self.body(x)
        out += x
        out = self.pool(torch.relu_(out))
        return self.head(torch.flatten(out.mean(dim=(2, 3)), 1))


def batch() -> torch.Tensor:
    """The same numbers every time."""
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(3))
