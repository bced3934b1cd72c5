"""Layers of PyTorch and Paddle compute the same after their weights were copied, in either direction."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch
from paddle import nn as pnn
from torch import nn

from twinprobe._live.weights import matching
from twinprobe._live.weights.copying import copy_aligned
from twinprobe._live.weights.matching import add_special_init
from twinprobe.errors import BadInput
from weights_bench import Case, arrays, copy_whole, scramble, weights

CASES = [
    Case("linear", lambda: nn.Linear(3, 5), lambda: pnn.Linear(3, 5)),
    Case("square linear", lambda: nn.Linear(3, 3), lambda: pnn.Linear(3, 3)),
    Case("linear without bias", lambda: nn.Linear(3, 5, bias=False), lambda: pnn.Linear(3, 5, bias_attr=False)),
    Case("conv 1d", lambda: nn.Conv1d(4, 6, 3), lambda: pnn.Conv1D(4, 6, 3), ((2, 4, 9),)),
    Case("conv 2d", lambda: nn.Conv2d(4, 6, 3), lambda: pnn.Conv2D(4, 6, 3), ((2, 4, 9, 9),)),
    Case("conv 3d", lambda: nn.Conv3d(2, 3, 2), lambda: pnn.Conv3D(2, 3, 2), ((1, 2, 5, 5, 5),)),
    Case("grouped conv", lambda: nn.Conv2d(4, 6, 3, groups=2), lambda: pnn.Conv2D(4, 6, 3, groups=2), ((2, 4, 9, 9),)),
    Case("conv back 1d", lambda: nn.ConvTranspose1d(4, 6, 3), lambda: pnn.Conv1DTranspose(4, 6, 3), ((2, 4, 9),)),
    Case(
        "grouped conv back 2d",
        lambda: nn.ConvTranspose2d(4, 6, 3, groups=2),
        lambda: pnn.Conv2DTranspose(4, 6, 3, groups=2),
        ((2, 4, 5, 5),),
    ),
    Case("conv back 3d", lambda: nn.ConvTranspose3d(2, 3, 2), lambda: pnn.Conv3DTranspose(2, 3, 2), ((1, 2, 4, 4, 4),)),
    Case("embedding", lambda: nn.Embedding(7, 3), lambda: pnn.Embedding(7, 3), ((2, 5),), 7),
    Case("batch norm 1d", lambda: nn.BatchNorm1d(3), lambda: pnn.BatchNorm1D(3)),
    Case("batch norm 2d", lambda: nn.BatchNorm2d(3), lambda: pnn.BatchNorm2D(3), ((2, 3, 4, 4),)),
    Case("batch norm 3d", lambda: nn.BatchNorm3d(3), lambda: pnn.BatchNorm3D(3), ((2, 3, 4, 4, 4),)),
    Case("old batch norm", lambda: nn.BatchNorm2d(3), lambda: pnn.BatchNorm(3), ((2, 3, 4, 4),)),
    Case(
        "batch norm without scale",
        lambda: nn.BatchNorm2d(3, affine=False),
        lambda: pnn.BatchNorm2D(3, weight_attr=False, bias_attr=False),
        ((2, 3, 4, 4),),
    ),
    Case("layer norm", lambda: nn.LayerNorm(3), lambda: pnn.LayerNorm(3)),
    Case("layer norm of two axes", lambda: nn.LayerNorm((4, 3)), lambda: pnn.LayerNorm((4, 3)), ((2, 4, 3),)),
    Case("group norm", lambda: nn.GroupNorm(2, 4), lambda: pnn.GroupNorm(2, 4), ((2, 4, 5, 5),)),
    Case(
        "instance norm",
        lambda: nn.InstanceNorm2d(3, affine=True),
        lambda: pnn.InstanceNorm2D(3),
        ((2, 3, 5, 5),),
    ),
    Case("bilinear", lambda: nn.Bilinear(3, 4, 5), lambda: pnn.Bilinear(3, 4, 5), ((2, 3), (2, 4))),
    Case("prelu", lambda: nn.PReLU(3), lambda: pnn.PReLU(3), ((2, 3, 4, 4),)),
    Case(
        "attention",
        lambda: nn.MultiheadAttention(8, 2, batch_first=True),
        lambda: pnn.MultiHeadAttention(8, 2),
        ((2, 5, 8),) * 3,
    ),
    Case(
        "attention of other widths",
        lambda: nn.MultiheadAttention(8, 2, kdim=6, vdim=4, batch_first=True),
        lambda: pnn.MultiHeadAttention(8, 2, kdim=6, vdim=4),
        ((2, 5, 8), (2, 5, 6), (2, 5, 4)),
    ),
    Case(
        "attention without bias",
        lambda: nn.MultiheadAttention(8, 2, bias=False, batch_first=True),
        lambda: pnn.MultiHeadAttention(8, 2, bias_attr=False),
        ((2, 5, 8),) * 3,
    ),
    Case("lstm", lambda: nn.LSTM(3, 4, batch_first=True), lambda: pnn.LSTM(3, 4), ((2, 5, 3),)),
    Case(
        "lstm of two layers both ways",
        lambda: nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True),
        lambda: pnn.LSTM(3, 4, 2, direction="bidirect"),
        ((2, 5, 3),),
    ),
    Case(
        "gru of two layers both ways",
        lambda: nn.GRU(3, 4, 2, bidirectional=True, batch_first=True),
        lambda: pnn.GRU(3, 4, 2, direction="bidirect"),
        ((2, 5, 3),),
    ),
    Case(
        "gru without bias",
        lambda: nn.GRU(3, 4, bias=False, batch_first=True),
        # pnn.GRU without biases ends the process in Paddle's own forward.
        lambda: pnn.RNN(pnn.GRUCell(3, 4, bias_ih_attr=False, bias_hh_attr=False)),
        ((2, 5, 3),),
    ),
    Case("rnn", lambda: nn.RNN(3, 4, 2, batch_first=True), lambda: pnn.SimpleRNN(3, 4, 2), ((2, 5, 3),)),
    Case("wrapped cell", lambda: nn.GRU(3, 4, batch_first=True), lambda: pnn.RNN(pnn.GRUCell(3, 4)), ((2, 5, 3),)),
    Case(
        "wrapped cells both ways",
        lambda: nn.GRU(3, 4, bidirectional=True, batch_first=True),
        lambda: pnn.BiRNN(pnn.GRUCell(3, 4), pnn.GRUCell(3, 4)),
        ((2, 5, 3),),
    ),
    Case("lstm cell", lambda: nn.LSTMCell(3, 4), lambda: pnn.LSTMCell(3, 4)),
    Case("gru cell", lambda: nn.GRUCell(3, 4), lambda: pnn.GRUCell(3, 4)),
    Case("rnn cell", lambda: nn.RNNCell(3, 4), lambda: pnn.SimpleRNNCell(3, 4)),
    Case(
        "encoder layer",
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0, batch_first=True),
        lambda: pnn.TransformerEncoderLayer(8, 2, 16, dropout=0),
        ((2, 5, 8),),
    ),
    Case(
        "decoder of two layers",
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, dropout=0, batch_first=True), 2),
        lambda: pnn.TransformerDecoder(pnn.TransformerDecoderLayer(8, 2, 16, dropout=0), 2),
        ((2, 5, 8), (2, 5, 8)),
    ),
]


def first(output: Any) -> Any:
    return output[0] if isinstance(output, (tuple, list)) else output


def outputs(module: nn.Module, layer: pnn.Layer, given: list[Any]) -> tuple[Any, Any]:
    with torch.no_grad():
        one = first(module.eval()(*map(torch.as_tensor, given))).numpy()
    layer.eval()
    return one, first(layer(*map(paddle.to_tensor, given))).numpy()


@pytest.mark.parametrize("to_paddle", [True, False], ids=["to paddle", "to torch"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_both_compute_the_same_after_the_copy(case: Case, to_paddle: bool) -> None:
    module, layer = case.one(), case.other()
    scramble(module, 1)
    scramble(layer, 2)
    before = outputs(module, layer, arrays(case))
    assert not np.allclose(*before, rtol=1e-3)
    copy_whole(*((layer, module) if to_paddle else (module, layer)))
    after = outputs(module, layer, arrays(case))
    np.testing.assert_allclose(*after, rtol=2e-5, atol=2e-6)
    np.testing.assert_array_equal(after[0 if to_paddle else 1], before[0 if to_paddle else 1])
    target, source = (layer, module) if to_paddle else (module, layer)
    held = weights(source)
    scramble(target, 9)
    assert all(np.array_equal(value, held[name]) for name, value in weights(source).items())  # nothing is shared


class OwnLinear(pnn.Layer):
    """A linear layer as Paddle's users write it."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = self.create_parameter(list(shape))
        self.bias = self.create_parameter([shape[-1]], is_bias=True)

    def forward(self, x: Any) -> Any:
        return paddle.matmul(x, self.weight) + self.bias


def test_a_subclass_follows_the_rule_of_its_base() -> None:
    class Mine(pnn.Linear):
        pass

    module, layer = nn.Linear(3, 3), Mine(3, 3)
    scramble(module, 1)
    copy_whole(layer, module)
    np.testing.assert_array_equal(layer.weight.numpy(), module.weight.detach().numpy().T)


@pytest.mark.parametrize("to_paddle", [True, False], ids=["to paddle", "to torch"])
def test_a_matrix_of_your_own_is_turned_where_only_that_fits(to_paddle: bool) -> None:
    module, layer = nn.Linear(3, 5), OwnLinear(3, 5)
    scramble(module, 1)
    scramble(layer, 2)
    copy_whole(*((layer, module) if to_paddle else (module, layer)))
    np.testing.assert_allclose(*outputs(module, layer, [np.ones((2, 3), np.float32)]), rtol=1e-6)


def test_a_square_matrix_of_your_own_may_lie_either_way() -> None:
    module, layer = nn.Linear(3, 3), OwnLinear(3, 3)
    before = weights(layer)
    with pytest.raises(BadInput, match="may be stored transposed or not") as caught:
        copy_aligned(layer, module, [("", "")])
    assert "target weight [3, 3] (OwnLinear), source weight [3, 3] (Linear)" in str(caught.value)
    assert all(np.array_equal(before[name], value) for name, value in weights(layer).items())


def test_shapes_are_named_as_each_side_stores_them() -> None:
    with pytest.raises(BadInput) as caught:
        copy_aligned(pnn.Sequential(pnn.Linear(3, 5)), nn.Sequential(nn.Linear(4, 5), nn.Linear(3, 5)), [("0", "0")])
    assert "target 0.weight [3, 5] (Linear, transposed), source 0.weight [5, 4] (Linear)" in str(caught.value)
    assert "nearest fitting partner in the source: 1.weight [5, 3]" in str(caught.value)


@pytest.mark.parametrize("narrow", ["bfloat16", "float16"])
def test_narrow_weights_go_both_ways_to_the_bit(narrow: str) -> None:
    module, layer = nn.Linear(3, 5).to(getattr(torch, narrow)), pnn.Linear(3, 5)
    layer.to(dtype=narrow)
    assert copy_whole(layer, module).notices == []
    assert str(layer.weight.dtype) == f"paddle.{narrow}"
    again = nn.Linear(3, 5).to(getattr(torch, narrow))
    copy_whole(again, layer)
    assert torch.equal(again.weight, module.weight)


def test_a_recurrent_layer_that_was_switched_to_one_bias_is_refused() -> None:
    with pytest.raises(BadInput, match="only the source has"):
        copy_aligned(nn.GRU(3, 4, bias=False), pnn.GRU(3, 4), [("", "")])


def test_frozen_zero_biases_are_as_good_as_none() -> None:
    layer, module = pnn.RNN(pnn.GRUCell(3, 4, bias_ih_attr=False, bias_hh_attr=False)), nn.GRU(3, 4, bias=False)
    copy_whole(layer, module)
    assert not layer.cell.bias_ih.numpy().any()
    with paddle.no_grad():
        layer.cell.bias_ih.set_value(paddle.ones([12]))
    with pytest.raises(BadInput, match="and it is not 0"):
        copy_aligned(module, layer, [("", "")])
    copy_whole(layer, module)
    assert not layer.cell.bias_ih.numpy().any()


def test_a_rule_of_your_own_between_frameworks() -> None:
    calls = []
    before = list(matching.USER_RULES)
    try:
        add_special_init("OwnLinear", "Linear", lambda layer, module: calls.append((layer, module)))
        layer, module = OwnLinear(3, 3), nn.Linear(3, 3)
        copy_aligned(layer, module, [("", "")])
    finally:
        matching.USER_RULES[:] = before
    assert calls == [(layer, module)]
