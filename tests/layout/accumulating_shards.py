"""A language model in the manner of Megatron, with a table and a loss cut by words, that accumulates micro batches.

    python accumulating_shards.py OUTPUT RANKS LEVEL

Two ranks cut the weights, two pairs of them the batch. Each loss is a sum over the tokens of its micro batch; gradients
are added up over the pairs and divided by the number of all tokens.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from twinprobe.torch import record

WORDS, WIDTH, BATCH, LENGTH, MICRO = 48, 32, 8, 12, 2


class Ranks:
    """Those that share a layer, and those that share the batch."""

    parts = pairs = 1
    part = pair = 0
    beside: Any = None
    across: Any = None

    @classmethod
    def meet(cls, rank: int) -> None:
        cls.parts = cls.pairs = 2
        cls.pair, cls.part = divmod(rank, 2)
        groups = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3], [0, 2], [1, 3])]
        cls.beside, cls.across = groups[cls.pair], groups[2 + cls.part]


def summed(x: torch.Tensor, group: Any) -> torch.Tensor:
    x = x.clone()
    dist.all_reduce(x, group=group)
    return x


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, there: bool) -> torch.Tensor:
        ctx.there = there
        return summed(x, Ranks.beside) if there else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return (gradient if ctx.there else summed(gradient, Ranks.beside)), None


def exchanged(x: torch.Tensor, *, there: bool) -> torch.Tensor:
    return Exchange.apply(x, there) if Ranks.parts > 1 else x


class Part(nn.Module):
    """A weight of which each rank has some rows, or some columns."""

    def __init__(self, rows: int, columns: int, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.weight = nn.Parameter((torch.randn(rows, columns) * columns**-0.5).chunk(Ranks.parts, dim)[Ranks.part])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.dim == 0:
            return functional.linear(exchanged(x, there=False), self.weight)
        return exchanged(functional.linear(x, self.weight), there=True)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), Part(2 * WIDTH, WIDTH, 0), Part(WIDTH, 2 * WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Table(Part):
    def forward(self, words: torch.Tensor) -> torch.Tensor:
        own, outside = own_words(words)
        return exchanged(functional.embedding(own, self.weight).masked_fill(outside[..., None], 0.0), there=True)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = Table(WORDS, WIDTH, 0)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(2)), nn.LayerNorm(WIDTH)

    def forward(self, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(exchanged(self.norm(x), there=False), self.words.weight)
        most = logits.detach().max(-1)[0]
        if Ranks.parts > 1:
            dist.all_reduce(most, dist.ReduceOp.MAX, group=Ranks.beside)
        logits = logits - most[..., None]
        own, outside = own_words(labels)
        picked = logits.gather(-1, own[..., None]).squeeze(-1).masked_fill(outside, 0.0)
        return exchanged(logits.exp().sum(-1), there=True).log() - exchanged(picked, there=True)


def own_words(words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Words counted from where a rank's begin, and which are others'."""
    own = WORDS // Ranks.parts
    start = Ranks.part * own
    outside = (words < start) | (words >= start + own)
    return (words - start).masked_fill(outside, 0), outside


def train(rank: int, output: Path, ranks: int, level: str) -> None:
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{output}.ranks", rank=rank, world_size=ranks)
        Ranks.meet(rank)
    torch.manual_seed(5)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with record(model, output, level=level):
        words = torch.randint(0, WORDS, (BATCH, LENGTH + 1))
        kept = (torch.rand(BATCH, LENGTH) > 0.3).float()
        kept[:3] *= torch.rand(3, LENGTH) > 0.5
        words, kept = words.chunk(Ranks.pairs)[Ranks.pair], kept.chunk(Ranks.pairs)[Ranks.pair]
        tokens = summed(kept.sum(), Ranks.across) if ranks > 1 else kept.sum()
        for part, mask in zip(words.chunk(MICRO), kept.chunk(MICRO), strict=True):
            (model(part[:, :-1], part[:, 1:]) * mask).sum().backward()
        for parameter in model.parameters():
            gradient = parameter.grad if ranks == 1 else summed(parameter.grad, Ranks.across)
            parameter.grad = gradient / tokens
        optimizer.step()
    os._exit(0)  # gloo's threads outlive the process group


if __name__ == "__main__":
    arguments = Path(sys.argv[1]).absolute(), int(sys.argv[2]), sys.argv[3]
    torch.multiprocessing.start_processes(train, arguments, nprocs=arguments[1], start_method="fork")
