"""Tokens on the left of a padded sequence see nothing: implementations of attention disagree there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import twinprobe
from support import needs

# Before, tokens that see nothing become NaN, and with them all tokens of the next layer.
NO_NAN = needs("torch", "2.5", "scaled_dot_product_attention gives zeros to tokens that see nothing")
WIDTH, LENGTH, PADS = 24, 12, (0, 4, 7)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.fused = False

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).unflatten(-1, (2, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        sees = attention_mask[:, None, None].bool() & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        if self.fused:
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=sees)
        else:
            scores = (q @ k.transpose(-1, -2)) * (WIDTH // 2) ** -0.5
            mixed = scores.masked_fill(~sees, torch.finfo(torch.float32).min).softmax(-1) @ v
        return x + self.out(mixed.transpose(1, 2).flatten(2))


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.layers = nn.Embedding(50, WIDTH), nn.ModuleList(Attention() for _ in range(2))

    def forward(self, tokens: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.table(tokens)
        for layer in self.layers:
            x = layer(x, attention_mask=attention_mask)
        return x


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = Body(), nn.Linear(WIDTH, 50)

    def forward(self, tokens: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.body(tokens, attention_mask=attention_mask))
        return scores


def compared(folder: Path, level: str, task: str = "statistics", change: str = "", end: str = "") -> Any:
    for side in ("target", "golden"):
        torch.manual_seed(0)
        model, tokens = Model(), torch.randint(1, 50, (3, LENGTH))
        mask = torch.tensor([[0] * pad + [1] * (LENGTH - pad) for pad in PADS])
        changed = side == "target"
        for layer in model.body.layers:
            layer.fused = changed
        if changed and change == "keys":
            model.body.layers[1].k.weight.data[:8].mul_(0.5)
        if changed and change == "mask":
            mask[1, 5] = 0
        with twinprobe.record(model, folder / side, level=level, task=task):
            scores = model(tokens, attention_mask=mask)
            if end == "loss":  # the last hidden token foretells the first one that is shown
                labels = tokens.masked_fill(mask == 0, -100)[:, 1:]
                functional.cross_entropy(scores[:, :-1].flatten(0, 1), labels.flatten()).backward()
    return twinprobe.compare(folder / "target", folder / "golden")


@NO_NAN
@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_what_is_computed_for_hidden_tokens_is_not_judged(tmp_path: Path, level: str, task: str) -> None:
    found = compared(tmp_path, level, task)
    assert found.first is None, found.summary
    assert "not judged: 11 tokens that the attention mask hides" in str(found.summary)


@NO_NAN
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_weight_behind_hidden_tokens_that_differ_is_named(tmp_path: Path, level: str) -> None:
    found = compared(tmp_path, level, change="keys")
    assert found.first.module == "body.layers.1.k", found.summary
    assert found.first.begins == "parameter"


def test_another_mask_is_named_where_it_comes_in(tmp_path: Path) -> None:
    found = compared(tmp_path, "L0", change="mask")
    assert "attention_mask" in f"{found.first.argument} {found.first.row}", found.summary


@NO_NAN
def test_a_loss_that_reads_hidden_tokens_differs_and_is_said_to(tmp_path: Path) -> None:
    found = compared(tmp_path, "mix", end="loss")
    assert found.first.module == "body.layers.0", found.summary
    assert "11 tokens that the attention mask hides, and Functional.cross_entropy.0" in found.first.sentence
