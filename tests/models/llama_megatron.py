"""Llama in the manner of a training suite: wrappers, [sequence, batch, hidden], fused qkv and gate/up projections."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from models.llama_release import RMSNorm
from models.rotary import angles, turn

_LAYER = "module.module.language_model.encoder.layers.{i}"
TRUTH = {
    "module.module.language_model.embedding.word_embeddings": "model.embed_tokens",
    "module.module.language_model": "model",
    _LAYER: "model.layers.{i}",
    f"{_LAYER}.input_norm": "model.layers.{i}.input_layernorm",
    f"{_LAYER}.self_attention": "model.layers.{i}.self_attn",
    f"{_LAYER}.self_attention.query_key_value": (
        "model.layers.{i}.self_attn.q_proj", "model.layers.{i}.self_attn.k_proj", "model.layers.{i}.self_attn.v_proj",
    ),
    f"{_LAYER}.self_attention.dense": "model.layers.{i}.self_attn.o_proj",
    f"{_LAYER}.post_attention_norm": "model.layers.{i}.post_attention_layernorm",
    f"{_LAYER}.mlp": "model.layers.{i}.mlp",
    f"{_LAYER}.mlp.dense_h_to_4h": ("model.layers.{i}.mlp.gate_proj", "model.layers.{i}.mlp.up_proj"),
    f"{_LAYER}.mlp.dense_4h_to_h": "model.layers.{i}.mlp.down_proj",
    f"{_LAYER}.mlp:silu": "model.layers.{i}.mlp.act_fn",
    "module.module.language_model.encoder.final_norm": "model.norm",
    "module.module.output_layer": "lm_head",
    # The pieces around the layers: one side's stack is a module of its own, the rotary table too.
    "module.module.language_model.rotary_pos_emb": "model.rotary_emb",
}  # fmt: skip


class ColumnParallelLinear(nn.Linear):
    """A linear layer whose outputs would be spread over devices."""


class RowParallelLinear(nn.Linear):
    """A linear layer whose inputs would be spread over devices."""


class RotaryEmbedding(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, like: torch.Tensor):
        cos, sin = angles(like.shape[0], self.width)
        return cos[:, None, None].to(like.dtype), sin[:, None, None].to(like.dtype)


class CoreAttention(nn.Module):
    def forward(self, query, key, value, mask):
        # [s, b, heads, width] -> [b, heads, s, width]
        query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        scores = torch.baddbmm(
            mask.expand(query.shape[0] * query.shape[1], -1, -1), query.flatten(0, 1),
            key.flatten(0, 1).transpose(1, 2), beta=1.0, alpha=query.shape[-1] ** -0.5,
        )  # fmt: skip
        context = torch.bmm(F.softmax(scores, dim=-1), value.flatten(0, 1)).view_as(query)
        return context.permute(2, 0, 1, 3).flatten(2)


class ParallelAttention(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.width = config.hidden_size // self.heads
        self.query_key_value = ColumnParallelLinear(
            config.hidden_size, (self.heads + 2 * self.kv_heads) * self.width, bias=False
        )
        self.core_attention = CoreAttention()
        self.dense = RowParallelLinear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, hidden_states, rotary, mask):
        mixed = self.query_key_value(hidden_states)
        mixed = mixed.view(*mixed.shape[:2], self.heads + 2 * self.kv_heads, self.width)
        query, key, value = mixed.split([self.heads, self.kv_heads, self.kv_heads], dim=2)
        query, key = turn(query, *rotary), turn(key, *rotary)
        times = self.heads // self.kv_heads
        key, value = key.repeat_interleave(times, 2), value.repeat_interleave(times, 2)
        return self.dense(self.core_attention(query, key, value, mask))


class ParallelMLP(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.dense_h_to_4h = ColumnParallelLinear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.dense_4h_to_h = RowParallelLinear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, hidden_states):
        gate, up = self.dense_h_to_4h(hidden_states).chunk(2, dim=-1)
        return self.dense_4h_to_h(F.silu(gate) * up)


class ParallelTransformerLayer(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.input_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attention = ParallelAttention(config)
        self.post_attention_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = ParallelMLP(config)

    def forward(self, hidden_states, rotary, mask):
        hidden_states = hidden_states + self.self_attention(self.input_norm(hidden_states), rotary, mask)
        return hidden_states + self.mlp(self.post_attention_norm(hidden_states))


class ParallelTransformer(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(ParallelTransformerLayer(config) for _ in range(layers))
        self.final_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, hidden_states, rotary, mask):
        for layer in self.layers:
            hidden_states = layer(hidden_states, rotary, mask)
        return self.final_norm(hidden_states)


class Embedding(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)

    def forward(self, tokens):
        return self.word_embeddings(tokens).transpose(0, 1).contiguous()


class TransformerLanguageModel(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        self.embedding = Embedding(config)
        self.rotary_pos_emb = RotaryEmbedding(config.hidden_size // config.num_attention_heads)
        self.encoder = ParallelTransformer(config, layers)

    def forward(self, tokens):
        hidden_states = self.embedding(tokens)
        mask = torch.full((len(hidden_states),) * 2, float("-inf"), dtype=hidden_states.dtype).triu(1)
        return self.encoder(hidden_states, self.rotary_pos_emb(hidden_states), mask)


class GPTModel(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        self.language_model = TransformerLanguageModel(config, layers)
        self.output_layer = ColumnParallelLinear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, tokens):
        return self.output_layer(self.language_model(tokens)).transpose(0, 1)


class Float16Module(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        self.module = GPTModel(config, layers)

    def forward(self, tokens):
        return self.module(tokens)


class LlamaMegatron(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        self.module = Float16Module(config, layers)

    def forward(self, tokens):
        return self.module(tokens)

    @torch.no_grad()
    def copy_from(self, other, layers: list[int]) -> None:
        """Take the weights of a LlamaForCausalLM."""
        model = self.module.module.language_model
        model.embedding.word_embeddings.weight.copy_(other.model.embed_tokens.weight)
        model.encoder.final_norm.weight.copy_(other.model.norm.weight)
        self.module.module.output_layer.weight.copy_(other.lm_head.weight)
        for mine, theirs in zip(model.encoder.layers, (other.model.layers[at] for at in layers), strict=True):
            attention, mlp = theirs.self_attn, theirs.mlp
            mine.input_norm.weight.copy_(theirs.input_layernorm.weight)
            mine.post_attention_norm.weight.copy_(theirs.post_attention_layernorm.weight)
            mine.self_attention.query_key_value.weight.copy_(
                torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
            )
            mine.self_attention.dense.weight.copy_(attention.o_proj.weight)
            mine.mlp.dense_h_to_4h.weight.copy_(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]))
            mine.mlp.dense_4h_to_h.weight.copy_(mlp.down_proj.weight)
