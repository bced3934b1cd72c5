"""The small transformer in PyTorch."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from models import small_weights as w


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query_key_value = nn.Linear(w.WIDTH, 3 * w.WIDTH)
        self.dense = nn.Linear(w.WIDTH, w.WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        shape = (w.BATCH, w.TOKENS, w.HEADS, w.WIDTH // w.HEADS)
        q, k, v = torch.split(self.query_key_value(x), w.WIDTH, dim=-1)
        q, k, v = (one.reshape(shape).permute(0, 2, 1, 3) for one in (q, k, v))
        scores = torch.matmul(q, k.transpose(-1, -2)) * (1 / math.sqrt(w.WIDTH // w.HEADS))
        found = torch.matmul(functional.softmax(scores + mask, dim=-1), v)
        return self.dense(found.permute(0, 2, 1, 3).reshape(w.BATCH, w.TOKENS, w.WIDTH))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(w.WIDTH, w.INNER)
        self.linear_fc2 = nn.Linear(w.INNER, w.WIDTH)
        self.faulty = False  # a wrong activation, for tests that must find it

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear_fc1(x)
        return self.linear_fc2(functional.relu(h) if self.faulty else functional.silu(h))


class TransformerLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = nn.LayerNorm(w.WIDTH, eps=w.EPSILON)
        self.self_attention = SelfAttention()
        self.pre_mlp_layernorm = nn.LayerNorm(w.WIDTH, eps=w.EPSILON)
        self.mlp = MLP()

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attention(self.input_layernorm(x), mask)
        return x + self.mlp(self.pre_mlp_layernorm(x))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(w.VOCABULARY, w.WIDTH)
        self.layers = nn.ModuleList(TransformerLayer() for _ in range(w.LAYERS))
        self.final_layernorm = nn.LayerNorm(w.WIDTH, eps=w.EPSILON)
        self.output_layer = nn.Linear(w.WIDTH, w.VOCABULARY)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, mask)
        return self.output_layer(self.final_layernorm(x))


NAMES = {
    "norm_1": "input_layernorm",
    "norm_2": "pre_mlp_layernorm",
    "qkv": "self_attention.query_key_value",
    "out": "self_attention.dense",
    "up": "mlp.linear_fc1",
    "down": "mlp.linear_fc2",
    "norm": "final_layernorm",
    "head": "output_layer",
}


def model() -> Transformer:
    """The model with the shared weights."""
    made = Transformer()
    with torch.no_grad():
        for path, array in w.weights().items():
            name = ".".join(NAMES.get(part, part) for part in path.split("."))
            made.get_parameter(name).copy_(torch.from_numpy(array))
    return made


def train_step(net: nn.Module) -> torch.Tensor:
    """One forward and one backward pass; returns the loss."""
    tokens, labels, mask = (torch.from_numpy(one) for one in w.batch())
    logits = net(tokens.int(), mask)
    loss = functional.cross_entropy(logits.reshape(-1, w.VOCABULARY), labels.reshape(-1))
    loss.backward()
    return loss
