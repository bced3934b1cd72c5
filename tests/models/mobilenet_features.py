"""MobileNetV2 as one numbered list of features, in which a convolution, its norm and ReLU6 are a Sequential."""

from __future__ import annotations

import torch
from torch import nn

_BLOCK, _THEIRS = "features.{f}", "mobilenet_v2.layer.{i}"
_STEM = "mobilenet_v2.conv_stem"


def _unit(mine: str, theirs: str) -> dict[str, str]:
    """A convolution with norm and activation."""
    parts = ("convolution", "normalization", "activation")
    return {mine: theirs, **{f"{mine}.{at}": f"{theirs}.{part}" for at, part in enumerate(parts)}}


TRUTH = {
    "features": "mobilenet_v2",  # both return the last map of features; the other one's pooler is its own step
    **_unit("features.0", f"{_STEM}.first_conv"),
    **_unit("features.1.conv.0", f"{_STEM}.conv_3x3"),
    "features.1.conv.1": f"{_STEM}.reduce_1x1.convolution",
    "features.1.conv.2": f"{_STEM}.reduce_1x1.normalization",
    _BLOCK: _THEIRS,
    **_unit(f"{_BLOCK}.conv.0", f"{_THEIRS}.expand_1x1"),
    **_unit(f"{_BLOCK}.conv.1", f"{_THEIRS}.conv_3x3"),
    f"{_BLOCK}.conv.2": f"{_THEIRS}.reduce_1x1.convolution",
    f"{_BLOCK}.conv.3": f"{_THEIRS}.reduce_1x1.normalization",
    **_unit("features.{last}", "mobilenet_v2.conv_1x1"),
    ":adaptive_avg_pool2d": "mobilenet_v2.pooler",
    "classifier.0": "dropout",
    "classifier.1": "classifier",
}

# expansion, channels, how many, stride of the first
PLAN = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def _rounded(channels: float) -> int:
    """The nearest multiple of eight that is at most a tenth less."""
    found = max(8, int(channels + 4) // 8 * 8)
    return found + 8 if found < 0.9 * channels else found


class ConvNormActivation(nn.Sequential):
    def __init__(self, width_in: int, width: int, size: int, stride: int = 1, groups: int = 1) -> None:
        convolution = nn.Conv2d(width_in, width, size, stride, size // 2, groups=groups, bias=False)
        super().__init__(convolution, nn.BatchNorm2d(width, eps=1e-3), nn.ReLU6())


class InvertedResidual(nn.Module):
    def __init__(self, width_in: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = _rounded(width_in * expansion)
        steps: list[nn.Module] = [ConvNormActivation(width_in, inner, 1)] if expansion != 1 else []
        steps += [
            ConvNormActivation(inner, inner, 3, stride, groups=inner),
            nn.Conv2d(inner, width, 1, bias=False),
            nn.BatchNorm2d(width, eps=1e-3),
        ]
        self.conv = nn.Sequential(*steps)
        self.adds = stride == 1 and width_in == width

    def forward(self, x):
        return x + self.conv(x) if self.adds else self.conv(x)


class MobileNetFeatures(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        factor = config.depth_multiplier
        width = _rounded(32 * factor)
        features: list[nn.Module] = [ConvNormActivation(3, width, 3, 2)]
        for expansion, channels, count, stride in PLAN:
            for at in range(count):
                size = _rounded(channels * factor)
                features.append(InvertedResidual(width, size, stride if at == 0 else 1, expansion))
                width = size
        if layers < 4:
            del features[3]  # the second block of 24 channels adds to what it is given: without it all shapes fit
        features.append(ConvNormActivation(width, 1280, 1))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, config.num_labels))

    def forward(self, image):
        pooled = nn.functional.adaptive_avg_pool2d(self.features(image), (1, 1))
        return self.classifier(torch.flatten(pooled, 1))

    @torch.no_grad()
    def copy_from(self, other, layers: list[int]) -> None:
        """Take the weights of a MobileNetV2ForImageClassification."""
        source, stem = other.mobilenet_v2, other.mobilenet_v2.conv_stem
        pairs = [(self.features[0], stem.first_conv), (self.features[-1], source.conv_1x1)]
        first = self.features[1].conv
        pairs += [(first[0], stem.conv_3x3), (first[1:], stem.reduce_1x1)]
        blocks = [block for at, block in enumerate(source.layer) if at >= 4 or at in layers]
        for mine, theirs in zip(self.features[2:-1], blocks, strict=True):
            steps = theirs.expand_1x1, theirs.conv_3x3, theirs.reduce_1x1
            pairs += zip((mine.conv[0], mine.conv[1], mine.conv[2:]), steps, strict=True)
        self.classifier[1].load_state_dict(other.classifier.state_dict())
        for mine, theirs in pairs:
            mine[0].load_state_dict(theirs.convolution.state_dict())
            mine[1].load_state_dict(theirs.normalization.state_dict())
