"""One layer that holds q, k and v against three: grouped they are copied, and without a group they are proposed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from twinprobe import LayerMap, auto_diff
from twinprobe._live.result import Result
from twinprobe.errors import BadInput

X = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(1))


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


class Joined(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(6, 18), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(attend(*self.qkv(x).chunk(3, -1)))


class Apart(nn.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(6, 6) for _ in range(4))
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(attend(self.q(x) * self.scale, self.k(x), self.v(x)))


def grouped(joined: Joined, apart: Apart) -> LayerMap:
    layer_map = LayerMap()
    layer_map.group([joined.qkv], [apart.q, apart.k, apart.v])
    return layer_map


@pytest.mark.parametrize("joined_is_base", [True, False])
def test_a_group_of_three_projections_is_copied_and_the_models_agree(joined_is_base: bool) -> None:
    joined, apart = Joined(), Apart()
    pair = (joined, apart) if joined_is_base else (apart, joined)
    result = auto_diff(*pair, X, layer_map=grouped(joined, apart), quiet=True)
    assert result, result
    for part, name in enumerate("qkv"):
        one = getattr(apart, name)
        assert torch.equal(one.weight, joined.qkv.weight[6 * part : 6 * part + 6])
        assert torch.equal(one.bias, joined.qkv.bias[6 * part : 6 * part + 6])
    (note,) = [note for note in result.notes if "group" in note]
    assert "outputs are not compared" in note
    compared = {one.raw for one in result.findings if one.place == "output"}
    assert "Module.out.Linear.forward.0" in compared, "what follows is"


def test_a_fault_behind_the_group_is_found() -> None:
    joined, apart = Joined(), Apart(scale=1.5)
    result = auto_diff(joined, apart, X, layer_map=grouped(joined, apart), quiet=True)
    assert not result
    assert "shape" not in result.first.why


@pytest.mark.parametrize("joined_is_base", [True, False])
def test_without_a_group_the_joined_layer_is_proposed(joined_is_base: bool) -> None:
    pair = (Joined(), Apart()) if joined_is_base else (Apart(), Joined())
    with pytest.raises(BadInput) as raised:
        auto_diff(*pair, X, quiet=True)
    lines = str(raised.value).splitlines()
    missing = next(line for line in lines if (" q.weight" if joined_is_base else " qkv.weight") in line)
    proposed = "qkv.weight [18, 6]" if joined_is_base else "q.weight [6, 6]"
    assert f"nearest partner in the source: {proposed}" in missing
    assert "LayerMap.group" in missing


@pytest.mark.parametrize("joined_is_base", [True, False])
def test_equal_weights_in_one_layer_and_in_three_are_compared_as_one(joined_is_base: bool) -> None:
    """What the aligner knows to be one layer and three: parameters, results, gradients and updates, put together."""

    def models() -> tuple[Joined, Apart]:
        joined, apart = Joined(), Apart()
        apart.out.load_state_dict(joined.out.state_dict())
        for part, name in enumerate("qkv"):
            for kind in ("weight", "bias"):
                rows = getattr(joined.qkv, kind).data[6 * part : 6 * part + 6]
                getattr(getattr(apart, name), kind).data.copy_(rows)
        return joined, apart

    def compared(joined: Joined, apart: Apart) -> Result:
        pair = (joined, apart) if joined_is_base else (apart, joined)
        return auto_diff(
            *pair, X, auto_weights=False, quiet=True, steps=2, loss_fns=lambda given: given.square().mean(),
            optimizers=[torch.optim.SGD(model.parameters(), lr=0.1) for model in pair],
        )  # fmt: skip

    result = compared(*models())
    assert result, result
    assert result.steps == 2
    assert not [note for note in result.notes if "only in" in note]
    raw = "Module.q.Linear.forward.0" if joined_is_base else "Module.qkv.Linear.forward.0"
    assert {"parameter", "output", "parameter after the step"} <= {
        one.place for one in result.findings if one.raw == raw
    }
    joined, apart = models()
    apart.k.weight.data[2] *= 1.5
    wrong = compared(joined, apart)
    assert not wrong
    assert wrong.first.raw == raw
    assert "the parameter " in wrong.first.why


@pytest.mark.parametrize("sizes", [(8, 8), (6, 4, 2)])
@pytest.mark.parametrize("joined_is_base", [True, False])
def test_parts_of_any_number_and_size_are_copied(sizes: tuple[int, ...], joined_is_base: bool) -> None:
    """Gate and up in one layer; queries of more heads than keys and values have."""

    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(6, size) for size in sizes)
            self.out = nn.Linear(sum(sizes), 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(torch.cat([part(x) for part in self.parts], -1).sin())

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.whole, self.out = nn.Linear(6, sum(sizes)), nn.Linear(sum(sizes), 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.whole(x).sin())

    parts, whole = Parts(), Whole()
    layer_map = LayerMap()
    layer_map.group(list(parts.parts), [whole.whole])
    pair = (whole, parts) if joined_is_base else (parts, whole)
    assert auto_diff(*pair, X, layer_map=layer_map, quiet=True)
    assert torch.equal(torch.cat([part.weight for part in parts.parts]), whole.whole.weight)
