"""The same U-Net by levels: one pool for all, lists of encoders, upsamplings and decoders, activations as functions."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


def _pair(mine: str, theirs: str) -> dict[str, object]:
    """Two convolutions with their norms; both ReLUs are calls of one name."""
    return {
        mine: theirs,
        f"{mine}.conv_a": f"{theirs}.double_conv.0",
        f"{mine}.norm_a": f"{theirs}.double_conv.1",
        f"{mine}:relu": (f"{theirs}.double_conv.2", f"{theirs}.double_conv.5"),
        f"{mine}.conv_b": f"{theirs}.double_conv.3",
        f"{mine}.norm_b": f"{theirs}.double_conv.4",
    }


TRUTH = {
    **_pair("encoders.0", "inc"),
    "shrink": ("down1.maxpool_conv.0", "down2.maxpool_conv.0"),
    **_pair("encoders.1", "down1.maxpool_conv.1"),
    **_pair("encoders.2", "down2.maxpool_conv.1"),
    "bottleneck.{i}": "mid.{i}",
    "bottleneck.{i}.filter": "mid.{i}.conv",
    "bottleneck.{i}.scale": "mid.{i}.bn",
    "bottleneck.{i}:relu": "mid.{i}.relu",
    "upsamplers.0": "up1.up",
    **_pair("decoders.0", "up1.conv"),
    "upsamplers.1": "up2.up",
    **_pair("decoders.1", "up2.conv"),
    "segmentation_head": "outc",
}


class Level(nn.Module):
    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.conv_a = nn.Conv2d(width_in, width, 3, padding="same", bias=False)
        self.norm_a = nn.BatchNorm2d(width)
        self.conv_b = nn.Conv2d(width, width, 3, padding="same", bias=False)
        self.norm_b = nn.BatchNorm2d(width)

    def forward(self, x):
        return F.relu(self.norm_b(self.conv_b(F.relu(self.norm_a(self.conv_a(x))))))


class Unit(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.filter, self.scale = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)

    def forward(self, x):
        return F.relu(self.scale(self.filter(x))) + x


class UNetLevels(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        one, two, four = config.width, 2 * config.width, 4 * config.width
        self.encoders = nn.ModuleList([Level(3, one), Level(one, two), Level(two, four)])
        self.shrink = nn.MaxPool2d(2)
        self.bottleneck = nn.Sequential(*(Unit(four) for _ in range(layers)))
        self.upsamplers = nn.ModuleList([nn.ConvTranspose2d(four, two, 2, 2), nn.ConvTranspose2d(two, one, 2, 2)])
        self.decoders = nn.ModuleList([Level(four, two), Level(two, one)])
        self.segmentation_head = nn.Conv2d(one, config.labels, 1)

    def forward(self, image):
        kept, x = [], image
        for at, encoder in enumerate(self.encoders):
            x = encoder(x if at == 0 else self.shrink(x))
            kept.append(x)
        x = self.bottleneck(x)
        for upsampler, decoder, skipped in zip(self.upsamplers, self.decoders, kept[-2::-1], strict=True):
            x = decoder(torch.cat([skipped, upsampler(x)], dim=1))
        return self.segmentation_head(x)

    @torch.no_grad()
    def copy_from(self, other, layers: list[int]) -> None:
        """Take the weights of a UNetDouble; ``layers`` are the residual units at its bottom."""
        downs = other.inc, other.down1.maxpool_conv[1], other.down2.maxpool_conv[1]
        levels = zip([*self.encoders, *self.decoders], [*downs, other.up1.conv, other.up2.conv], strict=True)
        pairs = [
            (self.upsamplers[0], other.up1.up), (self.upsamplers[1], other.up2.up),
            (self.segmentation_head, other.outc),
        ]  # fmt: skip
        for mine, theirs in levels:
            steps = theirs.double_conv
            pairs += [
                (mine.conv_a, steps[0]), (mine.norm_a, steps[1]), (mine.conv_b, steps[3]), (mine.norm_b, steps[4]),
            ]  # fmt: skip
        for mine, theirs in zip(self.bottleneck, (other.mid[at] for at in layers), strict=True):
            pairs += [(mine.filter, theirs.conv), (mine.scale, theirs.bn)]
        for layer, source in pairs:
            layer.load_state_dict(source.state_dict())
