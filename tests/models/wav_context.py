"""Wav2Vec2 for CTC: convolutions, then a context of equal layers; its weight norm is folded in, dropout left away."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

_LAYER, _THEIRS = "context.layers.{i}", "wav2vec2.encoder.layers.{i}"
_SHELL, _POSITION = "wav2vec2.feature_extractor", "wav2vec2.encoder.pos_conv_embed"
TRUTH = {
    "shell": _SHELL,
    **{f"shell.{at}": f"{_SHELL}.conv_layers.{at}" for at in range(3)},
    **{f"shell.{at}.filter": f"{_SHELL}.conv_layers.{at}.conv" for at in range(3)},
    **{f"shell.{at}:gelu": f"{_SHELL}.conv_layers.{at}.activation" for at in range(3)},
    "shell.0.level": f"{_SHELL}.conv_layers.0.layer_norm",
    "bridge": "wav2vec2.feature_projection",
    "bridge.level": "wav2vec2.feature_projection.layer_norm",
    "bridge.lift": "wav2vec2.feature_projection.projection",
    "context": "wav2vec2.encoder",
    "context.position": _POSITION,
    "context.position.filter": f"{_POSITION}.conv",
    "context.position:gelu": f"{_POSITION}.activation",
    "context.level": "wav2vec2.encoder.layer_norm",
    _LAYER: _THEIRS,
    f"{_LAYER}.talk": f"{_THEIRS}.attention",
    f"{_LAYER}.talk.to_qkv": tuple(f"{_THEIRS}.attention.{part}_proj" for part in "qkv"),
    f"{_LAYER}.talk.to_out": f"{_THEIRS}.attention.out_proj",
    f"{_LAYER}.level_talk": f"{_THEIRS}.layer_norm",
    f"{_LAYER}.grow": f"{_THEIRS}.feed_forward.intermediate_dense",
    f"{_LAYER}:gelu": f"{_THEIRS}.feed_forward.intermediate_act_fn",
    f"{_LAYER}.shrink": f"{_THEIRS}.feed_forward.output_dense",
    f"{_LAYER}.level_feed": f"{_THEIRS}.final_layer_norm",
    "letters": "lm_head",
}


class Filter(nn.Module):
    def __init__(self, width_in: int, width: int, size: int, stride: int, *, levels: bool) -> None:
        super().__init__()
        self.filter = nn.Conv1d(width_in, width, size, stride, bias=False)
        self.level = nn.GroupNorm(width, width) if levels else None

    def forward(self, x):
        x = self.filter(x)
        return F.gelu(x if self.level is None else self.level(x))


class Bridge(nn.Module):
    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.level, self.lift = nn.LayerNorm(width_in), nn.Linear(width_in, width)

    def forward(self, x):
        return self.lift(self.level(x))


class Position(nn.Module):
    def __init__(self, width: int, size: int, groups: int) -> None:
        super().__init__()
        self.size, self.filter = size, nn.Conv1d(width, width, size, groups=groups)

    def forward(self, x):
        return F.gelu(self.filter(F.pad(x.mT, (self.size // 2, (self.size - 1) // 2)))).mT


class Talk(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.to_qkv, self.to_out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.to_qkv(x).chunk(3, dim=-1))
        weights = (q @ k.mT * q.shape[-1] ** -0.5).float().softmax(-1).to(x.dtype)
        return self.to_out((weights @ v).transpose(1, 2).flatten(2))


class ContextLayer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.talk, self.level_talk, self.level_feed = Talk(width, heads), nn.LayerNorm(width), nn.LayerNorm(width)
        self.grow, self.shrink = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        x = self.level_talk(x + self.talk(x))
        return self.level_feed(x + self.shrink(F.gelu(self.grow(x))))


class Context(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        width = config.hidden_size
        self.position = Position(width, config.num_conv_pos_embeddings, config.num_conv_pos_embedding_groups)
        self.level = nn.LayerNorm(width)
        sizes = width, config.num_attention_heads, config.intermediate_size
        self.layers = nn.ModuleList(ContextLayer(*sizes) for _ in range(layers))

    def forward(self, x):
        x = self.level(x + self.position(x))
        for layer in self.layers:
            x = layer(x)
        return x


class WavContext(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        widths = (1, *config.conv_dim)
        plan = zip(widths[:-1], widths[1:], config.conv_kernel, config.conv_stride, strict=True)
        self.shell = nn.Sequential(*(Filter(*sizes, levels=at == 0) for at, sizes in enumerate(plan)))
        self.bridge, self.context = Bridge(widths[-1], config.hidden_size), Context(config, layers)
        self.letters = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, sound):
        return self.letters(self.context(self.bridge(self.shell(sound.unsqueeze(1)).mT)))

    @torch.no_grad()
    def copy_from(self, other, layers: list[int]) -> None:
        """Take the weights of a Wav2Vec2ForCTC."""
        source = other.wav2vec2
        shell, bridge, context = source.feature_extractor.conv_layers, source.feature_projection, source.encoder
        pairs = [(mine.filter, theirs.conv) for mine, theirs in zip(self.shell, shell, strict=True)]
        pairs += [
            (self.shell[0].level, shell[0].layer_norm), (self.bridge.level, bridge.layer_norm),
            (self.bridge.lift, bridge.projection), (self.context.position.filter, context.pos_conv_embed.conv),
            (self.context.level, context.layer_norm), (self.letters, other.lm_head),
        ]  # fmt: skip
        for mine, theirs in zip(self.context.layers, (context.layers[at] for at in layers), strict=True):
            attention, feed = theirs.attention, theirs.feed_forward
            parts = attention.q_proj, attention.k_proj, attention.v_proj
            mine.talk.to_qkv.weight.copy_(torch.cat([part.weight for part in parts]))
            mine.talk.to_qkv.bias.copy_(torch.cat([part.bias for part in parts]))
            pairs += [
                (mine.talk.to_out, attention.out_proj), (mine.level_talk, theirs.layer_norm),
                (mine.grow, feed.intermediate_dense), (mine.shrink, feed.output_dense),
                (mine.level_feed, theirs.final_layer_norm),
            ]  # fmt: skip
        for layer, other_layer in pairs:
            layer.weight.copy_(other_layer.weight)
            if layer.bias is not None:
                layer.bias.copy_(other_layer.bias)
