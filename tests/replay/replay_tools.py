"""A small model, recorded with its tensors, and kernels that are wrong at chosen calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import twinprobe.torch


class Block(torch.nn.Module):
    """Attention by hand and an MLP, as small as they get."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.proj = torch.nn.Linear(width, width)
        self.up = torch.nn.Linear(width, 2 * width)
        self.down = torch.nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = functional.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)
        x = x + self.proj(scores @ v)
        return x + self.down(functional.gelu(self.up(x)))


class Small(torch.nn.Module):
    def __init__(self, layers: int = 4, width: int = 16) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(50, width)
        self.layers = torch.nn.ModuleList(Block(width) for _ in range(layers))
        self.head = torch.nn.Linear(width, 50)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return functional.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())


class Faulty(TorchFunctionMode):
    """Kernels that are wrong at chosen calls: by the function's name and the number of the call."""

    def __init__(self, faults: dict[tuple[str, int], Callable[[torch.Tensor], torch.Tensor]]) -> None:
        super().__init__()
        self.faults = faults
        self.calls: dict[str, int] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        number = self.calls[name] = self.calls.get(name, -1) + 1
        result = func(*args, **(kwargs or {}))
        fault = self.faults.get((name, number))
        return fault(result) if fault else result


def small(dtype: torch.dtype = torch.float32) -> Small:
    torch.manual_seed(0)
    return Small().to(dtype)


def record(
    folder: Path, faults: dict[tuple[str, int], Any] | None = None, *, dtype: torch.dtype = torch.float32
) -> Path:
    model = small(dtype)
    ids = torch.arange(24).reshape(2, 12)
    with Faulty(faults or {}), twinprobe.torch.record(model, folder, level="mix", task="tensor"):
        model(ids).backward()
    return folder
