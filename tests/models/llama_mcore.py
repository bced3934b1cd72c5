"""Llama with the names of a newer training suite: norms live inside the projections that they feed.

It stands against ``llama_megatron``, as in the guide on layer mapping: the same suite before and after its rewrite.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from models.llama_megatron import RotaryEmbedding
from models.llama_release import RMSNorm
from models.rotary import turn

_LAYER = "model.module.decoder.layers.{i}"
_OTHER = "module.module.language_model.encoder.layers.{i}"
TRUTH = {
    "model": "module",
    "model.module": "module.module",
    "model.module.embedding": "module.module.language_model.embedding",
    "model.module.embedding.word_embeddings": "module.module.language_model.embedding.word_embeddings",
    "model.module.rotary_pos_emb": "module.module.language_model.rotary_pos_emb",
    "model.module.decoder": "module.module.language_model.encoder",
    _LAYER: _OTHER,
    f"{_LAYER}.self_attention.linear_qkv": f"{_OTHER}.self_attention.query_key_value",
    f"{_LAYER}.self_attention.core_attention": f"{_OTHER}.self_attention.core_attention",
    f"{_LAYER}.self_attention.linear_proj": f"{_OTHER}.self_attention.dense",
    f"{_LAYER}.self_attention": f"{_OTHER}.self_attention",
    f"{_LAYER}.mlp": f"{_OTHER}.mlp",
    f"{_LAYER}.mlp.linear_fc1": f"{_OTHER}.mlp.dense_h_to_4h",
    f"{_LAYER}.mlp.linear_fc2": f"{_OTHER}.mlp.dense_4h_to_h",
    "model.module.decoder.final_layernorm": "module.module.language_model.encoder.final_norm",
    "model.module.output_layer": "module.module.output_layer",
}


class TELayerNormColumnParallelLinear(nn.Module):
    def __init__(self, width: int, inner: int, eps: float) -> None:
        super().__init__()
        self.layer_norm_weight = nn.Parameter(torch.ones(width))
        self.weight = nn.Parameter(torch.randn(inner, width) * 0.02)
        self.eps = eps

    def forward(self, x):
        return F.linear(F.rms_norm(x, x.shape[-1:], self.layer_norm_weight, self.eps), self.weight)


class TERowParallelLinear(nn.Linear):
    """A linear layer whose inputs would be spread over devices."""


class TEDotProductAttention(nn.Module):
    def forward(self, query, key, value):
        parts = [x.permute(1, 2, 0, 3) for x in (query, key, value)]
        context = F.scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True)
        return context.permute(2, 0, 1, 3).flatten(2)


class SelfAttention(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.width = config.hidden_size // self.heads
        size = (self.heads + 2 * self.kv_heads) * self.width
        self.linear_qkv = TELayerNormColumnParallelLinear(config.hidden_size, size, config.rms_norm_eps)
        self.core_attention = TEDotProductAttention()
        self.linear_proj = TERowParallelLinear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x, rotary):
        mixed = self.linear_qkv(x).unflatten(-1, (-1, self.width))
        query, key, value = mixed.split([self.heads, self.kv_heads, self.kv_heads], dim=2)
        return self.linear_proj(self.core_attention(turn(query, *rotary), turn(key, *rotary), value))


class MLP(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        inner = config.intermediate_size
        self.linear_fc1 = TELayerNormColumnParallelLinear(config.hidden_size, 2 * inner, config.rms_norm_eps)
        self.linear_fc2 = TERowParallelLinear(inner, config.hidden_size, bias=False)

    def forward(self, x):
        gate, up = self.linear_fc1(x).chunk(2, dim=-1)
        return self.linear_fc2(F.silu(gate) * up)


class TransformerLayer(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.self_attention, self.mlp = SelfAttention(config), MLP(config)

    def forward(self, x, rotary):
        x = x + self.self_attention(x, rotary)
        return x + self.mlp(x)


class TransformerBlock(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TransformerLayer(config) for _ in range(layers))
        self.final_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x, rotary):
        for layer in self.layers:
            x = layer(x, rotary)
        return self.final_layernorm(x)


class LanguageModelEmbedding(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)

    def forward(self, tokens):
        return self.word_embeddings(tokens).transpose(0, 1).contiguous()


class GPT2Model(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        self.embedding = LanguageModelEmbedding(config)
        self.rotary_pos_emb = RotaryEmbedding(config.hidden_size // config.num_attention_heads)
        self.decoder = TransformerBlock(config, layers)
        self.output_layer = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        return self.output_layer(self.decoder(x, self.rotary_pos_emb(x))).transpose(0, 1)


class FloatModule(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        self.module = GPT2Model(config, layers)

    def forward(self, tokens):
        return self.module(tokens)


class LlamaMcore(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        self.model = FloatModule(config, layers)

    def forward(self, tokens):
        return self.model(tokens)

    @torch.no_grad()
    def copy_from(self, other, layers: list[int]) -> None:
        """Take the weights of a LlamaMegatron."""
        mine, theirs = self.model.module, other.module.module
        body = theirs.language_model
        mine.embedding.word_embeddings.weight.copy_(body.embedding.word_embeddings.weight)
        mine.output_layer.weight.copy_(theirs.output_layer.weight)
        mine.decoder.final_layernorm.weight.copy_(body.encoder.final_norm.weight)
        for layer, source in zip(mine.decoder.layers, (body.encoder.layers[at] for at in layers), strict=True):
            attention, mlp = layer.self_attention, layer.mlp
            attention.linear_qkv.layer_norm_weight.copy_(source.input_norm.weight)
            attention.linear_qkv.weight.copy_(source.self_attention.query_key_value.weight)
            attention.linear_proj.weight.copy_(source.self_attention.dense.weight)
            mlp.linear_fc1.layer_norm_weight.copy_(source.post_attention_norm.weight)
            mlp.linear_fc1.weight.copy_(source.mlp.dense_h_to_4h.weight)
            mlp.linear_fc2.weight.copy_(source.mlp.dense_4h_to_h.weight)
