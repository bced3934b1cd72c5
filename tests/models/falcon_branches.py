"""Falcon with split projections; the two parallel branches hold their norms and run one after the other."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from models.rotary import angles, turn

_BRICK, _THEIRS = "bricks.{i}", "transformer.h.{i}"
TRUTH = {
    "pieces": "transformer.word_embeddings",
    _BRICK: _THEIRS,
    f"{_BRICK}.mix.even": f"{_THEIRS}.ln_attn",
    f"{_BRICK}.mix.work": f"{_THEIRS}.self_attention",
    **{f"{_BRICK}.mix.work.{part}": f"{_THEIRS}.self_attention.query_key_value" for part in ("wq", "wk", "wv")},
    f"{_BRICK}.mix.work.wo": f"{_THEIRS}.self_attention.dense",
    f"{_BRICK}.think.even": f"{_THEIRS}.ln_mlp",
    f"{_BRICK}.think.work": f"{_THEIRS}.mlp",
    f"{_BRICK}.think.work.enter": f"{_THEIRS}.mlp.dense_h_to_4h",
    f"{_BRICK}.think.work:gelu": f"{_THEIRS}.mlp.act",
    f"{_BRICK}.think.work.leave": f"{_THEIRS}.mlp.dense_4h_to_h",
    "even": "transformer.ln_f",
    "speak": "lm_head",
}


class GroupedAttention(nn.Module):
    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.size = width // heads
        self.wq, self.wo = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.wk, self.wv = (nn.Linear(width, groups * self.size, bias=False) for _ in range(2))

    def forward(self, x, cos, sin):
        q, k, v = (part(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for part in (self.wq, self.wk, self.wv))
        mixed = F.scaled_dot_product_attention(turn(q, cos, sin), turn(k, cos, sin), v, is_causal=True, enable_gqa=True)
        return self.wo(mixed.transpose(1, 2).flatten(2))


class Feed(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(width, inner, bias=False), nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.leave(F.gelu(self.enter(x)))


class Branch(nn.Module):
    def __init__(self, width: int, eps: float, work: nn.Module) -> None:
        super().__init__()
        self.even, self.work = nn.LayerNorm(width, eps=eps), work

    def forward(self, x, *more):
        return self.work(self.even(x), *more)


class Brick(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_epsilon
        attention = GroupedAttention(width, config.num_attention_heads, config.num_kv_heads)
        self.mix, self.think = Branch(width, eps, attention), Branch(width, eps, Feed(width, config.ffn_hidden_size))

    def forward(self, x, cos, sin):
        return x + self.mix(x, cos, sin) + self.think(x)


class FalconBranches(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        self.size = config.hidden_size // config.num_attention_heads
        self.base = config.rope_parameters["rope_theta"]
        self.pieces = nn.Embedding(config.vocab_size, config.hidden_size)
        self.bricks = nn.ModuleList(Brick(config) for _ in range(layers))
        self.even = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.speak = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, tokens):
        x = self.pieces(tokens)
        cos, sin = (table.to(x.dtype) for table in angles(tokens.shape[1], self.size, self.base))
        for brick in self.bricks:
            x = brick(x, cos, sin)
        return self.speak(self.even(x))

    @torch.no_grad()
    def copy_from(self, other, layers: list[int]) -> None:
        """Take the weights of a FalconForCausalLM, which keeps each group's queries, key and value together."""
        body = other.transformer
        pairs = [(self.pieces, body.word_embeddings), (self.even, body.ln_f), (self.speak, other.lm_head)]
        for mine, theirs in zip(self.bricks, (body.h[at] for at in layers), strict=True):
            work, groups = mine.mix.work, other.config.num_kv_heads
            packed = theirs.self_attention.query_key_value.weight.unflatten(0, (groups, -1, work.size))
            work.wq.weight.copy_(packed[:, :-2].flatten(0, 2))
            work.wk.weight.copy_(packed[:, -2].flatten(0, 1))
            work.wv.weight.copy_(packed[:, -1].flatten(0, 1))
            pairs += [
                (mine.mix.even, theirs.ln_attn), (work.wo, theirs.self_attention.dense),
                (mine.think.even, theirs.ln_mlp), (mine.think.work.enter, theirs.mlp.dense_h_to_4h),
                (mine.think.work.leave, theirs.mlp.dense_4h_to_h),
            ]  # fmt: skip
        for layer, source in pairs:
            layer.load_state_dict(source.state_dict())
