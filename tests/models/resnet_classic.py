"""ResNet with the names of the classic image library; the shortcut runs before the main path, ReLU is a function."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

# Blocks by (stage, block); {s} counts stages of this model from 1 and of the other from 0.
TRUTH = {
    "conv1": "resnet.embedder.embedder.convolution",
    "bn1": "resnet.embedder.embedder.normalization",
    ":relu": "resnet.embedder.embedder.activation",
    "maxpool": "resnet.embedder.pooler",
    "layer{s1}": "resnet.encoder.stages.{s}",
    "layer{s1}.{i}": "resnet.encoder.stages.{s}.layers.{i}",
    "layer{s1}.{i}.conv1": "resnet.encoder.stages.{s}.layers.{i}.layer.0.convolution",
    "layer{s1}.{i}.bn1": "resnet.encoder.stages.{s}.layers.{i}.layer.0.normalization",
    "layer{s1}.{i}:relu": (
        "resnet.encoder.stages.{s}.layers.{i}.layer.0.activation", "resnet.encoder.stages.{s}.layers.{i}.activation",
    ),
    "layer{s1}.{i}.conv2": "resnet.encoder.stages.{s}.layers.{i}.layer.1.convolution",
    "layer{s1}.{i}.bn2": "resnet.encoder.stages.{s}.layers.{i}.layer.1.normalization",
    "layer{s1}.{i}.downsample": "resnet.encoder.stages.{s}.layers.{i}.shortcut",
    "layer{s1}.{i}.downsample.0": "resnet.encoder.stages.{s}.layers.{i}.shortcut.convolution",
    "layer{s1}.{i}.downsample.1": "resnet.encoder.stages.{s}.layers.{i}.shortcut.normalization",
    "avgpool": "resnet.pooler",
    "fc": "classifier.1",
    ":flatten": "classifier.0",
}  # fmt: skip


class BasicBlock(nn.Module):
    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = None
        if stride != 1 or width_in != width:
            self.downsample = nn.Sequential(nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + identity)


class ResNetClassic(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(config.num_channels, config.embedding_size, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(config.embedding_size)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        width = config.embedding_size
        depths = [*config.depths[:-1], layers]
        for at, (size, depth) in enumerate(zip(config.hidden_sizes, depths, strict=True)):
            blocks = []
            for place in range(depth):
                blocks.append(BasicBlock(width, size, 2 if at and not place else 1))
                width = size
            setattr(self, f"layer{at + 1}", nn.Sequential(*blocks))
        self.stages = len(depths)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(width, config.num_labels)

    def forward(self, x):
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        for at in range(self.stages):
            x = getattr(self, f"layer{at + 1}")(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))

    @torch.no_grad()
    def copy_from(self, other, layers: list[int]) -> None:
        """Take the weights of a ResNetForImageClassification; ``layers`` are the blocks of its last stage."""
        first = other.resnet.embedder.embedder
        pairs = [(self.conv1, first.convolution), (self.bn1, first.normalization), (self.fc, other.classifier[1])]
        stages = other.resnet.encoder.stages
        for at, stage in enumerate(stages):
            chosen = layers if at == len(stages) - 1 else range(len(stage.layers))
            for mine, theirs in zip(getattr(self, f"layer{at + 1}"), (stage.layers[i] for i in chosen), strict=True):
                pairs += [
                    (mine.conv1, theirs.layer[0].convolution), (mine.bn1, theirs.layer[0].normalization),
                    (mine.conv2, theirs.layer[1].convolution), (mine.bn2, theirs.layer[1].normalization),
                ]  # fmt: skip
                if mine.downsample is not None:
                    pairs.append((mine.downsample[0], theirs.shortcut.convolution))
                    pairs.append((mine.downsample[1], theirs.shortcut.normalization))
        for layer, source in pairs:
            layer.load_state_dict(source.state_dict())
