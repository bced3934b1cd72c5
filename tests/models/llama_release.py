"""Llama with the names of the original release: wq, wk, wv, wo, w1, w2, w3; functions for activations."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from models.rotary import angles, turn

TRUTH = {
    "tok_embeddings": "model.embed_tokens",
    "layers.{i}": "model.layers.{i}",
    "layers.{i}.attention_norm": "model.layers.{i}.input_layernorm",
    "layers.{i}.attention": "model.layers.{i}.self_attn",
    "layers.{i}.attention.wq": "model.layers.{i}.self_attn.q_proj",
    "layers.{i}.attention.wk": "model.layers.{i}.self_attn.k_proj",
    "layers.{i}.attention.wv": "model.layers.{i}.self_attn.v_proj",
    "layers.{i}.attention.wo": "model.layers.{i}.self_attn.o_proj",
    "layers.{i}.ffn_norm": "model.layers.{i}.post_attention_layernorm",
    "layers.{i}.feed_forward": "model.layers.{i}.mlp",
    "layers.{i}.feed_forward.w1": "model.layers.{i}.mlp.gate_proj",
    "layers.{i}.feed_forward.w3": "model.layers.{i}.mlp.up_proj",
    "layers.{i}.feed_forward.w2": "model.layers.{i}.mlp.down_proj",
    "layers.{i}.feed_forward:silu": "model.layers.{i}.mlp.act_fn",
    "norm": "model.norm",
    "output": "lm_head",
}


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return (x.float() * scale).type_as(x) * self.weight


class Attention(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.width = config.hidden_size // self.heads
        self.wq = nn.Linear(config.hidden_size, self.heads * self.width, bias=False)
        self.wk = nn.Linear(config.hidden_size, self.kv_heads * self.width, bias=False)
        self.wv = nn.Linear(config.hidden_size, self.kv_heads * self.width, bias=False)
        self.wo = nn.Linear(self.heads * self.width, config.hidden_size, bias=False)

    def forward(self, x, cos, sin, mask):
        batch, length, _ = x.shape
        xq = self.wq(x).view(batch, length, self.heads, self.width).transpose(1, 2)
        xk = self.wk(x).view(batch, length, self.kv_heads, self.width).transpose(1, 2)
        xv = self.wv(x).view(batch, length, self.kv_heads, self.width).transpose(1, 2)
        xq, xk = turn(xq, cos, sin), turn(xk, cos, sin)
        times = self.heads // self.kv_heads
        xk, xv = xk.repeat_interleave(times, 1), xv.repeat_interleave(times, 1)
        scores = torch.matmul(xq, xk.transpose(2, 3)) / math.sqrt(self.width) + mask
        scores = F.softmax(scores.float(), dim=-1).type_as(xq)
        output = torch.matmul(scores, xv).transpose(1, 2).reshape(batch, length, -1)
        return self.wo(output)


class FeedForward(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.w2 = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.w3 = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class TransformerBlock(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.feed_forward = FeedForward(config)
        self.attention_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.ffn_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x, cos, sin, mask):
        h = x + self.attention(self.attention_norm(x), cos, sin, mask)
        return h + self.feed_forward(self.ffn_norm(h))


class LlamaRelease(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(TransformerBlock(config) for _ in range(layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.output = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.width = config.hidden_size // config.num_attention_heads

    def forward(self, tokens):
        h = self.tok_embeddings(tokens)
        cos, sin = (table.to(h.dtype) for table in angles(tokens.shape[1], self.width))
        mask = torch.full((tokens.shape[1],) * 2, float("-inf"), dtype=h.dtype).triu(1)
        for layer in self.layers:
            h = layer(h, cos, sin, mask)
        return self.output(self.norm(h))

    @torch.no_grad()
    def copy_from(self, other, layers: list[int]) -> None:
        """Take the weights of a LlamaForCausalLM; ``layers`` names the layers of it that this model has."""
        self.tok_embeddings.weight.copy_(other.model.embed_tokens.weight)
        self.norm.weight.copy_(other.model.norm.weight)
        self.output.weight.copy_(other.lm_head.weight)
        for mine, theirs in zip(self.layers, (other.model.layers[at] for at in layers), strict=True):
            mine.attention_norm.weight.copy_(theirs.input_layernorm.weight)
            mine.ffn_norm.weight.copy_(theirs.post_attention_layernorm.weight)
            for name, source in (("wq", "q_proj"), ("wk", "k_proj"), ("wv", "v_proj"), ("wo", "o_proj")):
                getattr(mine.attention, name).weight.copy_(getattr(theirs.self_attn, source).weight)
            for name, source in (("w1", "gate_proj"), ("w3", "up_proj"), ("w2", "down_proj")):
                getattr(mine.feed_forward, name).weight.copy_(getattr(theirs.mlp, source).weight)
