"""GPT-2 cut into two stages, sequence first, with the function forms of norm and head: few modules, other nesting."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

_LAYER = "stages.{s}.body.{i}"
# {s}/{i}: the stage and the layer in it, against the layer in the whole.
TRUTH = {
    "entry.word": "transformer.wte",
    "entry.place": "transformer.wpe",
    _LAYER: "transformer.h.{i}",
    f"{_LAYER}.attn_norm": "transformer.h.{i}.ln_1",
    f"{_LAYER}.attn": "transformer.h.{i}.attn",
    f"{_LAYER}.attn.in_proj": "transformer.h.{i}.attn.c_attn",
    f"{_LAYER}.attn.out_proj": "transformer.h.{i}.attn.c_proj",
    f"{_LAYER}.ffn_norm": "transformer.h.{i}.ln_2",
    f"{_LAYER}.lin1": "transformer.h.{i}.mlp.c_fc",
    f"{_LAYER}.lin2": "transformer.h.{i}.mlp.c_proj",
    f"{_LAYER}:gelu": "transformer.h.{i}.mlp.act",
    "final": "transformer.ln_f",
    ":linear": "lm_head",
}


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj = nn.Linear(width, 3 * width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x):
        length, batch, width = x.shape
        packed = self.in_proj(x).view(length, batch, 3, self.heads, -1).permute(2, 1, 3, 0, 4)
        out = F.scaled_dot_product_attention(*packed, is_causal=True)
        return self.out_proj(out.permute(2, 0, 1, 3).reshape(length, batch, width))


class Unit(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attn_norm = nn.LayerNorm(width)
        self.attn = SelfAttention(width, heads)
        self.ffn_norm = nn.LayerNorm(width)
        self.lin1 = nn.Linear(width, 4 * width)
        self.lin2 = nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attn(self.attn_norm(x))
        return x + self.lin2(F.gelu(self.lin1(self.ffn_norm(x)), approximate="tanh"))


class Stage(nn.Module):
    def __init__(self, units: list[Unit]) -> None:
        super().__init__()
        self.body = nn.ModuleList(units)

    def forward(self, x):
        for unit in self.body:
            x = unit(x)
        return x


class Entry(nn.Module):
    def __init__(self, vocabulary: int, places: int, width: int) -> None:
        super().__init__()
        self.word = nn.Embedding(vocabulary, width)
        self.place = nn.Embedding(places, width)

    def forward(self, tokens):
        return (self.word(tokens) + self.place(torch.arange(tokens.shape[1]))).transpose(0, 1)


class GPTStages(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        self.entry = Entry(config.vocab_size, config.n_positions, config.n_embd)
        units = [Unit(config.n_embd, config.n_head) for _ in range(layers)]
        half = (layers + 1) // 2
        self.stages = nn.ModuleList([Stage(units[:half]), Stage(units[half:])])
        self.final = nn.LayerNorm(config.n_embd)

    def forward(self, tokens):
        x = self.entry(tokens)
        for stage in self.stages:
            x = stage(x)
        return F.linear(self.final(x), self.entry.word.weight).transpose(0, 1)

    @torch.no_grad()
    def copy_from(self, other, layers: list[int]) -> None:
        """Take the weights of a GPT2LMHeadModel."""
        body = other.transformer
        self.entry.word.weight.copy_(body.wte.weight)
        self.entry.place.weight.copy_(body.wpe.weight)
        self.final.load_state_dict(body.ln_f.state_dict())
        units = [unit for stage in self.stages for unit in stage.body]
        for mine, theirs in zip(units, (body.h[at] for at in layers), strict=True):
            mine.attn_norm.load_state_dict(theirs.ln_1.state_dict())
            mine.ffn_norm.load_state_dict(theirs.ln_2.state_dict())
            for layer, source in (
                (mine.attn.in_proj, theirs.attn.c_attn),
                (mine.attn.out_proj, theirs.attn.c_proj),
                (mine.lin1, theirs.mlp.c_fc),
                (mine.lin2, theirs.mlp.c_proj),
            ):
                layer.weight.copy_(source.weight.T)
                layer.bias.copy_(source.bias)
