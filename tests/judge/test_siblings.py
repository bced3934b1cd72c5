"""Sibling layers as a control group: what is usual among them is excused, what stands out is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import twinprobe

WIDTH, LAYERS = 64, 6


class Layer(nn.Module):
    """Raises to a high power, which makes so many times as much of an error: more than is expected of a power."""

    def __init__(self, power: float) -> None:
        super().__init__()
        self.power = power
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (1 + torch.sigmoid(self.up(self.norm(x)))).pow(self.power)
        return x + self.down(y / y.detach().amax())


class Model(nn.Module):
    def __init__(self, power: float) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embed, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 10)
        self.layers = nn.ModuleList(Layer(power) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def exactly(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
    """The same linear map in float64, rounded at the end: what another kernel gives."""
    exact = functional.linear(inputs[0].double(), module.weight.double(), module.bias.double())
    return exact.to(output.dtype)


def record(folder: Path, model: Model, dtype: torch.dtype) -> Path:
    torch.manual_seed(2)
    x, labels = torch.randn(8, 16, WIDTH).to(dtype), torch.randint(10, (128,))
    model = model.to(dtype)
    with twinprobe.record(model, folder, level="mix"):
        functional.cross_entropy(model(x).flatten(0, 1).float(), labels).backward()
    return next(folder.rglob("dump.json"))


def compared(folder: Path, change: Callable[[Model], Any], dtype: torch.dtype) -> Any:
    power = 60.0 if dtype == torch.float32 else 30.0
    model = Model(power)
    model.embed.register_forward_hook(exactly)
    change(model)
    return twinprobe.compare(record(folder / "t", model, dtype), record(folder / "g", Model(power), dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_all_layers_make_of_an_error_is_no_fault_of_one(tmp_path: Path, dtype: torch.dtype) -> None:
    result = compared(tmp_path, lambda _: None, dtype)
    assert result.agrees, result.first


@pytest.mark.parametrize(("dtype", "factor"), [(torch.float32, 1.0001), (torch.bfloat16, 1.05)])
def test_the_layer_that_stands_out_is_named(tmp_path: Path, dtype: torch.dtype, factor: float) -> None:
    def change(model: Model) -> None:
        model.layers[3].up.register_forward_hook(lambda _module, _inputs, output: output * factor)

    first = compared(tmp_path, change, dtype).first
    assert first is not None
    assert first.module == "layers.3.up"


@pytest.mark.parametrize(("dtype", "share"), [(torch.float32, 1e-3), (torch.bfloat16, 0.2)])
def test_a_fault_in_all_layers_is_not_excused(tmp_path: Path, dtype: torch.dtype, share: float) -> None:
    def change(model: Model) -> None:
        torch.manual_seed(3)
        for layer in model.layers:
            off = share * torch.randn(WIDTH).to(dtype)  # no factor, which would be a sign of its own
            layer.up.register_forward_hook(lambda _module, _inputs, output, off=off: output + off * output.abs())

    first = compared(tmp_path, change, dtype).first
    assert first is not None
    assert first.module.startswith("layers.0")
