"""A small model with its words split over ranks, recorded on gloo: along the sequence, or along the batch.

    python split_model.py OUTPUT context|expert RANKS LEVEL [FAULTY_EXPERT]

Context parallel: each rank has a part of every sequence, and attention gathers keys and values from all of them. Expert
parallel: each rank has a part of the batch and some of the experts; words travel to their expert and back. On one rank
both are plain models, and all layouts compute the same function.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from parallel_model import WIDTH, WORDS, full
from torch import nn
from torch.nn import functional

from twinprobe.torch import record

LAYERS, EXPERTS, BATCH, LENGTH = 2, 4, 4, 6


class Gather(torch.autograd.Function):
    """The parts of all ranks; the gradients of a part add up on its own rank."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int) -> torch.Tensor:
        ctx.dim = dim
        return gathered(x, dim)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return own_part_of_sum(grad, ctx.dim), None


class Scatter(torch.autograd.Function):
    """The own part of the sum of what all ranks have; the gradient of the whole comes from all parts."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int) -> torch.Tensor:
        ctx.dim = dim
        return own_part_of_sum(x, dim)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gathered(grad, ctx.dim), None


def gathered(x: torch.Tensor, dim: int) -> torch.Tensor:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, dim)


def own_part_of_sum(x: torch.Tensor, dim: int) -> torch.Tensor:
    x = x.clone()
    dist.all_reduce(x)
    return x.chunk(dist.get_world_size(), dim)[dist.get_rank()].clone()


def linear(name: str, out: int, width: int) -> nn.Linear:
    layer = nn.Linear(width, out, bias=False)
    layer.weight.data.copy_(full(name, out, width))
    return layer


class Attention(nn.Module):
    def __init__(self, layer: int) -> None:
        super().__init__()
        self.query = linear(f"query{layer}", WIDTH, WIDTH)
        self.key = linear(f"key{layer}", WIDTH, WIDTH)
        self.value = linear(f"value{layer}", WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.query(x), self.key(x), self.value(x)
        if dist.get_world_size() > 1:
            key, value = Gather.apply(key, 1), Gather.apply(value, 1)
        return functional.softmax(query @ key.transpose(1, 2) / WIDTH**0.5, -1) @ value


class Expert(nn.Module):
    """Finds its own words among all and leaves the others zero."""

    def __init__(self, layer: int, number: int) -> None:
        super().__init__()
        self.number = number
        self.up = linear(f"up{layer}.{number}", WIDTH, WIDTH)

    def forward(self, words: torch.Tensor, choice: torch.Tensor) -> torch.Tensor:
        mine = (choice == self.number).nonzero().squeeze(1)
        return torch.zeros_like(words).index_add(0, mine, functional.gelu(self.up(words[mine])))


class Moe(nn.Module):
    def __init__(self, layer: int) -> None:
        super().__init__()
        share = EXPERTS // dist.get_world_size()
        first = share * dist.get_rank()
        self.router = linear(f"router{layer}", EXPERTS, WIDTH)
        self.experts = nn.ModuleList(Expert(layer, first + at) for at in range(share))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = x.reshape(-1, WIDTH)
        choice = self.router(words).argmax(-1)
        if dist.get_world_size() > 1:
            words, choice = Gather.apply(words, 0), gathered(choice, 0)
        y = torch.stack([expert(words, choice) for expert in self.experts]).sum(0)
        if dist.get_world_size() > 1:
            y = Scatter.apply(y, 0)
        return x + y.reshape(x.shape)


class Block(nn.Module):
    def __init__(self, layer: int, inner: type[nn.Module]) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = inner(layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(self.norm(x))


class Model(nn.Module):
    def __init__(self, inner: type[nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.embedding.weight.data.copy_(full("embedding", WORDS, WIDTH))
        self.layers = nn.ModuleList(Block(layer, inner) for layer in range(LAYERS))
        self.head = linear("head", WORDS, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def run_rank(rank: int, output: Path, kind: str, ranks: int, level: str, faulty: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{output}.meet", rank=rank, world_size=ranks)
    model = Model(Attention if kind == "context" else Moe)
    for name, module in model.named_modules():
        if isinstance(module, Expert) and module.number == faulty and name.startswith("layers.1"):
            module.up.weight.data.mul_(1.5)
    words = torch.randint(0, WORDS, (BATCH, LENGTH), generator=torch.Generator().manual_seed(5))
    own = words.chunk(ranks, 1 if kind == "context" else 0)[rank]
    with record(model, output, level=level, task="statistics"):
        loss = functional.cross_entropy(model(own).reshape(-1, WORDS), own.reshape(-1), reduction="sum")
        (loss / words.numel()).backward()
    dist.barrier()
    dist.destroy_process_group()


def main(output: Path, kind: str, ranks: int, level: str, faulty: int) -> None:
    """Record the model on so many ranks; forked, so that none of them has to import torch again."""
    words = (output.absolute(), kind, ranks, level, faulty)
    torch.multiprocessing.start_processes(run_rank, words, nprocs=ranks, start_method="fork")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]) if len(sys.argv) > 5 else -1)
