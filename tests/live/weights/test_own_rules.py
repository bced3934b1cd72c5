"""add_special_init: rules of the user's own, and what happens to mapped layers without one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from twinprobe._live.pairing.layer_map import LayerMap
from twinprobe._live.weights import matching
from twinprobe._live.weights.copying import copy_aligned, copy_weights
from twinprobe._live.weights.matching import add_special_init
from twinprobe.errors import BadInput


@pytest.fixture(autouse=True)
def _forget_rules() -> Iterator[None]:
    before = list(matching.USER_RULES)
    yield
    matching.USER_RULES[:] = before


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner[0](x) + self.inner[1](x)


class Summed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.both(x)


class Child(Doubled):
    """Follows the rule of its parent."""


class Net(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part, self.last = part, nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.part(x))


def add_up(target: Summed, source: Doubled) -> None:
    with torch.no_grad():
        target.both.weight.copy_(source.inner[0].weight + source.inner[1].weight)
        target.both.bias.copy_(source.inner[0].bias + source.inner[1].bias)


def mapped(target: Net, source: Net) -> LayerMap:
    found = LayerMap()
    found.map = {target.part: source.part}
    return found


def test_a_mapped_pair_without_a_rule_keeps_its_values_and_is_told() -> None:
    target, source = Net(Summed()), Net(Doubled())
    before = target.part.both.weight.clone()
    report = copy_weights(target, source, mapped(target, source))
    assert torch.equal(target.part.both.weight, before)
    assert torch.equal(target.last.weight, source.last.weight)
    (notice,) = report.notices
    assert "part (Summed) and part (Doubled)" in notice
    assert "add_special_init(Summed, Doubled, function)" in notice
    assert report.kept == ["part.both.weight", "part.both.bias"]


@pytest.mark.parametrize("source_class", [Doubled, Child])
@pytest.mark.parametrize("names", [(Summed, Doubled), ("Summed", "Doubled")], ids=["classes", "names"])
def test_a_rule_of_your_own_copies_a_mapped_pair(names: tuple[object, object], source_class: type[nn.Module]) -> None:
    assert add_special_init(*names, add_up) is add_up
    target, source = Net(Summed()), Net(source_class())
    report = copy_weights(target, source, mapped(target, source))
    x = torch.randn(4, 3)
    torch.testing.assert_close(target(x), source(x))
    assert report.notices == []
    assert report.kept == []


def test_it_is_a_decorator_too() -> None:
    @add_special_init(Summed, Doubled)
    def rule(target: Summed, source: Doubled) -> None:
        add_up(target, source)

    target, source = Net(Summed()), Net(Doubled())
    copy_weights(target, source, mapped(target, source))
    x = torch.randn(4, 3)
    torch.testing.assert_close(target(x), source(x))


def test_the_form_with_frameworks_takes_the_base_first() -> None:
    add_special_init("torch", "Doubled", "torch", "Summed", lambda base, raw: add_up(raw, base))
    add_special_init("paddle", "Doubled", "torch", "Summed", lambda base, raw: pytest.fail("not for two torch models"))
    target, source = Net(Summed()), Net(Doubled())
    copy_aligned(target, source, [("part", "part"), ("last", "last")])
    x = torch.randn(4, 3)
    torch.testing.assert_close(target(x), source(x))


def test_the_nearest_class_wins_then_the_newest() -> None:
    calls = []
    add_special_init(Summed, Child, lambda target, source: calls.append("child"))
    add_special_init(Summed, Doubled, lambda target, source: calls.append("old"))
    add_special_init(Summed, Doubled, lambda target, source: calls.append("new"))
    for part in (Child(), Doubled()):
        copy_aligned(Net(Summed()), Net(part), [("part", "part")])
    assert calls == ["child", "new"]


def test_own_rules_come_before_built_in_ones() -> None:
    @add_special_init(nn.Linear, nn.Linear)
    def half(target: nn.Linear, source: nn.Linear) -> None:
        with torch.no_grad():
            target.weight.copy_(source.weight / 2)

    target, source = nn.Linear(3, 3), nn.Linear(3, 3)
    copy_aligned(target, source, [("", "")])
    assert torch.equal(target.weight, source.weight / 2)


def test_a_rule_that_fails_leaves_the_target_as_it_was() -> None:
    @add_special_init(Summed, Doubled)
    def fails(target: Summed, source: Doubled) -> None:
        add_up(target, source)
        raise RuntimeError("half done")

    target, source = Net(Summed()), Net(Doubled())
    before = {name: value.clone() for name, value in target.state_dict().items()}
    with pytest.raises(RuntimeError, match="half done"):
        copy_aligned(target, source, [("last", "last"), ("part", "part")])
    assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())


def test_a_mapped_pair_of_one_class_is_copied_name_by_name() -> None:
    target, source = Net(Doubled()), Net(Doubled())
    report = copy_weights(target, source, mapped(target, source))
    assert torch.equal(target.part.inner[1].weight, source.part.inner[1].weight)
    assert report.notices == []


def test_layers_that_are_left_out_keep_their_weights() -> None:
    target, source = Net(Summed()), Net(nn.Identity())
    found = LayerMap()
    found.ignore(target.part)
    with pytest.raises(BadInput, match=r"part\.both\.weight"):
        copy_weights(target, source, found)
    found.ignore_recursively(target.part)
    assert copy_weights(target, source, found).kept == ["part.both.weight", "part.both.bias"]


@pytest.mark.parametrize(
    "wrong", [(Summed,), (Summed, Doubled, 3), (1, Doubled, add_up), ("tf", "A", "torch", "B", add_up)]
)
def test_a_wrong_call_says_what_is_expected(wrong: tuple[object, ...]) -> None:
    with pytest.raises(BadInput, match=r"two classes and a function|neither a class|unknown framework"):
        add_special_init(*wrong)
