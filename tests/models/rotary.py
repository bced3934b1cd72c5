"""Rotary positions, in the half-and-half convention of the published Llama checkpoints on Hugging Face."""

from __future__ import annotations

import torch


def angles(length: int, width: int, base: float = 10000.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine for each position: (length, width)."""
    steps = base ** (-torch.arange(0, width, 2).float() / width)
    table = torch.outer(torch.arange(length).float(), steps)
    table = torch.cat([table, table], dim=-1)
    return table.cos(), table.sin()


def turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the last dimension; cos and sin broadcast."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
