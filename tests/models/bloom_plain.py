"""Bloom with split projections and the residual added by the block: the other side's sublayers return it added."""

from __future__ import annotations

import math

import torch
from torch import nn

TRUTH = {
    "embed": "transformer.word_embeddings",
    "embed_norm": "transformer.word_embeddings_layernorm",
    "units.{i}": "transformer.h.{i}",
    "units.{i}.pre_attention": "transformer.h.{i}.input_layernorm",
    "units.{i}.attention": "transformer.h.{i}.self_attention",
    ("units.{i}.attention.q", "units.{i}.attention.k", "units.{i}.attention.v"): (
        "transformer.h.{i}.self_attention.query_key_value"
    ),
    "units.{i}.attention.o": "transformer.h.{i}.self_attention.dense",
    "units.{i}.pre_mlp": "transformer.h.{i}.post_attention_layernorm",
    "units.{i}.mlp": "transformer.h.{i}.mlp",
    "units.{i}.mlp.up": "transformer.h.{i}.mlp.dense_h_to_4h",
    "units.{i}.mlp.gelu": "transformer.h.{i}.mlp.gelu_impl",
    "units.{i}.mlp.down": "transformer.h.{i}.mlp.dense_4h_to_h",
    "last_norm": "transformer.ln_f",
    "logits": "lm_head",
}


class Gelu(nn.Module):
    def forward(self, x):
        return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x, bias):
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        weights = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias).float().softmax(-1).to(x.dtype)
        return self.o((weights @ v).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.gelu, self.down = nn.Linear(width, 4 * width), Gelu(), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.down(self.gelu(self.up(x)))


class Unit(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_epsilon
        self.pre_attention, self.pre_mlp = nn.LayerNorm(width, eps=eps), nn.LayerNorm(width, eps=eps)
        self.attention, self.mlp = Attention(width, config.n_head), MLP(width)

    def forward(self, x, bias):
        x = x + self.attention(self.pre_attention(x), bias)
        return x + self.mlp(self.pre_mlp(x))


class BloomPlain(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_epsilon
        self.embed = nn.Embedding(config.vocab_size, width)
        self.embed_norm = nn.LayerNorm(width, eps=eps)
        self.units = nn.ModuleList(Unit(config) for _ in range(layers))
        self.last_norm = nn.LayerNorm(width, eps=eps)
        self.logits = nn.Linear(width, config.vocab_size, bias=False)
        self.heads = config.n_head

    def forward(self, tokens):
        x = self.embed_norm(self.embed(tokens))
        length = tokens.shape[1]
        slopes = 2.0 ** (-8.0 * torch.arange(1, self.heads + 1) / self.heads)
        bias = slopes[:, None, None] * torch.arange(length)
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        bias = bias.to(x.dtype).masked_fill(hidden, torch.finfo(x.dtype).min)
        for unit in self.units:
            x = unit(x, bias)
        return self.logits(self.last_norm(x))

    @torch.no_grad()
    def copy_from(self, other, layers: list[int]) -> None:
        """Take the weights of a BloomForCausalLM, whose fused projection holds q, k and v of a head together."""
        body = other.transformer
        pairs = [
            (self.embed, body.word_embeddings), (self.embed_norm, body.word_embeddings_layernorm),
            (self.last_norm, body.ln_f), (self.logits, other.lm_head),
        ]  # fmt: skip
        for mine, theirs in zip(self.units, (body.h[at] for at in layers), strict=True):
            fused = theirs.self_attention.query_key_value
            parts = (mine.attention.q, mine.attention.k, mine.attention.v)
            weight = fused.weight.unflatten(0, (self.heads, 3, -1))
            bias = fused.bias.unflatten(0, (self.heads, 3, -1))
            for at, part in enumerate(parts):
                part.weight.copy_(weight[:, at].flatten(0, 1))
                part.bias.copy_(bias[:, at].flatten())
            pairs += [
                (mine.pre_attention, theirs.input_layernorm), (mine.attention.o, theirs.self_attention.dense),
                (mine.pre_mlp, theirs.post_attention_layernorm), (mine.mlp.up, theirs.mlp.dense_h_to_4h),
                (mine.mlp.down, theirs.mlp.dense_4h_to_h),
            ]  # fmt: skip
        for layer, source in pairs:
            layer.load_state_dict(source.state_dict())
