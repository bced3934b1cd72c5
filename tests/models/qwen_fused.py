"""Qwen3 with one projection for q, k and v and its norms on the heads, under the names of an inference engine."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from models.llama_release import RMSNorm
from models.rotary import angles, turn

_LAYER = "decoder.{i}"
TRUTH = {
    "token_embedding": "model.embed_tokens",
    _LAYER: "model.layers.{i}",
    f"{_LAYER}.attn_pre": "model.layers.{i}.input_layernorm",
    f"{_LAYER}.attn": "model.layers.{i}.self_attn",
    f"{_LAYER}.attn.qkv_proj": (
        "model.layers.{i}.self_attn.q_proj", "model.layers.{i}.self_attn.k_proj", "model.layers.{i}.self_attn.v_proj",
    ),
    f"{_LAYER}.attn.norm_q": "model.layers.{i}.self_attn.q_norm",
    f"{_LAYER}.attn.norm_k": "model.layers.{i}.self_attn.k_norm",
    f"{_LAYER}.attn.o_proj": "model.layers.{i}.self_attn.o_proj",
    f"{_LAYER}.ffn_pre": "model.layers.{i}.post_attention_layernorm",
    f"{_LAYER}.ffn": "model.layers.{i}.mlp",
    f"{_LAYER}.ffn.up_proj": "model.layers.{i}.mlp.up_proj",
    f"{_LAYER}.ffn.gate_proj": "model.layers.{i}.mlp.gate_proj",
    f"{_LAYER}.ffn.down_proj": "model.layers.{i}.mlp.down_proj",
    f"{_LAYER}.ffn.act": "model.layers.{i}.mlp.act_fn",
    "norm": "model.norm",
    "head": "lm_head",
}  # fmt: skip


class Attn(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.qkv_proj = nn.Linear(config.hidden_size, (self.heads + 2 * self.kv_heads) * self.width, bias=False)
        self.norm_q, self.norm_k = (RMSNorm(self.width, config.rms_norm_eps) for _ in range(2))
        self.o_proj = nn.Linear(self.heads * self.width, config.hidden_size, bias=False)

    def forward(self, x, cos, sin):
        parts = self.qkv_proj(x).unflatten(-1, (-1, self.width)).split([self.heads, self.kv_heads, self.kv_heads], 2)
        q, k, v = (part.transpose(1, 2) for part in (self.norm_q(parts[0]), self.norm_k(parts[1]), parts[2]))
        q, k = turn(q, cos, sin), turn(k, cos, sin)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class GatedFeed(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.act = nn.SiLU()
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        up = self.up_proj(x)
        return self.down_proj(up * self.act(self.gate_proj(x)))


class Layer(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.attn_pre, self.ffn_pre = (RMSNorm(config.hidden_size, config.rms_norm_eps) for _ in range(2))
        self.attn, self.ffn = Attn(config), GatedFeed(config)

    def forward(self, x, cos, sin):
        x = x + self.attn(self.attn_pre(x), cos, sin)
        return x + self.ffn(self.ffn_pre(x))


class QwenFused(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.decoder = nn.ModuleList(Layer(config) for _ in range(layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.width, self.base = config.head_dim, config.rope_parameters["rope_theta"]

    def forward(self, tokens):
        x = self.token_embedding(tokens)
        cos, sin = (table.to(x.dtype) for table in angles(tokens.shape[1], self.width, self.base))
        for layer in self.decoder:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))

    @torch.no_grad()
    def copy_from(self, other, layers: list[int]) -> None:
        """Take the weights of a Qwen3ForCausalLM."""
        pairs = [
            (self.token_embedding, other.model.embed_tokens), (self.norm, other.model.norm), (self.head, other.lm_head),
        ]  # fmt: skip
        for mine, theirs in zip(self.decoder, (other.model.layers[at] for at in layers), strict=True):
            parts = theirs.self_attn
            mine.attn.qkv_proj.weight.copy_(torch.cat([parts.q_proj.weight, parts.k_proj.weight, parts.v_proj.weight]))
            pairs += [
                (mine.attn_pre, theirs.input_layernorm), (mine.attn.norm_q, parts.q_norm),
                (mine.attn.norm_k, parts.k_norm), (mine.attn.o_proj, parts.o_proj),
                (mine.ffn_pre, theirs.post_attention_layernorm), (mine.ffn.up_proj, theirs.mlp.up_proj),
                (mine.ffn.gate_proj, theirs.mlp.gate_proj), (mine.ffn.down_proj, theirs.mlp.down_proj),
            ]  # fmt: skip
        for layer, source in pairs:
            layer.load_state_dict(source.state_dict())
