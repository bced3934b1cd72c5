"""T5 with one embedding for both stacks, fused keys and values, and norms beside the sublayers they feed."""

from __future__ import annotations

import math

import torch
from torch import nn

TRUTH = {
    "reader": "encoder",
    "writer": "decoder",
    "reader.embed": "encoder.embed_tokens",
    "writer.embed": "decoder.embed_tokens",
    "reader.layers.{i}": "encoder.block.{i}",
    "reader.layers.{i}.norm1": "encoder.block.{i}.layer.0.layer_norm",
    "reader.layers.{i}.self_attn": "encoder.block.{i}.layer.0.SelfAttention",
    "reader.layers.{i}.self_attn.query": "encoder.block.{i}.layer.0.SelfAttention.q",
    "reader.layers.{i}.self_attn.key_value": (
        "encoder.block.{i}.layer.0.SelfAttention.k", "encoder.block.{i}.layer.0.SelfAttention.v",
    ),
    "reader.layers.{i}.self_attn.out": "encoder.block.{i}.layer.0.SelfAttention.o",
    "reader.layers.{i}.norm2": "encoder.block.{i}.layer.1.layer_norm",
    "reader.layers.{i}.ff": "encoder.block.{i}.layer.1.DenseReluDense",
    "reader.layers.{i}.ff.inner": "encoder.block.{i}.layer.1.DenseReluDense.wi",
    "reader.layers.{i}.ff.act": "encoder.block.{i}.layer.1.DenseReluDense.act",
    "reader.layers.{i}.ff.outer": "encoder.block.{i}.layer.1.DenseReluDense.wo",
    "reader.places.table": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
    "reader.last_norm": "encoder.final_layer_norm",
    "writer.layers.{i}": "decoder.block.{i}",
    "writer.layers.{i}.norm1": "decoder.block.{i}.layer.0.layer_norm",
    "writer.layers.{i}.self_attn": "decoder.block.{i}.layer.0.SelfAttention",
    "writer.layers.{i}.self_attn.query": "decoder.block.{i}.layer.0.SelfAttention.q",
    "writer.layers.{i}.self_attn.key_value": (
        "decoder.block.{i}.layer.0.SelfAttention.k", "decoder.block.{i}.layer.0.SelfAttention.v",
    ),
    "writer.layers.{i}.self_attn.out": "decoder.block.{i}.layer.0.SelfAttention.o",
    "writer.layers.{i}.norm_cross": "decoder.block.{i}.layer.1.layer_norm",
    "writer.layers.{i}.cross_attn": "decoder.block.{i}.layer.1.EncDecAttention",
    "writer.layers.{i}.cross_attn.query": "decoder.block.{i}.layer.1.EncDecAttention.q",
    "writer.layers.{i}.cross_attn.key_value": (
        "decoder.block.{i}.layer.1.EncDecAttention.k", "decoder.block.{i}.layer.1.EncDecAttention.v",
    ),
    "writer.layers.{i}.cross_attn.out": "decoder.block.{i}.layer.1.EncDecAttention.o",
    "writer.layers.{i}.norm2": "decoder.block.{i}.layer.2.layer_norm",
    "writer.layers.{i}.ff": "decoder.block.{i}.layer.2.DenseReluDense",
    "writer.layers.{i}.ff.inner": "decoder.block.{i}.layer.2.DenseReluDense.wi",
    "writer.layers.{i}.ff.act": "decoder.block.{i}.layer.2.DenseReluDense.act",
    "writer.layers.{i}.ff.outer": "decoder.block.{i}.layer.2.DenseReluDense.wo",
    "writer.places.table": "decoder.block.0.layer.0.SelfAttention.relative_attention_bias",
    "writer.last_norm": "decoder.final_layer_norm",
    "predict": "lm_head",
}  # fmt: skip


class ScaleNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.gain, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return self.gain * (x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.eps)).to(x.dtype)


class Attn(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.heads, self.inner = config.num_heads, config.num_heads * config.d_kv
        self.query = nn.Linear(config.d_model, self.inner, bias=False)
        self.key_value = nn.Linear(config.d_model, 2 * self.inner, bias=False)
        self.out = nn.Linear(self.inner, config.d_model, bias=False)

    def forward(self, x, memory, bias):
        q = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.key_value(memory).chunk(2, dim=-1)
        )
        weights = torch.matmul(q, k.transpose(-1, -2))
        if bias is not None:
            weights = weights + bias
        return self.out((weights.float().softmax(-1).to(x.dtype) @ v).transpose(1, 2).flatten(2))


class FF(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.inner = nn.Linear(config.d_model, config.d_ff, bias=False)
        self.act = nn.ReLU()
        self.outer = nn.Linear(config.d_ff, config.d_model, bias=False)

    def forward(self, x):
        return self.outer(self.act(self.inner(x)))


class SubLayers(nn.Module):
    def __init__(self, config, *, crosses: bool) -> None:
        super().__init__()
        width, eps = config.d_model, config.layer_norm_epsilon
        self.norm1, self.norm2 = ScaleNorm(width, eps), ScaleNorm(width, eps)
        self.self_attn, self.ff = Attn(config), FF(config)
        if crosses:
            self.norm_cross, self.cross_attn = ScaleNorm(width, eps), Attn(config)

    def forward(self, x, memory, bias):
        y = self.norm1(x)
        x = x + self.self_attn(y, y, bias)
        if memory is not None:
            x = x + self.cross_attn(self.norm_cross(x), memory, None)
        return x + self.ff(self.norm2(x))


class Places(nn.Module):
    """A learned bias for each distance, near ones exactly and far ones in steps that grow."""

    def __init__(self, config, *, both_ways: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(config.relative_attention_num_buckets, config.num_heads)
        self.far, self.both_ways = config.relative_attention_max_distance, both_ways

    def forward(self, length: int):
        distance = torch.arange(length)[None, :] - torch.arange(length)[:, None]
        buckets, offset = self.table.num_embeddings, 0
        if self.both_ways:
            buckets //= 2
            offset = (distance > 0).long() * buckets
            distance = distance.abs()
        else:
            distance = (-distance).clamp(min=0)
        near = buckets // 2
        steps = torch.log(distance.float().clamp(min=1) / near) / math.log(self.far / near) * (buckets - near)
        far = (near + steps.long()).clamp(max=buckets - 1)
        return self.table(offset + torch.where(distance < near, distance, far)).permute(2, 0, 1)[None]


class Stack(nn.Module):
    def __init__(self, config, layers: int, *, writes: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(config.vocab_size, config.d_model)
        self.places = Places(config, both_ways=not writes)
        self.layers = nn.ModuleList(SubLayers(config, crosses=writes) for _ in range(layers))
        self.last_norm = ScaleNorm(config.d_model, config.layer_norm_epsilon)
        self.writes = writes

    def forward(self, tokens, memory=None):
        x = self.embed(tokens)
        bias = self.places(tokens.shape[1])
        if self.writes:
            bias = bias.masked_fill(torch.ones(bias.shape[-2:], dtype=torch.bool).triu(1), torch.finfo(x.dtype).min)
        for layer in self.layers:
            x = layer(x, memory, bias)
        return self.last_norm(x)


class T5Joint(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        self.reader = Stack(config, config.num_layers, writes=False)
        self.writer = Stack(config, layers, writes=True)
        self.predict = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.scale = config.d_model**-0.5 if config.tie_word_embeddings else 1.0

    def forward(self, tokens):
        written = torch.cat([torch.zeros_like(tokens[:, :1]), tokens[:, :-1]], dim=1)
        return self.predict(self.writer(written, self.reader(tokens)) * self.scale)

    @torch.no_grad()
    def copy_from(self, other, layers: list[int]) -> None:
        """Take the weights of a T5ForConditionalGeneration; ``layers`` are those of its decoder."""
        self.predict.weight.copy_(other.lm_head.weight)
        everything = list(range(len(other.encoder.block)))
        for mine, theirs, chosen in ((self.reader, other.encoder, everything), (self.writer, other.decoder, layers)):
            mine.embed.weight.copy_(theirs.embed_tokens.weight)
            mine.last_norm.gain.copy_(theirs.final_layer_norm.weight)
            mine.places.table.weight.copy_(theirs.block[0].layer[0].SelfAttention.relative_attention_bias.weight)
            for layer, block in zip(mine.layers, (theirs.block[at].layer for at in chosen), strict=True):
                layer.norm1.gain.copy_(block[0].layer_norm.weight)
                layer.norm2.gain.copy_(block[-1].layer_norm.weight)
                self._attn(layer.self_attn, block[0].SelfAttention)
                if mine.writes:
                    layer.norm_cross.gain.copy_(block[1].layer_norm.weight)
                    self._attn(layer.cross_attn, block[1].EncDecAttention)
                layer.ff.inner.weight.copy_(block[-1].DenseReluDense.wi.weight)
                layer.ff.outer.weight.copy_(block[-1].DenseReluDense.wo.weight)

    @staticmethod
    def _attn(mine, theirs) -> None:
        mine.query.weight.copy_(theirs.q.weight)
        mine.key_value.weight.copy_(torch.cat([theirs.k.weight, theirs.v.weight]))
        mine.out.weight.copy_(theirs.o.weight)
