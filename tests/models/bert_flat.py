"""BERT with flat blocks: attention without its norm inside, activations as functions, the pooler as one layer."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

TRUTH = {
    "embedding": "embeddings",
    "embedding.word": "embeddings.word_embeddings",
    "embedding.segment": "embeddings.token_type_embeddings",
    "embedding.place": "embeddings.position_embeddings",
    "embedding.norm": "embeddings.LayerNorm",
    "block{i}": "encoder.layer.{i}",
    "block{i}.attend.to_q": "encoder.layer.{i}.attention.self.query",
    "block{i}.attend.to_k": "encoder.layer.{i}.attention.self.key",
    "block{i}.attend.to_v": "encoder.layer.{i}.attention.self.value",
    "block{i}.attend.to_out": "encoder.layer.{i}.attention.output.dense",
    "block{i}.norm_attend": "encoder.layer.{i}.attention.output.LayerNorm",
    "block{i}.widen": "encoder.layer.{i}.intermediate.dense",
    "block{i}:gelu": "encoder.layer.{i}.intermediate.intermediate_act_fn",
    "block{i}.narrow": "encoder.layer.{i}.output.dense",
    "block{i}.norm_feed": "encoder.layer.{i}.output.LayerNorm",
    "pool": "pooler.dense",
    ":tanh": "pooler.activation",
}


class Attend(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            layer(x).reshape(batch, length, self.heads, -1).permute(0, 2, 1, 3)
            for layer in (self.to_q, self.to_k, self.to_v)
        )
        weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(width // self.heads), dim=-1)
        return self.to_out((weights @ v).permute(0, 2, 1, 3).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_eps
        self.attend = Attend(width, config.num_attention_heads)
        self.norm_attend = nn.LayerNorm(width, eps=eps)
        self.widen = nn.Linear(width, config.intermediate_size)
        self.narrow = nn.Linear(config.intermediate_size, width)
        self.norm_feed = nn.LayerNorm(width, eps=eps)

    def forward(self, x):
        x = self.norm_attend(x + self.attend(x))
        return self.norm_feed(x + self.narrow(F.gelu(self.widen(x))))


class Embedding(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)
        self.segment = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.place = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1])[None]
        return self.norm(self.word(tokens) + self.segment(torch.zeros_like(tokens)) + self.place(places))


class BertFlat(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        self.embedding = Embedding(config)
        self.depth = layers
        for at in range(layers):
            setattr(self, f"block{at}", Block(config))
        self.pool = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for at in range(self.depth):
            x = getattr(self, f"block{at}")(x)
        return x, torch.tanh(self.pool(x[:, 0]))

    @torch.no_grad()
    def copy_from(self, other, layers: list[int]) -> None:
        """Take the weights of a BertModel."""
        pairs = [
            (self.embedding.word, other.embeddings.word_embeddings),
            (self.embedding.segment, other.embeddings.token_type_embeddings),
            (self.embedding.place, other.embeddings.position_embeddings),
            (self.embedding.norm, other.embeddings.LayerNorm),
            (self.pool, other.pooler.dense),
        ]
        for at, source in enumerate(layers):
            mine, theirs = getattr(self, f"block{at}"), other.encoder.layer[source]
            inner = theirs.attention.self
            pairs += [
                (mine.attend.to_q, inner.query), (mine.attend.to_k, inner.key), (mine.attend.to_v, inner.value),
                (mine.attend.to_out, theirs.attention.output.dense),
                (mine.norm_attend, theirs.attention.output.LayerNorm), (mine.widen, theirs.intermediate.dense),
                (mine.narrow, theirs.output.dense), (mine.norm_feed, theirs.output.LayerNorm),
            ]  # fmt: skip
        for layer, source in pairs:
            layer.load_state_dict(source.state_dict())
