"""U-Net of double convolutions with a stack of residual units at its bottom: the first of two writings."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn


class DoubleConv(nn.Module):
    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.double_conv = nn.Sequential(
            nn.Conv2d(width_in, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        )  # fmt: skip

    def forward(self, x):
        return self.double_conv(x)


class Down(nn.Module):
    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), DoubleConv(width_in, width))

    def forward(self, x):
        return self.maxpool_conv(x)


class Up(nn.Module):
    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.up, self.conv = nn.ConvTranspose2d(width_in, width, 2, 2), DoubleConv(2 * width, width)

    def forward(self, x, skipped):
        return self.conv(torch.cat([skipped, self.up(x)], dim=1))


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()

    def forward(self, x):
        return x + self.relu(self.bn(self.conv(x)))


class UNetDouble(nn.Module):
    def __init__(self, width: int = 8, layers: int = 4) -> None:
        super().__init__()
        self.config = SimpleNamespace(width=width, labels=2)
        self.inc = DoubleConv(3, width)
        self.down1, self.down2 = Down(width, 2 * width), Down(2 * width, 4 * width)
        self.mid = nn.ModuleList(Residual(4 * width) for _ in range(layers))
        self.up1, self.up2 = Up(4 * width, 2 * width), Up(2 * width, width)
        self.outc = nn.Conv2d(width, 2, 1)

    def forward(self, x):
        first = self.inc(x)
        second = self.down1(first)
        x = self.down2(second)
        for residual in self.mid:
            x = residual(x)
        return self.outc(self.up2(self.up1(x, second), first))
