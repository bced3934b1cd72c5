"""GPT-2 with split, untransposed projections, a Sequential MLP and pre-norm blocks under other names."""

from __future__ import annotations

import math

import torch
from torch import nn

TRUTH = {
    "embed.tokens": "transformer.wte",
    "embed.positions": "transformer.wpe",
    "blocks.{i}": "transformer.h.{i}",
    "blocks.{i}.norm_a": "transformer.h.{i}.ln_1",
    "blocks.{i}.mixer": "transformer.h.{i}.attn",
    ("blocks.{i}.mixer.query", "blocks.{i}.mixer.key", "blocks.{i}.mixer.value"): "transformer.h.{i}.attn.c_attn",
    "blocks.{i}.mixer.merge": "transformer.h.{i}.attn.c_proj",
    "blocks.{i}.norm_b": "transformer.h.{i}.ln_2",
    "blocks.{i}.feed": "transformer.h.{i}.mlp",
    "blocks.{i}.feed.0": "transformer.h.{i}.mlp.c_fc",
    "blocks.{i}.feed.1": "transformer.h.{i}.mlp.act",
    "blocks.{i}.feed.2": "transformer.h.{i}.mlp.c_proj",
    "norm_out": "transformer.ln_f",
    "to_logits": "lm_head",
}


class TanhGELU(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class Mixer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.merge = nn.Linear(width, width)

    def forward(self, x, hidden):
        layers = self.query, self.key, self.value
        parts = [layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in layers]
        weights = torch.einsum("bhqd,bhkd->bhqk", parts[0], parts[1]) / math.sqrt(parts[0].shape[-1])
        weights = weights.masked_fill(hidden, torch.finfo(x.dtype).min).softmax(-1)
        return self.merge(torch.einsum("bhqk,bhkd->bhqd", weights, parts[2]).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_a, self.norm_b = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixer = Mixer(width, heads)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), TanhGELU(), nn.Linear(4 * width, width))

    def forward(self, x, hidden):
        x = self.mixer(self.norm_a(x), hidden) + x
        return self.feed(self.norm_b(x)) + x


class Embed(nn.Module):
    def __init__(self, vocabulary: int, places: int, width: int) -> None:
        super().__init__()
        self.positions = nn.Embedding(places, width)
        self.tokens = nn.Embedding(vocabulary, width)

    def forward(self, tokens):
        return self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1])[None])


class GPTSplit(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        self.embed = Embed(config.vocab_size, config.n_positions, config.n_embd)
        self.blocks = nn.ModuleList(Block(config.n_embd, config.n_head) for _ in range(layers))
        self.norm_out = nn.LayerNorm(config.n_embd)
        self.to_logits = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    def forward(self, tokens):
        hidden = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, hidden)
        return self.to_logits(self.norm_out(x))

    @torch.no_grad()
    def copy_from(self, other, layers: list[int]) -> None:
        """Take the weights of a GPT2LMHeadModel."""
        body = other.transformer
        self.embed.tokens.weight.copy_(body.wte.weight)
        self.embed.positions.weight.copy_(body.wpe.weight)
        self.to_logits.weight.copy_(other.lm_head.weight)
        self.norm_out.load_state_dict(body.ln_f.state_dict())
        for mine, theirs in zip(self.blocks, (body.h[at] for at in layers), strict=True):
            mine.norm_a.load_state_dict(theirs.ln_1.state_dict())
            mine.norm_b.load_state_dict(theirs.ln_2.state_dict())
            parts = (mine.mixer.query, mine.mixer.key, mine.mixer.value)
            weights, biases = theirs.attn.c_attn.weight.chunk(3, dim=1), theirs.attn.c_attn.bias.chunk(3)
            for part, weight, bias in zip(parts, weights, biases, strict=True):
                part.weight.copy_(weight.T)
                part.bias.copy_(bias)
            for layer, source in (
                (mine.mixer.merge, theirs.attn.c_proj),
                (mine.feed[0], theirs.mlp.c_fc),
                (mine.feed[2], theirs.mlp.c_proj),
            ):
                layer.weight.copy_(source.weight.T)
                layer.bias.copy_(source.bias)
