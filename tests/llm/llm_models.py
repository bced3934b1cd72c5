"""A small model with all that recorders stumble over, for tests that record it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn


class Block(nn.Module):
    """Norms are defined last and called first; one part is never called, another twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(width, width)
        self.unused = nn.Linear(2, 2)
        self.norm = nn.LayerNorm(width)

    def forward(self, hidden: Any, *, mask: Any = None) -> dict[str, Any]:
        mixed = self.mix(self.mix(self.norm(hidden)))
        if mask is not None:
            mixed = torch.where(mask[..., None], mixed, torch.zeros_like(mixed))
        return {"hidden": hidden + mixed, "cache": (mixed[:, :1], [mixed, None])}


class Model(nn.Module):
    def __init__(self, width: int = 8, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, width)
        self.layers = nn.ModuleList([Block(width) for _ in range(layers)])
        self.head = nn.Linear(width, 20)

    def forward(self, ids: Any) -> Any:
        hidden = self.embed(ids)
        for layer in self.layers:
            hidden = layer(hidden, mask=ids > 3)["hidden"]
        return self.head(hidden), hidden


IDS = torch.tensor([[1, 5, 9, 2]])


def new_model() -> Model:
    """The same weights every time."""
    torch.manual_seed(0)
    return Model().eval()


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
