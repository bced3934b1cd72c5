"""RegNetY with convolutions and norms side by side in a block, linear layers to squeeze, and the shortcut run first."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

_BLOCK, _THEIRS = "trunk.{s}.{i}", "regnet.encoder.stages.{s}.layers.{i}"
_STEM = "regnet.embedder.embedder"  # in a wrapper that is its equal: of such the outer one counts, see docs/align.md
TRUTH = {
    "stem": "regnet.embedder",
    "stem.conv": f"{_STEM}.convolution",
    "stem.bn": f"{_STEM}.normalization",
    "stem:relu": f"{_STEM}.activation",
    "trunk": "regnet.encoder",
    "trunk.{s}": "regnet.encoder.stages.{s}",
    _BLOCK: _THEIRS,
    **{f"{_BLOCK}.{part}": f"{_THEIRS}.layer.{at}.convolution" for part, at in (("a", 0), ("b", 1), ("c", 3))},
    **{f"{_BLOCK}.bn_{part}": f"{_THEIRS}.layer.{at}.normalization" for part, at in (("a", 0), ("b", 1), ("c", 3))},
    f"{_BLOCK}:relu": (
        f"{_THEIRS}.layer.0.activation",
        f"{_THEIRS}.layer.1.activation",
        f"{_THEIRS}.activation",
    ),
    f"{_BLOCK}.excite": f"{_THEIRS}.layer.2",
    f"{_BLOCK}.excite:mean": f"{_THEIRS}.layer.2.pooler",
    f"{_BLOCK}.excite.down": f"{_THEIRS}.layer.2.attention.0",
    f"{_BLOCK}.excite:relu": f"{_THEIRS}.layer.2.attention.1",
    f"{_BLOCK}.excite.up": f"{_THEIRS}.layer.2.attention.2",
    f"{_BLOCK}.excite:sigmoid": f"{_THEIRS}.layer.2.attention.3",
    f"{_BLOCK}.side": f"{_THEIRS}.shortcut.convolution",
    f"{_BLOCK}.bn_side": f"{_THEIRS}.shortcut.normalization",
    ":mean": "regnet.pooler",
    "head": "classifier.1",
}


class Stem(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width)

    def forward(self, image):
        return F.relu(self.bn(self.conv(image)))


class Excite(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        scale = torch.sigmoid(self.up(F.relu(self.down(x.mean((2, 3))))))
        return x * scale[:, :, None, None]


class YBlock(nn.Module):
    def __init__(self, width_in: int, width: int, stride: int, group: int) -> None:
        super().__init__()
        self.a, self.bn_a = nn.Conv2d(width_in, width, 1, bias=False), nn.BatchNorm2d(width)
        self.b = nn.Conv2d(width, width, 3, stride, 1, groups=width // group, bias=False)
        self.bn_b = nn.BatchNorm2d(width)
        self.excite = Excite(width, round(width_in / 4))
        self.c, self.bn_c = nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width)
        self.sides = stride != 1 or width_in != width
        if self.sides:
            self.side, self.bn_side = nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width)

    def forward(self, x):
        kept = self.bn_side(self.side(x)) if self.sides else x
        x = F.relu(self.bn_a(self.a(x)))
        x = self.excite(F.relu(self.bn_b(self.b(x))))
        return F.relu(kept + self.bn_c(self.c(x)))


class RegNetTrunk(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        widths = (config.embedding_size, *config.hidden_sizes)
        depths = (*config.depths[:-1], layers)
        self.stem = Stem(widths[0])
        self.trunk = nn.Sequential()
        for width_in, width, depth in zip(widths[:-1], widths[1:], depths, strict=True):
            first = YBlock(width_in, width, 2, config.groups_width)
            rest = (YBlock(width, width, 1, config.groups_width) for _ in range(depth - 1))
            self.trunk.append(nn.Sequential(first, *rest))
        self.head = nn.Linear(widths[-1], config.num_labels)

    def forward(self, image):
        return self.head(self.trunk(self.stem(image)).mean((2, 3)))

    @torch.no_grad()
    def copy_from(self, other, layers: list[int]) -> None:
        """Take the weights of a RegNetForImageClassification; ``layers`` are those of its last stage."""
        stem, stages = other.regnet.embedder.embedder, other.regnet.encoder.stages
        pairs = [
            (self.stem.conv, stem.convolution), (self.stem.bn, stem.normalization), (self.head, other.classifier[1]),
        ]  # fmt: skip
        blocks = [*stages[0].layers, *(stages[1].layers[at] for at in layers)]
        for mine, theirs in zip([*self.trunk[0], *self.trunk[1]], blocks, strict=True):
            for name, at in (("a", 0), ("b", 1), ("c", 3)):
                pairs.append((getattr(mine, name), theirs.layer[at].convolution))
                pairs.append((getattr(mine, f"bn_{name}"), theirs.layer[at].normalization))
            if mine.sides:
                pairs += [(mine.side, theirs.shortcut.convolution), (mine.bn_side, theirs.shortcut.normalization)]
            squeeze = theirs.layer[2].attention
            for layer, source in ((mine.excite.down, squeeze[0]), (mine.excite.up, squeeze[2])):
                layer.weight.copy_(source.weight.flatten(1))
                layer.bias.copy_(source.bias)
        for layer, source in pairs:
            layer.load_state_dict(source.state_dict())
