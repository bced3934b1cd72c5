"""Two layers of equal statistics, in any order and under names that say nothing: their sketches tell which is which."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import twinprobe
from twinprobe.torch import record


class Net(nn.Module):
    """Both layers have the same weights, one of them from the other end; the input reads the same from either end."""

    def __init__(self, names: tuple[str, str], turned: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
        with torch.no_grad():
            layers[1].weight.copy_(layers[0].weight.flip(0, 1))
        self.names, self.turned = names, turned
        for name, layer in zip(names, layers[::-1] if turned else layers, strict=True):
            setattr(self, name, layer)
        self.last = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        one, two = (getattr(self, name)(x) for name in self.names)
        return self.last(two - one if self.turned else one - two)


@pytest.mark.parametrize("turned", [False, True])
def test_layers_of_equal_statistics_are_paired_by_their_sketches(tmp_path: Path, turned: bool) -> None:
    for folder, names, other in (("target", ("up", "gate"), False), ("golden", ("first", "second"), turned)):
        model = Net(names, other)
        torch.manual_seed(1)
        half = torch.randn(8, 16)
        with record(model, tmp_path / folder, level="L0"):
            model(half + half.flip(1))
    found = twinprobe.align(tmp_path / "target", tmp_path / "golden").alignment
    pairs = {one.target[0].split(".")[1]: one.golden[0].split(".")[1] for one in found.relations}
    wanted = ("second", "first") if turned else ("first", "second")
    assert pairs == {"up": wanted[0], "gate": wanted[1], "last": "last"}
