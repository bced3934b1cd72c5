"""Mixtral in the nesting of another mixture of experts: norms around attention in a level, experts as modules."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from models.rotary import angles, turn

_LAYER, _THEIRS = "blocks.{i}", "model.layers.{i}"
_EXPERTS = [f"{_LAYER}.ffn.experts.bank.{at}" for at in range(4)]
TRUTH = {
    "wte": "model.embed_tokens",
    _LAYER: _THEIRS,
    f"{_LAYER}.norm_attn_norm.norm_1": f"{_THEIRS}.input_layernorm",
    f"{_LAYER}.norm_attn_norm.attn": f"{_THEIRS}.self_attn",
    f"{_LAYER}.norm_attn_norm.attn.Wqkv": tuple(f"{_THEIRS}.self_attn.{part}_proj" for part in "qkv"),
    f"{_LAYER}.norm_attn_norm.attn.out_proj": f"{_THEIRS}.self_attn.o_proj",
    f"{_LAYER}.norm_attn_norm.norm_2": f"{_THEIRS}.post_attention_layernorm",
    f"{_LAYER}.ffn": f"{_THEIRS}.mlp",
    f"{_LAYER}.ffn.router": f"{_THEIRS}.mlp.gate",
    f"{_LAYER}.ffn.experts": f"{_THEIRS}.mlp.experts",
    "norm_f": "model.norm",
    "lm_head": "lm_head",
}
# Where the other side runs its experts one by one, they are slices of one weight, given to functional calls. Where it
# runs them all in one grouped call, nothing inside has a partner.
ONE_BY_ONE = {
    **TRUTH,
    tuple(f"{expert}.{part}" for expert in _EXPERTS for part in ("w1", "v1", "w2")): f"{_THEIRS}.mlp.experts:linear",
    tuple(f"{expert}:silu" for expert in _EXPERTS): f"{_THEIRS}.mlp.experts.act_fn",
}


class Norm(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(config.hidden_size)), config.rms_norm_eps

    def forward(self, x):
        return self.weight * (x.float() / (x.float().pow(2).mean(-1, keepdim=True) + self.eps).sqrt()).to(x.dtype)


class GroupedAttention(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.size = config.hidden_size // config.num_attention_heads
        self.counts = [config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads]
        self.Wqkv = nn.Linear(config.hidden_size, sum(self.counts) * self.size, bias=False)
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x, cos, sin):
        packed = self.Wqkv(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
        q, k, v = packed.split(self.counts, dim=1)
        q, k = turn(q, cos, sin), turn(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out_proj(mixed.transpose(1, 2).flatten(2))


class NormAttentionNorm(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.norm_1, self.attn, self.norm_2 = Norm(config), GroupedAttention(config), Norm(config)

    def forward(self, x, cos, sin):
        x = x + self.attn(self.norm_1(x), cos, sin)
        return x, self.norm_2(x)


class ExpertGLU(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.w1, self.v1 = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.w2 = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.v1(x))


class Experts(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        sizes = config.hidden_size, config.intermediate_size
        self.bank = nn.ModuleList(ExpertGLU(*sizes) for _ in range(config.num_local_experts))

    def forward(self, x, weights, chosen):
        out = torch.zeros_like(x)
        for at, expert in enumerate(self.bank):
            token, place = (chosen == at).nonzero(as_tuple=True)
            if len(token):
                out = out.index_add(0, token, (expert(x[token]) * weights[token, place, None]).to(out.dtype))
        return out


class MixtureOfExperts(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.top = config.num_experts_per_tok
        self.router = nn.Linear(config.hidden_size, config.num_local_experts, bias=False)
        self.experts = Experts(config)

    def forward(self, x):
        flat = x.flatten(0, 1)
        weights, chosen = self.router(flat).float().softmax(-1).topk(self.top, dim=-1)
        return self.experts(flat, weights / weights.sum(-1, keepdim=True), chosen).view_as(x)


class Block(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.norm_attn_norm, self.ffn = NormAttentionNorm(config), MixtureOfExperts(config)

    def forward(self, x, cos, sin):
        x, normed = self.norm_attn_norm(x, cos, sin)
        return x + self.ffn(normed)


class MixtralBlocks(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config) for _ in range(layers))
        self.norm_f = Norm(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.size, self.base = config.hidden_size // config.num_attention_heads, config.rope_parameters["rope_theta"]

    def forward(self, tokens):
        x = self.wte(tokens)
        cos, sin = (table.to(x.dtype) for table in angles(tokens.shape[1], self.size, self.base))
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.lm_head(self.norm_f(x))

    @torch.no_grad()
    def copy_from(self, other, layers: list[int]) -> None:
        """Take the weights of a MixtralForCausalLM."""
        pairs = [(self.wte, other.model.embed_tokens), (self.norm_f, other.model.norm), (self.lm_head, other.lm_head)]
        for mine, theirs in zip(self.blocks, (other.model.layers[at] for at in layers), strict=True):
            inner, parts = mine.norm_attn_norm, theirs.self_attn
            pairs += [
                (inner.norm_1, theirs.input_layernorm), (inner.norm_2, theirs.post_attention_layernorm),
                (inner.attn.out_proj, parts.o_proj), (mine.ffn.router, theirs.mlp.gate),
            ]  # fmt: skip
            packed = [parts.q_proj.weight, parts.k_proj.weight, parts.v_proj.weight]
            inner.attn.Wqkv.weight.copy_(torch.cat(packed))
            for at, expert in enumerate(mine.ffn.experts.bank):
                gate, up = theirs.mlp.experts.gate_up_proj[at].chunk(2)
                expert.w1.weight.copy_(gate)
                expert.v1.weight.copy_(up)
                expert.w2.weight.copy_(theirs.mlp.experts.down_proj[at])
        for layer, source in pairs:
            layer.load_state_dict(source.state_dict())
