"""GPT-NeoX with split projections; of its two parallel branches the feed-forward one runs first."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from models.rotary import angles, turn

_LAYER, _THEIRS = "trunk.{i}", "gpt_neox.layers.{i}"
TRUTH = {
    "tokens": "gpt_neox.embed_in",
    _LAYER: _THEIRS,
    f"{_LAYER}.prenorm_attend": f"{_THEIRS}.input_layernorm",
    f"{_LAYER}.prenorm_ff": f"{_THEIRS}.post_attention_layernorm",
    f"{_LAYER}.attend": f"{_THEIRS}.attention",
    tuple(f"{_LAYER}.attend.{part}" for part in ("w_query", "w_key", "w_value")): (
        f"{_THEIRS}.attention.query_key_value"
    ),
    f"{_LAYER}.attend.w_merge": f"{_THEIRS}.attention.dense",
    f"{_LAYER}.ff": f"{_THEIRS}.mlp",
    f"{_LAYER}.ff.0": f"{_THEIRS}.mlp.dense_h_to_4h",
    f"{_LAYER}.ff.1": f"{_THEIRS}.mlp.act",
    f"{_LAYER}.ff.2": f"{_THEIRS}.mlp.dense_4h_to_h",
    "norm_out": "gpt_neox.final_layer_norm",
    "to_logits": "lm_head",
}


class Attend(nn.Module):
    def __init__(self, width: int, heads: int, turned: int) -> None:
        super().__init__()
        self.heads, self.turned = heads, turned
        self.w_query, self.w_key, self.w_value, self.w_merge = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x, cos, sin):
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.w_query, self.w_key, self.w_value)
        )
        q, k = (
            torch.cat([turn(part[..., : self.turned], cos, sin), part[..., self.turned :]], dim=-1) for part in (q, k)
        )
        return self.w_merge(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class ParallelBlock(nn.Module):
    def __init__(self, config, turned: int) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.prenorm_attend, self.prenorm_ff = (nn.LayerNorm(width, eps=config.layer_norm_eps) for _ in range(2))
        self.attend = Attend(width, config.num_attention_heads, turned)
        self.ff = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))

    def forward(self, x, cos, sin):
        return x + self.ff(self.prenorm_ff(x)) + self.attend(self.prenorm_attend(x), cos, sin)


class NeoXParallel(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        rope = config.rope_parameters
        size = config.hidden_size // config.num_attention_heads
        self.turned, self.base = int(size * rope.get("partial_rotary_factor", 1.0)), rope["rope_theta"]
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.trunk = nn.ModuleList(ParallelBlock(config, self.turned) for _ in range(layers))
        self.norm_out = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.to_logits = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens)
        cos, sin = (table.to(x.dtype) for table in angles(tokens.shape[1], self.turned, self.base))
        for block in self.trunk:
            x = block(x, cos, sin)
        return self.to_logits(self.norm_out(x))

    @torch.no_grad()
    def copy_from(self, other, layers: list[int]) -> None:
        """Take the weights of a GPTNeoXForCausalLM, whose fused projection holds q, k, v head by head."""
        source = other.gpt_neox
        self.tokens.weight.copy_(source.embed_in.weight)
        self.norm_out.load_state_dict(source.final_layer_norm.state_dict())
        self.to_logits.weight.copy_(other.lm_head.weight)
        for mine, theirs in zip(self.trunk, (source.layers[at] for at in layers), strict=True):
            mine.prenorm_attend.load_state_dict(theirs.input_layernorm.state_dict())
            mine.prenorm_ff.load_state_dict(theirs.post_attention_layernorm.state_dict())
            mine.ff[0].load_state_dict(theirs.mlp.dense_h_to_4h.state_dict())
            mine.ff[2].load_state_dict(theirs.mlp.dense_4h_to_h.state_dict())
            mine.attend.w_merge.load_state_dict(theirs.attention.dense.state_dict())
            packed, parts = theirs.attention.query_key_value, mine.attend
            for at, part in enumerate((parts.w_query, parts.w_key, parts.w_value)):
                part.weight.copy_(packed.weight.unflatten(0, (parts.heads, 3, -1))[:, at].flatten(0, 1))
                part.bias.copy_(packed.bias.unflatten(0, (parts.heads, 3, -1))[:, at].flatten())
