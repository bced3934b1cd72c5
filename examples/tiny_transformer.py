"""A transformer of two layers, small enough to read. The port of it has one mistake, in one layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, HEADS = 48, 32, 4
EPSILON = 1e-6
TILE = 128  # the mistake: a kernel that works on padded tiles counts the padding when it takes the mean


class NormKernel(torch.autograd.Function):
    """Root-mean-square normalisation as a kernel of its own; it stands for a fused one on a device."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, count: int) -> torch.Tensor:
        values, scale = x.detach().numpy(), weight.detach().numpy()
        size = 1 / np.sqrt(np.square(values).sum(-1, keepdims=True) / count + EPSILON)
        ctx.saved = values, scale, size, count
        return torch.from_numpy(values * size * scale)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        values, scale, size, count = ctx.saved
        arrived = gradient.numpy()
        inner = arrived * scale
        along = (inner * values).sum(-1, keepdims=True) / count
        of_x = size * (inner - values * size**2 * along)
        of_weight = (arrived * values * size).reshape(-1, WIDTH).sum(0)
        return torch.from_numpy(of_x), torch.from_numpy(of_weight), None


class Norm(nn.Module):
    """The kernel with its weight."""

    def __init__(self, count: int = WIDTH) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.count = count

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return NormKernel.apply(x, self.weight, self.count)


class Attention(nn.Module):
    """Causal self-attention with several heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.v_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        query, key, value = (
            projection(x).view(batch, length, HEADS, -1).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        scores = query @ key.transpose(-2, -1) * (WIDTH // HEADS) ** -0.5
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        return self.o_proj((weights @ value).transpose(1, 2).reshape(batch, length, WIDTH))


class FeedForward(nn.Module):
    """A gated linear unit."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.up_proj = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down_proj = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and feed-forward, each after a norm and beside a residual connection."""

    def __init__(self, count: int = WIDTH) -> None:
        super().__init__()
        self.input_norm = Norm()
        self.attention = Attention()
        self.post_norm = Norm(count)
        self.mlp = FeedForward()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.input_norm(x))
        return x + self.mlp(self.post_norm(x))


class TinyTransformer(nn.Module):
    """A language model; ``faulty`` gives layer 1 the wrong kernel in its second norm."""

    def __init__(self, *, faulty: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([Layer(), Layer(TILE if faulty else WIDTH)])
        self.norm = Norm()
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def train_one_step(dump_path: Path, *, faulty: bool) -> None:
    """Record forward, backward and the optimizer's step of one batch."""
    from twinprobe.torch import record

    torch.manual_seed(0)
    model = TinyTransformer(faulty=faulty)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.randint(0, VOCABULARY, (2, 12))
    with record(model, dump_path, level="mix", task="statistics"):
        logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
