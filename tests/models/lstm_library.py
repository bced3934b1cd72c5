"""A text classifier of residual LSTM layers, each one the library's: the first of two writings."""

from __future__ import annotations

from types import SimpleNamespace

from torch import nn


class LSTMLibrary(nn.Module):
    def __init__(self, width: int = 24, layers: int = 4) -> None:
        super().__init__()
        self.config = SimpleNamespace(width=width, words=64, labels=5)
        self.embedding = nn.Embedding(64, width)
        self.recurrent = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(width, 2 * width), nn.Tanh(), nn.Dropout(0.1), nn.Linear(2 * width, 5))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for lstm, norm in zip(self.recurrent, self.norms, strict=True):
            states, _ = lstm(x)
            x = norm(x + states)
        return self.head(x.amax(dim=1))
