"""The same model in another form: norms folded into layers, int8, adapters elsewhere, parameters that are cast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.optimization import fuse
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

import twinprobe

WIDTH = 16


def compared(folder: Path, target: nn.Module, golden: nn.Module, x: torch.Tensor, level: str) -> Any:
    for side, model in (("target", target), ("golden", golden)):
        with twinprobe.record(model, folder / side, level=level), torch.no_grad():
            model(x)
    return twinprobe.compare(folder / "target", folder / "golden")


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, WIDTH, 3, bias=False), nn.BatchNorm2d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(self.norm(self.conv(x)))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head = Block(3), Block(WIDTH), nn.Linear(WIDTH, 7)
        for norm in (self.first.norm, self.second.norm):
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.uniform_(norm.running_var, 0.5, 1.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(x)).mean((2, 3)))


def folded(**changes: float) -> nn.Module:
    model = Network().eval()
    for block in (model.first, model.second):
        block.conv, block.norm = fuse_conv_bn_eval(block.conv, block.norm), nn.Identity()
    for name, factor in changes.items():
        model.get_submodule(name.replace("_", ".")).weight.data[2].mul_(factor)
    return model


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize(
    ("changes", "module"), [({}, None), ({"head": 1.5}, "head"), ({"second_conv": 1.5}, "second.conv")]
)
def test_a_folded_norm_explains_nothing_behind_it(
    tmp_path: Path, level: str, changes: dict[str, float], module: str | None
) -> None:
    x = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    found = compared(tmp_path, folded(**changes), Network().eval(), x, level)
    assert (found.first.module if found.first else None) == module, found.summary


def test_a_traced_network_without_its_norms_has_the_same_layers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Block(3), *(Block(WIDTH) for _ in range(5)), nn.Conv2d(WIDTH, 4, 1)).eval()
    assert compared(tmp_path, fuse(model), model, torch.randn(2, 3, 16, 16), "L0").agrees


def perceptron(scaled: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(48, 48), nn.LayerNorm(48), nn.GELU())))
    if scaled:
        model[3].weight.data.mul_(-1.0)
    return model.eval()


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("scaled", [False, True])
def test_products_of_int8_are_off_by_some_per_cent(tmp_path: Path, level: str, scaled: bool) -> None:
    target = torch.ao.quantization.quantize_dynamic(perceptron(scaled), {nn.Linear}, dtype=torch.qint8)
    x = torch.randn(20, 48, generator=torch.Generator().manual_seed(1))
    found = compared(tmp_path, target, perceptron(), x, level)
    assert "integers of 8 bits" in str(found.summary)
    assert (found.first.module if found.first else None) == ("3" if scaled else None), found.summary


class Decay(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.rate = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.rand(WIDTH, dtype=torch.bfloat16) * factor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * torch.exp(-self.rate.float())


def test_a_parameter_that_its_module_casts_is_a_parameter(tmp_path: Path) -> None:
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1))
    first = compared(tmp_path, nn.Sequential(Decay(2.0)), nn.Sequential(Decay(1.0)), x, "mix").first
    assert (first.begins, first.module) == ("parameter", "0")


class Adapted(nn.Module):
    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.base_layer, self.adapter = layer, nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base_layer(x) + self.adapter(x)


class Adapted2(nn.Module):
    def __init__(self, *names: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        for name in ("queries", "keys", "values"):
            setattr(self, name, nn.Linear(WIDTH, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)
        for name in names:
            setattr(self, name, Adapted(getattr(self, name)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.queries(x) * self.keys(x) + self.values(x))


def test_an_adapter_in_another_layer_leaves_names_what_they_are(tmp_path: Path) -> None:
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1))
    models = [
        nn.Sequential(Adapted2(*names), nn.Linear(WIDTH, 4)) for names in (("queries", "keys"), ("queries", "values"))
    ]
    first = compared(tmp_path, *models, x, "L0").first
    assert first.module == "0.keys", first
    assert "golden's" not in first.sentence
