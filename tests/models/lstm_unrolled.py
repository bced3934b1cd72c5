"""The same classifier with its recurrence written out: one linear map of the input, one of the state at each step."""

from __future__ import annotations

import torch
from torch import nn

TRUTH = {
    "symbols": "embedding",
    # what a rung adds and normalises, the other side does outside of any module; maps inside the recurrence stand alone
    "rungs.{i}.memory": "recurrent.{i}",
    "rungs.{i}.level": "norms.{i}",
    "hidden": "head.0",
    ":tanh": "head.1",
    "answer": "head.3",
}


class Memory(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.from_input, self.from_state = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width)

    def forward(self, x):
        given = self.from_input(x)
        state = cell = torch.zeros_like(x[:, 0])
        states = []
        for step in given.unbind(1):
            enter, forget, new, leave = (step + self.from_state(state)).chunk(4, dim=-1)
            cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
            state = leave.sigmoid() * cell.tanh()
            states.append(state)
        return torch.stack(states, dim=1)


class Rung(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.memory, self.level = Memory(width), nn.LayerNorm(width)

    def forward(self, x):
        return self.level(x + self.memory(x))


class LSTMUnrolled(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        self.symbols = nn.Embedding(config.words, config.width)
        self.rungs = nn.ModuleList(Rung(config.width) for _ in range(layers))
        self.hidden = nn.Linear(config.width, 2 * config.width)
        self.answer = nn.Linear(2 * config.width, config.labels)

    def forward(self, tokens):
        x = self.symbols(tokens)
        for rung in self.rungs:
            x = rung(x)
        return self.answer(torch.tanh(self.hidden(x.amax(dim=1))))

    @torch.no_grad()
    def copy_from(self, other, layers: list[int]) -> None:
        """Take the weights of an LSTMLibrary; both keep the gates in the order in, forget, new, out."""
        pairs = [(self.symbols, other.embedding), (self.hidden, other.head[0]), (self.answer, other.head[3])]
        for mine, at in zip(self.rungs, layers, strict=True):
            lstm = other.recurrent[at]
            pairs.append((mine.level, other.norms[at]))
            for layer, what in ((mine.memory.from_input, "ih"), (mine.memory.from_state, "hh")):
                layer.weight.copy_(getattr(lstm, f"weight_{what}_l0"))
                layer.bias.copy_(getattr(lstm, f"bias_{what}_l0"))
        for layer, source in pairs:
            layer.load_state_dict(source.state_dict())
