"""Two stages of a small network by send and recv, with four micro batches, recorded.

    python pipeline_by_hand.py OUTPUT RANKS DOUBLED

DOUBLED is the micro batch whose gradient the first stage doubles; -1 for none.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from twinprobe.torch import record

WIDTH, BATCH, MICRO = 8, 8, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.up(self.norm(x)))


def train(rank: int, output: Path, ranks: int, doubled: int) -> None:
    torch.manual_seed(3)
    layers = [Block() for _ in range(4)]
    model = nn.ModuleDict({"layers": nn.ModuleList(layers[rank * 4 // ranks : (rank + 1) * 4 // ranks])})
    words, goals = torch.randn(BATCH, WIDTH), torch.randint(0, WIDTH, (BATCH,))
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{output}.ranks", rank=rank, world_size=ranks)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model, output, level="mix"):
        size = BATCH // (MICRO if ranks > 1 else 1)
        for at, (part, goal) in enumerate(zip(words.split(size), goals.split(size), strict=True)):
            x = torch.empty_like(part) if rank else part.clone()
            if rank:
                dist.recv(x, 0)
            y = x.requires_grad_()
            for layer in model["layers"]:
                y = layer(y)
            if ranks == 1:
                functional.cross_entropy(y, goal).backward()
            elif rank:
                (functional.cross_entropy(y, goal) / MICRO).backward()
                dist.send(x.grad, 0)
            else:
                dist.send(y.detach(), 1)
                gradient = torch.empty_like(y)
                dist.recv(gradient, 1)
                y.backward(gradient * 2 if at == doubled else gradient)
        optimizer.step()
    os._exit(0)  # gloo's threads outlive the process group


if __name__ == "__main__":
    arguments = Path(sys.argv[1]).absolute(), int(sys.argv[2]), int(sys.argv[3])
    torch.multiprocessing.start_processes(train, arguments, nprocs=arguments[1], start_method="fork")
