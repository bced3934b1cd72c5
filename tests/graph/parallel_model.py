"""A small transformer-like model in any layout: tensor parallel, pipeline parallel, both, or neither; recorded on gloo.

    python parallel_model.py OUTPUT TP PP [FAULTY_LAYER]

Weights are cut from the same full matrices in every layout, so all layouts compute the same function.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from twinprobe.torch import record

WIDTH, INNER, LAYERS, WORDS, BATCH, LENGTH = 16, 32, 4, 24, 3, 5


def full(name: str, *shape: int) -> torch.Tensor:
    """The whole matrix of this name, the same on every rank."""
    seed = sum(ord(letter) * (at + 1) for at, letter in enumerate(name)) % 2**31
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) / shape[-1] ** 0.5


class Copy(torch.autograd.Function):
    """The same input for all ranks of the group; their gradients add up."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Reduce(torch.autograd.Function):
    """The sum of the ranks' partial results; each rank gets the whole gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


class ColumnLinear(nn.Module):
    """Rows of the weight, so a part of the outputs, on each rank."""

    def __init__(self, name: str, out: int, width: int, tp: int, at: int, group: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(full(name, out, width).chunk(tp, 0)[at].clone())
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.group is not None:
            x = Copy.apply(x, self.group)
        return functional.linear(x, self.weight)


class RowLinear(nn.Module):
    """Columns of the weight on each rank; the partial outputs add up."""

    def __init__(self, name: str, out: int, width: int, tp: int, at: int, group: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(full(name, out, width).chunk(tp, 1)[at].clone())
        self.bias = nn.Parameter(torch.full((out,), 0.1))
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.linear(x, self.weight)
        if self.group is not None:
            x = Reduce.apply(x, self.group)
        return x + self.bias


class Mlp(nn.Module):
    def __init__(self, layer: int, tp: int, at: int, group: Any) -> None:
        super().__init__()
        self.up = ColumnLinear(f"up{layer}", INNER, WIDTH, tp, at, group)
        self.down = RowLinear(f"down{layer}", WIDTH, INNER, tp, at, group)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, layer: int, tp: int, at: int, group: Any) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = Mlp(layer, tp, at, group)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(self.norm(x))


class Stage(nn.Module):
    """The layers of one pipeline stage, numbered from zero, with the embedding first and the head last."""

    def __init__(self, layers: range, *, first: bool, last: bool, tp: int, at: int, group: Any) -> None:
        super().__init__()
        if first:
            self.embedding = nn.Embedding(WORDS, WIDTH)
            self.embedding.weight.data.copy_(full("embedding", WORDS, WIDTH))
        self.layers = nn.ModuleList(Block(layer, tp, at, group) for layer in layers)
        if last:
            self.head = nn.Linear(WIDTH, WORDS)
            self.head.weight.data.copy_(full("head", WORDS, WIDTH))
            self.head.bias.data.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if hasattr(self, "embedding"):
            x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x) if hasattr(self, "head") else x


class Model(nn.Module):
    """What is hooked; its one child is the stage."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.module = stage

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x)


def train_step(model: Model, stage: int, pp: int, tp: int, at: int) -> None:
    """One forward and one backward pass through this rank's stage."""
    generator = torch.Generator().manual_seed(5)
    words = torch.randint(0, WORDS, (BATCH, LENGTH), generator=generator)
    if stage == 0:
        x = words
    else:
        x = torch.empty(BATCH, LENGTH, WIDTH)
        dist.recv(x, src=(stage - 1) * tp + at)
        x.requires_grad_()
    y = model(x)
    if stage == pp - 1:
        functional.cross_entropy(y.reshape(-1, WORDS), words.reshape(-1)).backward()
    else:
        dist.send(y.detach(), dst=(stage + 1) * tp + at)
        grad = torch.empty_like(y)
        dist.recv(grad, src=(stage + 1) * tp + at)
        y.backward(grad)
    if stage > 0:
        dist.send(x.grad, dst=(stage - 1) * tp + at)


def run_rank(rank: int, output: Path, tp: int, pp: int, faulty: int) -> None:
    torch.set_num_threads(1)
    world = tp * pp
    dist.init_process_group("gloo", init_method=f"file://{output}.meet", rank=rank, world_size=world)
    at, stage = rank % tp, rank // tp
    groups = [dist.new_group(list(range(first * tp, first * tp + tp))) for first in range(pp)]
    share = LAYERS // pp
    layers = range(stage * share, stage * share + share)
    group = groups[stage] if tp > 1 else None
    model = Model(Stage(layers, first=stage == 0, last=stage == pp - 1, tp=tp, at=at, group=group))
    if faulty in layers and at == tp - 1:
        with torch.no_grad():
            model.module.layers[faulty - layers.start].mlp.up.weight.mul_(1.5)
    with record(model, output, level="mix", task="statistics"):
        train_step(model, stage, pp, tp, at)
    dist.barrier()
    dist.destroy_process_group()


def main(output: Path, tp: int, pp: int, faulty: int) -> None:
    """Record the model in this layout, one process per rank; the last shard of a faulty layer has a wrong weight."""
    words = (output.absolute(), tp, pp, faulty)
    # Forked: no rank has to import torch again.
    torch.multiprocessing.start_processes(run_rank, words, nprocs=tp * pp, start_method="fork")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else -1)
