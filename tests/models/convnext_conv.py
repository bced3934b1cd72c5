"""ConvNeXt, channels first throughout: its pointwise layers are 1x1 convolutions in a module of their own."""

from __future__ import annotations

import torch
from torch import nn

_BLOCK, _THEIRS = "stages.{s}.blocks.{i}", "convnext.encoder.stages.{s}.layers.{i}"
TRUTH = {
    "stem": "convnext.embeddings",
    "stem.0": "convnext.embeddings.patch_embeddings",
    "stem.1": "convnext.embeddings.layernorm",
    "stages": "convnext.encoder",
    "stages.{s}": "convnext.encoder.stages.{s}",
    "stages.{s}.downsample.0": "convnext.encoder.stages.{s}.downsampling_layer.0",
    "stages.{s}.downsample.1": "convnext.encoder.stages.{s}.downsampling_layer.1",
    _BLOCK: _THEIRS,
    f"{_BLOCK}.conv_dw": f"{_THEIRS}.dwconv",
    f"{_BLOCK}.norm": f"{_THEIRS}.layernorm",
    f"{_BLOCK}.mlp.fc1": f"{_THEIRS}.pwconv1",
    f"{_BLOCK}.mlp.act": f"{_THEIRS}.act",
    f"{_BLOCK}.mlp.fc2": f"{_THEIRS}.pwconv2",
    "head.norm": "convnext.layernorm",
    "head.fc": "classifier",
}


class LayerNorm2d(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x):
        spread, mean = torch.var_mean(x, dim=1, keepdim=True, unbiased=False)
        return (x - mean) * torch.rsqrt(spread + 1e-6) * self.weight[:, None, None] + self.bias[:, None, None]


class ConvMlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Conv2d(width, 4 * width, 1), nn.GELU(), nn.Conv2d(4 * width, width, 1)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class ConvBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv_dw = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.mlp = LayerNorm2d(width), ConvMlp(width)
        self.gamma = nn.Parameter(0.1 * torch.ones(width))

    def forward(self, x):
        return x + self.mlp(self.norm(self.conv_dw(x))) * self.gamma[:, None, None]


class Stage(nn.Module):
    def __init__(self, width_in: int, width: int, depth: int) -> None:
        super().__init__()
        steps = [] if width_in == width else [LayerNorm2d(width_in), nn.Conv2d(width_in, width, 2, 2)]
        self.downsample = nn.Sequential(*steps)
        self.blocks = nn.Sequential(*(ConvBlock(width) for _ in range(depth)))

    def forward(self, x):
        return self.blocks(self.downsample(x))


class Head(nn.Module):
    def __init__(self, width: int, labels: int) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(width, eps=1e-12), nn.Linear(width, labels)

    def forward(self, x):
        return self.fc(self.norm(x.mean((2, 3))))


class ConvNextConv(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        widths, depths = config.hidden_sizes, [*config.depths[:-1], layers]
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], config.patch_size, config.patch_size), LayerNorm2d(widths[0]))
        before = [widths[0], *widths[:-1]]
        self.stages = nn.Sequential(*(Stage(*sizes) for sizes in zip(before, widths, depths, strict=True)))
        self.head = Head(widths[-1], config.num_labels)

    def forward(self, image):
        return self.head(self.stages(self.stem(image)))

    @torch.no_grad()
    def copy_from(self, other, layers: list[int]) -> None:
        """Take the weights of a ConvNextForImageClassification; ``layers`` are the blocks of its last stage."""
        source = other.convnext
        pairs = [
            (self.stem[0], source.embeddings.patch_embeddings), (self.stem[1], source.embeddings.layernorm),
            (self.head.norm, source.layernorm), (self.head.fc, other.classifier),
        ]  # fmt: skip
        for at, (stage, theirs) in enumerate(zip(self.stages, source.encoder.stages, strict=True)):
            pairs += zip(stage.downsample, theirs.downsampling_layer, strict=True)
            chosen = layers if at == len(self.stages) - 1 else range(len(theirs.layers))
            for block, layer in zip(stage.blocks, (theirs.layers[i] for i in chosen), strict=True):
                pairs += [(block.conv_dw, layer.dwconv), (block.norm, layer.layernorm)]
                block.gamma.copy_(layer.layer_scale_parameter)
                for mine, linear in ((block.mlp.fc1, layer.pwconv1), (block.mlp.fc2, layer.pwconv2)):
                    mine.weight.copy_(linear.weight[:, :, None, None])
                    mine.bias.copy_(linear.bias)
        for layer, source_layer in pairs:
            layer.load_state_dict(source_layer.state_dict())
