"""Qwen2 as one of the layer libraries writes it: "dense" names, keys and values in one projection, no mlp module."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from models.rotary import angles, turn

_LAYER, _THEIRS = "backbone.transformer_layer_{i}", "model.layers.{i}"
TRUTH = {
    "backbone": "model",
    "backbone.token_embedding": "model.embed_tokens",
    _LAYER: _THEIRS,
    f"{_LAYER}.self_attention_layernorm": f"{_THEIRS}.input_layernorm",
    f"{_LAYER}.self_attention": f"{_THEIRS}.self_attn",
    f"{_LAYER}.self_attention.query_dense": f"{_THEIRS}.self_attn.q_proj",
    f"{_LAYER}.self_attention.key_value_dense": (f"{_THEIRS}.self_attn.k_proj", f"{_THEIRS}.self_attn.v_proj"),
    f"{_LAYER}.self_attention.output_dense": f"{_THEIRS}.self_attn.o_proj",
    f"{_LAYER}.feedforward_layernorm": f"{_THEIRS}.post_attention_layernorm",
    f"{_LAYER}.feedforward_gate_dense": f"{_THEIRS}.mlp.gate_proj",
    f"{_LAYER}:silu": f"{_THEIRS}.mlp.act_fn",
    f"{_LAYER}.feedforward_intermediate_dense": f"{_THEIRS}.mlp.up_proj",
    f"{_LAYER}.feedforward_output_dense": f"{_THEIRS}.mlp.down_proj",
    "backbone.layer_norm": "model.norm",
    "logits": "lm_head",
}


class RootMeanSquare(nn.Module):
    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.scale, self.epsilon = nn.Parameter(torch.ones(width)), epsilon

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)).to(x.dtype) * self.scale


class CachedGroupedAttention(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.queries, self.pairs = config.num_attention_heads, config.num_key_value_heads
        self.size = config.hidden_size // self.queries
        self.query_dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.key_value_dense = nn.Linear(config.hidden_size, 2 * self.pairs * self.size)
        self.output_dense = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x, cos, sin):
        batch, length, width = x.shape
        query = self.query_dense(x).view(batch, length, self.queries, self.size).transpose(1, 2)
        key_value = self.key_value_dense(x).view(batch, length, 2, self.pairs, self.size).permute(2, 0, 3, 1, 4)
        query, key, value = turn(query, cos, sin), turn(key_value[0], cos, sin), key_value[1]
        key, value = (part.repeat_interleave(self.queries // self.pairs, dim=1) for part in (key, value))
        scores = torch.einsum("bhqd,bhkd->bhqk", query, key) * self.size**-0.5
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        mixed = torch.einsum("bhqk,bhkd->bqhd", torch.softmax(scores.float(), dim=-1).to(x.dtype), value)
        return self.output_dense(mixed.reshape(batch, length, width))


class TransformerDecoder(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.self_attention_layernorm = RootMeanSquare(width, config.rms_norm_eps)
        self.self_attention = CachedGroupedAttention(config)
        self.feedforward_layernorm = RootMeanSquare(width, config.rms_norm_eps)
        self.feedforward_gate_dense = nn.Linear(width, inner, bias=False)
        self.feedforward_intermediate_dense = nn.Linear(width, inner, bias=False)
        self.feedforward_output_dense = nn.Linear(inner, width, bias=False)

    def forward(self, x, cos, sin):
        x = x + self.self_attention(self.self_attention_layernorm(x), cos, sin)
        y = self.feedforward_layernorm(x)
        gate = F.silu(self.feedforward_gate_dense(y))
        return x + self.feedforward_output_dense(self.feedforward_intermediate_dense(y) * gate)


class Backbone(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.count = layers
        for at in range(layers):
            setattr(self, f"transformer_layer_{at}", TransformerDecoder(config))
        self.layer_norm = RootMeanSquare(config.hidden_size, config.rms_norm_eps)
        self.size, self.base = config.hidden_size // config.num_attention_heads, config.rope_parameters["rope_theta"]

    def layers(self) -> list[TransformerDecoder]:
        """The layers in their order."""
        return [getattr(self, f"transformer_layer_{at}") for at in range(self.count)]

    def forward(self, tokens):
        x = self.token_embedding(tokens)
        cos, sin = (table.to(x.dtype) for table in angles(tokens.shape[1], self.size, self.base))
        for layer in self.layers():
            x = layer(x, cos, sin)
        return self.layer_norm(x)


class QwenDense(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        self.backbone = Backbone(config, layers)
        self.logits = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, tokens):
        return self.logits(self.backbone(tokens))

    @torch.no_grad()
    def copy_from(self, other, layers: list[int]) -> None:
        """Take the weights of a Qwen2ForCausalLM."""
        self.logits.weight.copy_(other.lm_head.weight)
        self.backbone.token_embedding.weight.copy_(other.model.embed_tokens.weight)
        self.backbone.layer_norm.scale.copy_(other.model.norm.weight)
        for mine, theirs in zip(self.backbone.layers(), (other.model.layers[at] for at in layers), strict=True):
            mine.self_attention_layernorm.scale.copy_(theirs.input_layernorm.weight)
            mine.feedforward_layernorm.scale.copy_(theirs.post_attention_layernorm.weight)
            parts, attention = theirs.self_attn, mine.self_attention
            attention.query_dense.load_state_dict(parts.q_proj.state_dict())
            attention.output_dense.load_state_dict(parts.o_proj.state_dict())
            attention.key_value_dense.weight.copy_(torch.cat([parts.k_proj.weight, parts.v_proj.weight]))
            attention.key_value_dense.bias.copy_(torch.cat([parts.k_proj.bias, parts.v_proj.bias]))
            mine.feedforward_gate_dense.load_state_dict(theirs.mlp.gate_proj.state_dict())
            mine.feedforward_intermediate_dense.load_state_dict(theirs.mlp.up_proj.state_dict())
            mine.feedforward_output_dense.load_state_dict(theirs.mlp.down_proj.state_dict())
