"""The same generator by steps: a linear seed, blocks that grow, blocks that refine, activations as functions."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

TRUTH = {
    "seed": "net.0",  # a transposed convolution of one point is a linear map
    "seed_norm": "net.1",
    ":relu": "net.2",
    "growing.0.up": "net.3",
    "growing.0.level": "net.4",
    "growing.0:relu": "net.5",
    "growing.1.up": "net.6",
    "growing.1.level": "net.7",
    "growing.1:relu": "net.8",
    "refining.{i}.filter": "net.{conv}",
    "refining.{i}.level": "net.{norm}",
    "refining.{i}:leaky_relu": "net.{act}",
    "paint": "net.21",
    ":tanh": "net.22",
}


class Grow(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(width, width // 2, 4, 2, 1, bias=False)
        self.level = nn.BatchNorm2d(width // 2)

    def forward(self, x):
        return F.relu(self.level(self.up(x)))


class Refine(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.filter, self.level = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x):
        return F.leaky_relu(self.level(self.filter(x)), 0.2)


class GanGrown(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        width = config.width
        self.seed, self.seed_norm = nn.Linear(config.latent, 4 * width * 16, bias=False), nn.BatchNorm2d(4 * width)
        self.growing = nn.ModuleList([Grow(4 * width), Grow(2 * width)])
        self.refining = nn.ModuleList(Refine(width) for _ in range(layers))
        self.paint = nn.ConvTranspose2d(width, 3, 4, 2, 1)

    def forward(self, latent):
        x = F.relu(self.seed_norm(self.seed(latent).unflatten(-1, (-1, 4, 4))))
        for block in (*self.growing, *self.refining):
            x = block(x)
        return torch.tanh(self.paint(x))

    @torch.no_grad()
    def copy_from(self, other, layers: list[int]) -> None:
        """Take the weights of a GanFlat; ``layers`` are its refining steps."""
        net = other.net
        self.seed.weight.copy_(net[0].weight.flatten(1).T)
        pairs = [(self.seed_norm, net[1]), (self.paint, net[21])]
        for at, block in enumerate(self.growing):
            pairs += [(block.up, net[3 + 3 * at]), (block.level, net[4 + 3 * at])]
        for block, at in zip(self.refining, layers, strict=True):
            pairs += [(block.filter, net[9 + 3 * at]), (block.level, net[10 + 3 * at])]
        for layer, source in pairs:
            layer.load_state_dict(source.state_dict())
