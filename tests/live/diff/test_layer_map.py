"""LayerMap: mapped layers are compared as a whole, ignored ones not at all, groups by what their last gives."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_pairs import Activated, ByFunction, Nothing, Wrapped, numbers

from twinprobe import LayerMap, add_special_init, auto_diff
from twinprobe.errors import BadInput

X = numbers(4, 6)


class Inner(nn.Module):
    """Two layers, defined in one or the other order under other names."""

    def __init__(self, turned: bool, scale: float = 1.0) -> None:
        super().__init__()
        if turned:
            self.b, self.a = nn.Linear(6, 6), nn.Linear(6, 6)
        else:
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.turned, self.scale = turned, scale

    def parts(self) -> tuple[nn.Linear, nn.Linear]:
        return (self.a, self.b) if self.turned else (self.first, self.second)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, two = self.parts()
        return two(torch.relu(one(x))) * self.scale


class OtherInner(Inner):
    pass


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.last = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.inner(x))


def copy_inner(target: Inner, source: Inner) -> None:
    for one, other in zip(target.parts(), source.parts(), strict=True):
        one.load_state_dict(other.state_dict())


def test_a_mapped_pair_is_compared_as_a_whole_and_nothing_inside_it() -> None:
    base, raw = Outer(Inner(False)), Outer(OtherInner(True))
    copy_inner(raw.inner, base.inner)
    layer_map = LayerMap()
    layer_map.map = {raw.inner: base.inner}
    result = auto_diff(base, raw, X, layer_map=layer_map, quiet=True)
    assert result
    assert any("add_special_init" in note and "Inner" in note for note in result.notes)
    calls = set(result.table["raw"])
    assert "Module.inner.OtherInner.forward.0" in calls
    assert not [name for name in calls if name.startswith("Module.inner.a") or name.startswith("Module.inner.b")]


def test_a_difference_in_a_mapped_pair_is_marked_on_the_pair() -> None:
    base, raw = Outer(Inner(False)), Outer(OtherInner(True, scale=1.5))
    copy_inner(raw.inner, base.inner)
    result = auto_diff(base, raw, X, layer_map={base.inner: raw.inner}, quiet=True)
    assert not result
    assert result.first.raw == "Module.inner.OtherInner.forward.0"


def test_a_rule_of_the_users_own_copies_a_mapped_pair() -> None:
    add_special_init(OtherInner, Inner, copy_inner)
    base, raw = Outer(Inner(False)), Outer(OtherInner(True))
    layer_map = LayerMap()
    layer_map.map = {base.inner: raw.inner}
    layer_map.map = {base.last: raw.last}
    assert len(layer_map.map) == 2
    assert auto_diff(base, raw, X, layer_map=layer_map, quiet=True)


class WithExtra(nn.Module):
    """An extra layer whose own output is not used; it holds weights or has layers inside."""

    def __init__(self, extra: nn.Module | None) -> None:
        super().__init__()
        self.extra = extra
        self.linear = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.extra is not None:
            x = self.extra(x)
        return self.linear(x)


class Scaled(nn.Module):
    """Holds a parameter and changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class HoldsLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.unused(x)
        return x


def test_an_extra_layer_without_weights_needs_no_ignore_but_may_have_one() -> None:
    assert auto_diff(WithExtra(None), WithExtra(Nothing()), X, quiet=True)
    raw = WithExtra(Nothing())
    layer_map = LayerMap()
    layer_map.ignore(raw.extra)
    result = auto_diff(WithExtra(None), raw, X, layer_map=layer_map, quiet=True)
    assert result
    assert "Nothing" not in str(result.raw_tree)


def test_ignore_leaves_out_a_layer_but_not_what_is_inside() -> None:
    raw = WithExtra(HoldsLinear())
    layer_map = LayerMap()
    layer_map.ignore([raw.extra])
    with pytest.raises(BadInput, match=r"extra\.unused"):
        auto_diff(WithExtra(None), raw, X, layer_map=layer_map, quiet=True)


@pytest.mark.parametrize("spelling", ["ignore_recursively", "ignore_recursivly"])
def test_ignore_recursively_leaves_out_everything_inside(spelling: str) -> None:
    raw = WithExtra(HoldsLinear())
    layer_map = LayerMap()
    getattr(layer_map, spelling)(raw.extra)
    result = auto_diff(WithExtra(None), raw, X, layer_map=layer_map, quiet=True)
    assert result
    assert "extra" not in str(result.raw_tree)


def test_ignore_class_takes_every_instance_below() -> None:
    raw = WithExtra(Scaled())
    with pytest.raises(BadInput, match="scale"):
        auto_diff(WithExtra(None), raw, X, quiet=True)
    layer_map = LayerMap()
    layer_map.ignore_class(raw, (Scaled, HoldsLinear))
    assert auto_diff(WithExtra(None), raw, X, layer_map=layer_map, quiet=True)
    sequential = LayerMap()
    wrapped = Wrapped()
    sequential.ignore_class(wrapped)
    result = auto_diff(Activated(False), wrapped, X, layer_map=sequential, quiet=True)
    assert result
    assert "Sequential" not in str(result.raw_tree)


def test_auto_maps_attention_and_recurrent_layers_by_their_order() -> None:
    class Recurrent(nn.Module):
        def __init__(self, count: int = 2) -> None:
            super().__init__()
            self.stack = nn.ModuleList([nn.LSTM(6, 6, batch_first=True) for _ in range(count)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.stack:
                x, _ = layer(x)
            return x

    base, raw = Recurrent(), Recurrent()
    layer_map = LayerMap()
    assert layer_map.auto(base, raw)
    assert layer_map.map == {base.stack[0]: raw.stack[0], base.stack[1]: raw.stack[1]}
    assert auto_diff(base, raw, numbers(2, 3, 6), layer_map=layer_map, quiet=True)
    other = LayerMap()
    assert not other.auto(base, Recurrent(3))
    assert other.map == {}


def test_a_group_is_compared_by_what_its_last_layer_gives() -> None:
    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(6, 9, bias=False), nn.Linear(9, 6, bias=False)
            self.last = nn.Linear(6, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.down(self.up(x)))

    class Fused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both = nn.Linear(6, 6, bias=False)
            self.last = nn.Linear(6, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.both(x))

    base, raw = Split(), Fused()
    with torch.no_grad():
        raw.both.weight.copy_(base.down.weight @ base.up.weight)
    layer_map = LayerMap()
    layer_map.group([base.up, base.down], [raw.both])
    result = auto_diff(base, raw, X.clone().requires_grad_(), layer_map=layer_map, quiet=True)
    assert result, result
    rows = {(one.raw, one.base, one.place) for one in result.findings}
    for place, direction in (("input", "forward"), ("output", "forward"), ("gradient of input", "backward")):
        assert (f"Module.both.Linear.{direction}.0", f"Module.down.Linear.{direction}.0", place) in rows
    with torch.no_grad():
        raw.both.weight *= 2
    result = auto_diff(base, raw, X, layer_map=layer_map, quiet=True)
    assert not result
    assert result.first.base == "Module.down.Linear.forward.0"


def test_a_layer_is_mapped_to_a_call_of_a_function() -> None:
    base, raw = Activated(False), ByFunction()
    layer_map = LayerMap()
    layer_map.map_api(base.relu, "relu")
    result = auto_diff(base, raw, X, layer_map=layer_map, quiet=True)
    assert result
    assert ("Functional.relu.0.forward", "layer map") in {(one.raw, one.rule) for one in result.findings}
    nowhere = LayerMap()
    nowhere.map_api(base.relu, "gelu")
    assert any("gelu" in note for note in auto_diff(base, raw, X, layer_map=nowhere, quiet=True).notes)


def test_outputs_of_another_structure_are_compared_as_far_as_both_have_them() -> None:
    class GivesTwo(nn.Module):
        def __init__(self, both: bool) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)
            self.both = both

        def forward(self, x: torch.Tensor) -> object:
            h = self.linear(x)
            return (h, h.mean()) if self.both else h

    class Takes(nn.Module):
        def __init__(self, both: bool) -> None:
            super().__init__()
            self.part = GivesTwo(both)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = self.part(x)
            return found[0] if isinstance(found, tuple) else found

    base, raw = Takes(True), Takes(False)
    result = auto_diff(base, raw, X, layer_map={base.part: raw.part}, quiet=True)
    assert result
    assert any("different numbers of tensors" in note for note in result.notes)


def test_wrong_arguments_are_refused() -> None:
    layer_map = LayerMap()
    for call in (layer_map.ignore, layer_map.ignore_recursively, layer_map.ignore_class):
        with pytest.raises(BadInput, match="str"):
            call("linear1")
    with pytest.raises(BadInput, match="not a layer"):
        layer_map.map = {"linear1": nn.Linear(1, 1)}
    with pytest.raises(BadInput, match="dict"):
        layer_map.map = [nn.Linear(1, 1)]
    layer_map.ignore(nn.Linear(1, 1))
    with pytest.raises(BadInput, match="neither model"):
        auto_diff(Activated(False), ByFunction(), X, layer_map=layer_map, quiet=True)
