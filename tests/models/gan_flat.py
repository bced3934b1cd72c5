"""A generator of images as one flat list of transposed convolutions, norms and activations: the first of two."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn


class GanFlat(nn.Module):
    def __init__(self, width: int = 8, layers: int = 4) -> None:
        super().__init__()
        self.config = SimpleNamespace(width=width, latent=16)
        steps: list[nn.Module] = [
            nn.ConvTranspose2d(16, 4 * width, 4, bias=False),
            nn.BatchNorm2d(4 * width),
            nn.ReLU(),
        ]
        for given in (4 * width, 2 * width):
            made = given // 2
            steps += [nn.ConvTranspose2d(given, made, 4, 2, 1, bias=False), nn.BatchNorm2d(made), nn.ReLU()]
        for _ in range(layers):
            steps += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.LeakyReLU(0.2)]
        self.net = nn.Sequential(*steps, nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh())

    def forward(self, latent: torch.Tensor) -> torch.Tensor:
        return self.net(latent[:, :, None, None])
