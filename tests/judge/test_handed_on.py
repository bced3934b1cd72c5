"""Results that a module hands on as a part of it gave them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import twinprobe


class Part(nn.Module):
    """Golden hands on what its last layer gives."""

    def __init__(self, *, rolled: bool = False) -> None:
        super().__init__()
        self.mix, self.out = nn.Linear(32, 32), nn.Linear(32, 32)
        self.norm = nn.LayerNorm(32)
        self.rolled = rolled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.out(torch.tanh(self.mix(x)) + 1e-3 * self.norm(x / 64 + 8))  # 16 bits lose x
        return x.roll(1, 1) if self.rolled else x


class Net(nn.Module):
    """Parts behind one another, each beside a residual."""

    def __init__(self, *, rolled: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 32)
        self.parts = nn.ModuleList(Part(rolled=rolled and number == 1) for number in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(3))
        self.head = nn.Linear(32, 40)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.table(words)
        for norm, part in zip(self.norms, self.parts, strict=True):
            x = x + part(norm(x))
        return self.head(x)


@pytest.mark.parametrize("rolled", [True, False])
def test_what_is_done_with_the_result_of_a_part_is_no_noise_of_the_parts(rolled: bool, tmp_path: Path) -> None:
    """One part is so far off that it would explain any result. The last one is not, and golden hands that on."""
    for side in ("target", "golden"):
        torch.manual_seed(0)
        model = Net(rolled=rolled and side == "target").to(torch.bfloat16 if side == "target" else torch.float32)
        words = torch.randint(0, 40, (4, 16), generator=torch.Generator().manual_seed(1))
        with twinprobe.record(model, tmp_path / side, level="L0"):
            nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten()).backward()
    result = twinprobe.compare(tmp_path / "target", tmp_path / "golden")
    if rolled:
        assert result.first is not None
        assert result.first.module == "parts.1"
    else:
        assert result.agrees, result.first
