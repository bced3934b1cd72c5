"""Gemma with one projection for q, k, v, one for gate and up, and norms whose weights have the 1 already added."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from models.rotary import angles, turn

_FLOOR, _THEIRS = "tower.{i}", "model.layers.{i}"
TRUTH = {
    "lexicon": "model.embed_tokens",
    _FLOOR: _THEIRS,
    f"{_FLOOR}.norm_in": f"{_THEIRS}.input_layernorm",
    f"{_FLOOR}.mixer": f"{_THEIRS}.self_attn",
    f"{_FLOOR}.mixer.packed": tuple(f"{_THEIRS}.self_attn.{part}_proj" for part in "qkv"),
    f"{_FLOOR}.mixer.merge": f"{_THEIRS}.self_attn.o_proj",
    f"{_FLOOR}.norm_mid": f"{_THEIRS}.post_attention_layernorm",
    f"{_FLOOR}.geglu": f"{_THEIRS}.mlp",
    f"{_FLOOR}.geglu.widen": (f"{_THEIRS}.mlp.gate_proj", f"{_THEIRS}.mlp.up_proj"),
    f"{_FLOOR}.geglu:gelu": f"{_THEIRS}.mlp.act_fn",
    f"{_FLOOR}.geglu.narrow": f"{_THEIRS}.mlp.down_proj",
    "norm_out": "model.norm",
    ":linear": "lm_head",
}


class Gain(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps, self.gain = eps, nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        return (wide / (wide.square().mean(-1, keepdim=True) + self.eps).sqrt() * self.gain.float()).to(x.dtype)


class Mixer(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        heads, shared, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.parts, self.size = (heads * size, shared * size, shared * size), size
        self.packed = nn.Linear(config.hidden_size, sum(self.parts), bias=False)
        self.merge = nn.Linear(heads * size, config.hidden_size, bias=False)

    def forward(self, x, cos, sin):
        q, k, v = (
            part.unflatten(-1, (-1, self.size)).transpose(1, 2) for part in self.packed(x).split(self.parts, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(turn(q, cos, sin), turn(k, cos, sin), v, is_causal=True, enable_gqa=True)
        return self.merge(mixed.transpose(1, 2).flatten(2))


class GeGLU(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.widen, self.narrow = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)

    def forward(self, x):
        gate, up = self.widen(x).chunk(2, dim=-1)
        return self.narrow(F.gelu(gate, approximate="tanh") * up)


class Floor(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.norm_in, self.norm_mid = (Gain(config.hidden_size, config.rms_norm_eps) for _ in range(2))
        self.mixer, self.geglu = Mixer(config), GeGLU(config.hidden_size, config.intermediate_size)

    def forward(self, x, cos, sin):
        x = x + self.mixer(self.norm_in(x), cos, sin)
        return x + self.geglu(self.norm_mid(x))


class GemmaFolded(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        self.size, self.base = config.head_dim, config.rope_parameters["rope_theta"]
        self.lexicon = nn.Embedding(config.vocab_size, config.hidden_size)
        self.tower = nn.ModuleList(Floor(config) for _ in range(layers))
        self.norm_out = Gain(config.hidden_size, config.rms_norm_eps)

    def forward(self, tokens):
        x = self.lexicon(tokens)
        x = x * x.shape[-1] ** 0.5
        cos, sin = (table.to(x.dtype) for table in angles(tokens.shape[1], self.size, self.base))
        for floor in self.tower:
            x = floor(x, cos, sin)
        return F.linear(self.norm_out(x), self.lexicon.weight)

    @torch.no_grad()
    def copy_from(self, other, layers: list[int]) -> None:
        """Take the weights of a GemmaForCausalLM, whose norms multiply by 1 + weight."""
        source = other.model
        self.lexicon.weight.copy_(source.embed_tokens.weight)
        norms = [(self.norm_out, source.norm)]
        for mine, theirs in zip(self.tower, (source.layers[at] for at in layers), strict=True):
            norms += [(mine.norm_in, theirs.input_layernorm), (mine.norm_mid, theirs.post_attention_layernorm)]
            attention, feed = theirs.self_attn, theirs.mlp
            parts = attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight
            mine.mixer.packed.weight.copy_(torch.cat(parts))
            mine.mixer.merge.weight.copy_(attention.o_proj.weight)
            mine.geglu.widen.weight.copy_(torch.cat([feed.gate_proj.weight, feed.up_proj.weight]))
            mine.geglu.narrow.weight.copy_(feed.down_proj.weight)
        for mine, theirs in norms:
            mine.gain.copy_(1 + theirs.weight)
