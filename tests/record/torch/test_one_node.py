"""Calls of one node are told from others without walking the graph: the record is the same as with a walk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from twinprobe._record.torch.autograd import GraphIndex
from twinprobe.torch import record


class Inner(nn.Module):
    """One layer inside, and what it does with it and its input."""

    def __init__(self, act: Any) -> None:
        super().__init__()
        self.layer, self.slow, self.act = nn.Linear(4, 4), Slow(), act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.act(self, x)
        return result


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


class Slow(nn.Module):
    """A layer that takes a walk."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Doubling.apply(x) + x.sin()


def more_kept_aside(inner: Inner, x: torch.Tensor) -> torch.Tensor:
    inner.aside = inner.slow(x * 2)
    return x.tanh()


def kept_aside(inner: Inner, x: torch.Tensor) -> torch.Tensor:
    """What the layer gives leaves by another way than the module's output."""
    inner.aside = inner.layer(x)
    return x.tanh()


ACTS = {
    "a layer": lambda inner, x: inner.layer(x),
    "used twice": lambda inner, x: inner.layer(x) + x,
    "one operation of it with itself": lambda _, x: x * x,
    "turned weight of the input": lambda inner, x: torch.addmm(inner.layer.bias, x[:4], x[:4].t()),
    "kept aside": kept_aside,
    "a product kept aside": more_kept_aside,
    "written in place": lambda inner, x: torch.relu_(inner.layer(x)),
    "a view": lambda inner, x: inner.layer(x).view(-1, 4),
    "the input itself": lambda inner, x: x,
    "cut off": lambda inner, x: inner.layer(x).detach(),
    "own function": lambda inner, x: Doubling.apply(inner.layer(Doubling.apply(x))),
    "norm": lambda inner, x: nn.functional.layer_norm(x, (4,), inner.layer.bias),
    "of the weight": lambda inner, x: nn.functional.linear(x, inner.layer.weight.t()),
    "of the result of the weight": lambda inner, x: x @ inner.layer(inner.layer.weight),
}


class Outer(nn.Module):
    def __init__(self, act: Any) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(4, 4), Inner(act), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.inner(self.first(x)))
        aside = getattr(self.inner, "aside", None)
        return result if aside is None else result + aside.sum()


def recorded(act: Any, path: Path, dump_of: Any, level: str = "mix") -> dict[str, Any]:
    torch.manual_seed(0)
    model = Outer(act)
    with record(model, path, level=level, task="statistics"):
        model(torch.arange(16.0).reshape(4, 4) / 16).sum().backward()
    data: dict[str, Any] = dump_of(path).data
    return data


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("act", ACTS)
def test_gradients_are_the_same_with_and_without_a_walk(
    act: str, level: str, tmp_path: Path, dump_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = recorded(ACTS[act], tmp_path / "quick", dump_of, level)
    monkeypatch.setattr(GraphIndex, "direct_slots", lambda *_: None)
    walked = recorded(ACTS[act], tmp_path / "walked", dump_of, level)
    assert quick == walked
    assert any(".backward" in name for name in quick)


def test_a_normed_weight_is_part_of_its_layer(tmp_path: Path, dump_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(inner: Inner, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(inner.layer, "parametrizations"):
            parametrizations.weight_norm(inner.layer)
        return nn.functional.linear(x, inner.layer.weight)

    quick = recorded(act, tmp_path / "quick", dump_of)
    monkeypatch.setattr(GraphIndex, "direct_slots", lambda *_: None)
    assert quick == recorded(act, tmp_path / "walked", dump_of)


@pytest.mark.parametrize("passes", [1, 2])
def test_a_weight_that_autocast_casts_once_has_a_gradient_for_each_call(passes: int, tmp_path: Path) -> None:
    """The cast is shared by all calls, and by all passes under one autocast: what goes through it is a sum."""

    class Repeated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.filter = nn.Linear(8, 8), nn.Conv1d(4, 4, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                x = self.filter(self.layer(x).tanh()).tanh()
            return x

    norms: list[dict[str, list[Any]]] = []
    for enabled in (True, False):
        torch.manual_seed(0)
        model, x = Repeated(), torch.randn(2, 4, 8)
        with record(model, tmp_path / str(enabled), level="mix"):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                loss = torch.stack([model(x).float().square().sum() for _ in range(passes)]).sum()
            loss.backward()
        entries = json.loads(next((tmp_path / str(enabled)).glob("step0/*/dump.json")).read_text())["data"]
        norms.append({
            name: [one and one["Norm"] for one in entry["output"]] for name, entry in entries.items()
            if name.startswith("Functional.") and name.endswith(".backward")
        })  # fmt: skip
    assert len(norms[0]) == 6 * passes
    for name, gradients in norms[0].items():
        assert gradients == [one if one is None else pytest.approx(one, rel=0.05) for one in norms[1][name]], name
