"""A weight that cannot be copied is an error that helps, and it leaves the target as it was."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from twinprobe._live.weights.copying import assign_weight, copy_aligned, copy_weights
from twinprobe._live.weights.matching import nearest
from twinprobe.errors import BadInput
from weights_bench import scramble, weights


def unchanged(before: dict[str, Any], model: nn.Module) -> bool:
    after = weights(model)
    return before.keys() == after.keys() and all(np.array_equal(before[name], after[name]) for name in before)


def refusal(target: nn.Module, source: nn.Module, pairs: list[tuple[str, str]]) -> str:
    before = weights(target)
    with pytest.raises(BadInput) as caught:
        copy_aligned(target, source, pairs)
    assert unchanged(before, target)
    return str(caught.value)


def chain(*widths: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(widths)))


def test_other_shapes_name_both_weights_and_the_one_that_would_fit() -> None:
    text = refusal(chain(4, 6, 3), chain(4, 3, 6, 4, 6), [("0", "0"), ("1", "1")])
    assert "target 0.weight [6, 4] (Linear), source 0.weight [3, 4] (Linear): their shapes differ" in text
    assert "nearest fitting partner in the source: 3.weight [6, 4]" in text
    assert "add_special_init(Linear, Linear, function)" in text


def test_nothing_is_written_when_a_later_pair_fails() -> None:
    target, source = chain(4, 4, 5), chain(4, 4, 3)
    scramble(source)
    refusal(target, source, [("0", "0"), ("1", "1")])


@pytest.mark.parametrize("back", [False, True], ids=["target has it", "source has it"])
def test_a_bias_on_one_side_only_is_not_passed_over(back: bool) -> None:
    models = nn.Sequential(nn.Linear(3, 3)), nn.Sequential(nn.Linear(3, 3, bias=False))
    text = refusal(*(models[::-1] if back else models), [("0", "0")])
    assert f"only the {'source' if back else 'target'} has 'bias'" in text
    assert "0.bias [3]" in text


def test_layers_of_different_kinds_are_refused() -> None:
    text = refusal(nn.Sequential(nn.Conv2d(3, 3, 1)), nn.Sequential(nn.ConvTranspose2d(3, 3, 1)), [("0", "0")])
    assert "a convolution and a transposed convolution hold different weights" in text


class Two(nn.Module):
    def __init__(self, first: str, second: str, shapes: tuple[tuple[int, ...], ...] = ((3, 3), (3, 3))) -> None:
        super().__init__()
        for name, shape in zip((first, second), shapes, strict=True):
            setattr(self, name, nn.Parameter(torch.randn(shape)))


class Other(Two):
    """Another class with the same idea."""


def test_own_parameters_go_by_name_in_any_order() -> None:
    target, source = Two("a", "b"), Other("b", "a")
    copy_aligned(target, source, [("", "")])
    assert torch.equal(target.a, source.a)
    assert torch.equal(target.b, source.b)


def test_own_parameters_go_by_shape_where_it_tells_them_apart() -> None:
    target, source = Two("scale", "table", ((3,), (4, 2))), Other("t", "s", ((4, 2), (3,)))
    report = copy_aligned(target, source, [("", "")])
    assert sorted(report.copied) == [("scale", "s"), ("table", "t")]


def test_own_parameters_that_shapes_do_not_tell_apart_are_refused() -> None:
    text = refusal(Two("a", "b"), Other("c", "d"), [("", "")])
    assert "several weights have this shape" in text
    assert "target a [3, 3] (Two)" in text


def test_more_than_a_few_are_counted() -> None:
    text = refusal(chain(*[4] * 9), chain(*[5] * 9), [(str(index), str(index)) for index in range(8)])
    assert "and 11 more" in text


def test_a_path_that_is_not_there_is_named() -> None:
    with pytest.raises(BadInput, match=r"Sequential has no module '0\.inner': Linear holds no modules, not 'inner'"):
        copy_aligned(chain(3, 3), chain(3, 3), [("0.inner", "0")])


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(BadInput, match="a list"):
        copy_aligned([1], chain(3, 3), [("", "")])


def test_lazy_and_meta_modules_say_what_to_do() -> None:
    with pytest.raises(BadInput, match="call both models once"):
        copy_aligned(nn.Sequential(nn.LazyLinear(3)), chain(3, 3), [("0", "0")])
    with pytest.raises(BadInput, match="meta device"):
        copy_aligned(nn.Linear(3, 3, device="meta"), nn.Linear(3, 3), [("", "")])


def test_a_layer_without_partner_is_an_error_for_whole_models() -> None:
    target = chain(4, 4, 4)
    target.add_module("extra", nn.Linear(7, 7))
    before = weights(target)
    with pytest.raises(BadInput, match=r"extra.weight \[7, 7\] \(Linear\): no layer of the other model is aligned"):
        copy_weights(target, chain(4, 4, 4))
    with pytest.raises(BadInput, match=r"extra\.weight"):
        copy_weights(chain(4, 4, 4), target)
    assert unchanged(before, target)


def test_assign_weight_prints_the_reason_and_is_false(capsys: pytest.CaptureFixture[str]) -> None:
    assert assign_weight(chain(4, 5), chain(4, 6)) is False
    assert "Weights were not copied" in capsys.readouterr().out
    assert assign_weight(chain(4, 5), chain(4, 5)) is True
    assert "2 weights copied" in capsys.readouterr().out


def test_nothing_to_offer_has_no_nearest() -> None:
    from twinprobe._live.weights.layers import raw_layer

    layer = nn.Linear(2, 2)
    slot = raw_layer(layer, "").others["weight"]
    assert nearest(slot, []) is None
