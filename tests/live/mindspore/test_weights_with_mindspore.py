"""Layers of PyTorch and MindSpore compute the same after their weights were copied, in either direction."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
from mindspore import mint
from mindspore import nn as mnn
from torch import nn

from weights_bench import Case, arrays, copy_whole, scramble, weights

VALID = {"pad_mode": "valid", "has_bias": True}
CASES = [
    Case("dense", lambda: nn.Linear(3, 5), lambda: mnn.Dense(3, 5)),
    Case("dense without bias", lambda: nn.Linear(3, 5, bias=False), lambda: mnn.Dense(3, 5, has_bias=False)),
    Case("mint linear", lambda: nn.Linear(3, 5), lambda: mint.nn.Linear(3, 5)),
    Case("conv 1d", lambda: nn.Conv1d(4, 6, 3), lambda: mnn.Conv1d(4, 6, 3, **VALID), ((2, 4, 9),)),
    Case("conv 2d", lambda: nn.Conv2d(4, 6, 3), lambda: mnn.Conv2d(4, 6, 3, **VALID), ((2, 4, 9, 9),)),
    Case(
        "depthwise",
        lambda: nn.Conv2d(4, 4, 3, groups=4),
        lambda: mnn.Conv2d(4, 4, 3, group=4, **VALID),
        ((2, 4, 9, 9),),
    ),
    Case("conv 3d", lambda: nn.Conv3d(2, 3, 2), lambda: mnn.Conv3d(2, 3, 2, **VALID), ((1, 2, 5, 5, 5),)),
    Case(
        "conv back 1d", lambda: nn.ConvTranspose1d(4, 6, 3), lambda: mnn.Conv1dTranspose(4, 6, 3, **VALID), ((2, 4, 9),)
    ),
    Case(
        "conv back 2d",
        lambda: nn.ConvTranspose2d(4, 6, 3),
        lambda: mnn.Conv2dTranspose(4, 6, 3, **VALID),
        ((2, 4, 5, 5),),
    ),
    Case("embedding", lambda: nn.Embedding(7, 3), lambda: mnn.Embedding(7, 3), ((2, 5),), 7),
    Case("batch norm 1d", lambda: nn.BatchNorm1d(3), lambda: mnn.BatchNorm1d(3)),
    Case("batch norm 2d", lambda: nn.BatchNorm2d(3), lambda: mnn.BatchNorm2d(3), ((2, 3, 4, 4),)),
    Case("batch norm 3d", lambda: nn.BatchNorm3d(3), lambda: mnn.BatchNorm3d(3), ((2, 3, 4, 4, 4),)),
    Case(
        "batch norm without scale",
        lambda: nn.BatchNorm2d(3, affine=False),
        lambda: mnn.BatchNorm2d(3, affine=False),
        ((2, 3, 4, 4),),
    ),
    Case("layer norm", lambda: nn.LayerNorm(3), lambda: mnn.LayerNorm((3,), epsilon=1e-5)),
    Case(
        "layer norm of two axes",
        lambda: nn.LayerNorm((4, 3)),
        lambda: mnn.LayerNorm((4, 3), 1, 1, epsilon=1e-5),
        ((2, 4, 3),),
    ),
    Case("group norm", lambda: nn.GroupNorm(2, 4), lambda: mnn.GroupNorm(2, 4), ((2, 4, 5, 5),)),
    Case("bilinear", lambda: nn.Bilinear(3, 4, 5), lambda: mnn.BiDense(3, 4, 5), ((2, 3), (2, 4))),
    Case("prelu", lambda: nn.PReLU(3), lambda: mnn.PReLU(3), ((2, 3, 4, 4),)),
    Case(
        "attention",
        lambda: nn.MultiheadAttention(8, 2, batch_first=True),
        lambda: mnn.MultiheadAttention(8, 2, batch_first=True),
        ((2, 5, 8),) * 3,
    ),
    Case(
        "attention of other widths",
        lambda: nn.MultiheadAttention(8, 2, kdim=6, vdim=4, batch_first=True),
        lambda: mnn.MultiheadAttention(8, 2, kdim=6, vdim=4, batch_first=True),
        ((2, 5, 8), (2, 5, 6), (2, 5, 4)),
    ),
    Case(
        "attention without bias",
        lambda: nn.MultiheadAttention(8, 2, bias=False, batch_first=True),
        lambda: mnn.MultiheadAttention(8, 2, has_bias=False, batch_first=True),
        ((2, 5, 8),) * 3,
    ),
    Case(
        "lstm of two layers both ways",
        lambda: nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True),
        lambda: mnn.LSTM(3, 4, 2, bidirectional=True, batch_first=True),
        ((2, 5, 3),),
    ),
    Case(
        "gru of two layers both ways",
        lambda: nn.GRU(3, 4, 2, bidirectional=True, batch_first=True),
        lambda: mnn.GRU(3, 4, 2, bidirectional=True, batch_first=True),
        ((2, 5, 3),),
    ),
    Case(
        "gru without bias",
        lambda: nn.GRU(3, 4, bias=False, batch_first=True),
        lambda: mnn.GRU(3, 4, has_bias=False, batch_first=True),
        ((2, 5, 3),),
    ),
    Case("rnn", lambda: nn.RNN(3, 4, 2, batch_first=True), lambda: mnn.RNN(3, 4, 2, batch_first=True), ((2, 5, 3),)),
    Case("gru cell", lambda: nn.GRUCell(3, 4), lambda: mnn.GRUCell(3, 4), ((2, 3), (2, 4))),
    Case(
        "encoder layer",
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        lambda: mnn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        ((2, 5, 8),),
    ),
]


def first(output: Any) -> Any:
    return output[0] if isinstance(output, (tuple, list)) else output


def outputs(module: nn.Module, cell: mnn.Cell, given: list[Any]) -> tuple[Any, Any]:
    with torch.no_grad():
        one = first(module.eval()(*map(torch.as_tensor, given))).numpy()
    cell.set_train(False)
    narrow = [array.astype(np.int32) if array.dtype.kind == "i" else array for array in given]
    return one, first(cell(*map(ms.Tensor, narrow))).asnumpy()


@pytest.mark.parametrize(
    "to_mindspore", [pytest.param(True, id="to mindspore"), pytest.param(False, id="to torch", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_both_compute_the_same_after_the_copy(case: Case, to_mindspore: bool) -> None:
    module, cell = case.one(), case.other()
    scramble(module, 1)
    scramble(cell, 2)
    before = outputs(module, cell, arrays(case))
    assert not np.allclose(*before, rtol=1e-3)
    copy_whole(*((cell, module) if to_mindspore else (module, cell)))
    after = outputs(module, cell, arrays(case))
    np.testing.assert_allclose(*after, rtol=2e-5, atol=2e-6)
    np.testing.assert_array_equal(after[0 if to_mindspore else 1], before[0 if to_mindspore else 1])
    target, source = (cell, module) if to_mindspore else (module, cell)
    held = weights(source)
    scramble(target, 9)
    assert all(np.array_equal(value, held[name]) for name, value in weights(source).items())  # nothing is shared


# These have no kernels on the CPU, so their arrays are compared instead of what they compute.
WITHOUT_KERNELS = [
    Case("embedding", lambda: nn.Embedding(7, 3), lambda: mint.nn.Embedding(7, 3)),
    Case("conv 1d", lambda: nn.Conv1d(4, 6, 3), lambda: mint.nn.Conv1d(4, 6, 3)),
    Case("conv back 2d", lambda: nn.ConvTranspose2d(4, 6, 3), lambda: mint.nn.ConvTranspose2d(4, 6, 3)),
    Case("batch norm", lambda: nn.BatchNorm2d(3), lambda: mint.nn.BatchNorm2d(3)),
    Case("layer norm", lambda: nn.LayerNorm(3), lambda: mint.nn.LayerNorm((3,))),
    Case("group norm", lambda: nn.GroupNorm(2, 4), lambda: mint.nn.GroupNorm(2, 4)),
    Case("prelu", lambda: nn.PReLU(3), lambda: mint.nn.PReLU(3)),
]


@pytest.mark.parametrize("case", WITHOUT_KERNELS, ids=lambda case: case.name)
def test_mint_layers_hold_the_same_arrays_after_the_copy(case: Case) -> None:
    module, cell = case.one(), case.other()
    scramble(module, 1)
    copy_whole(cell, module)
    here, there = weights(cell), weights(module)
    assert here.keys() == there.keys()
    assert all(np.array_equal(here[name], there[name]) for name in here)


def test_bfloat16_goes_both_ways_to_the_bit() -> None:
    module, cell = nn.Linear(3, 5).bfloat16(), mnn.Dense(3, 5, dtype=ms.bfloat16)
    report = copy_whole(cell, module)
    assert report.notices == []
    again = nn.Linear(3, 5).bfloat16()
    copy_whole(again, cell)
    assert torch.equal(again.weight, module.weight)


class OwnNorm(mnn.Cell):
    """A norm as MindSpore's users write it."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = ms.Parameter(ms.Tensor(np.ones(3, np.float32)))
        self.beta = ms.Parameter(ms.Tensor(np.zeros(3, np.float32)))


def test_a_norm_of_your_own_goes_by_meaning() -> None:
    module, cell = nn.LayerNorm(3), OwnNorm()
    scramble(module)
    report = copy_whole(cell, module)
    assert sorted(report.copied) == [("beta", "bias"), ("gamma", "weight")]
    assert np.array_equal(cell.gamma.asnumpy(), module.weight.detach().numpy())
