"""Dropout of Paddle against that of PyTorch: in every mode, of whole channels, and inside of the frameworks' layers."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
import torch

from twinprobe import auto_diff

EASY = {"atol": 1e-4, "rtol": 1e-4, "quiet": True}
X = np.random.default_rng(1).standard_normal((4, 6, 5, 5)).astype(np.float32)


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    paddle.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)


class PaddleModel(paddle.nn.Layer):
    def __init__(self, drop) -> None:
        super().__init__()
        self.linear, self.drop = paddle.nn.Linear(5, 5), drop

    def forward(self, x):
        return self.drop(self.linear(x))


class TorchModel(torch.nn.Module):
    def __init__(self, drop) -> None:
        super().__init__()
        self.linear, self.drop = torch.nn.Linear(5, 5), drop

    def forward(self, x):
        return self.drop(self.linear(x))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("p", [0.5, 0.0])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_dropouts_agree_in_training_and_in_evaluation(training: bool, p: float, width: int) -> None:
    x = X if width < 3 else X[..., None, :]
    kinds = {
        1: (paddle.nn.Dropout, torch.nn.Dropout),
        2: (paddle.nn.Dropout2D, torch.nn.Dropout2d),
        3: (paddle.nn.Dropout3D, torch.nn.Dropout3d),
    }[width]
    layer, module = PaddleModel(kinds[0](p)), TorchModel(kinds[1](p))
    for model in (layer, module):
        model.train() if training else model.eval()
    for pair in ((layer, module), (module, layer)):
        result = auto_diff(*pair, x, **EASY)
        assert result, result
        (given,) = [one for one in result.findings if one.raw.startswith("Module.drop.") and one.place == "output"]
        assert given.gap.elements == x.size


def test_whole_channels_are_dropped_on_both_sides() -> None:
    given = []
    losses = [lambda y: given.append(y.numpy()) or y.mean(), lambda y: given.append(y.detach().numpy()) or y.mean()]
    pair = PaddleModel(paddle.nn.Dropout2D(0.5)), TorchModel(torch.nn.Dropout2d(0.5))
    assert auto_diff(*pair, X, loss_fns=losses, **EASY)
    dropped = (given[0] == 0).reshape(4, 6, -1)
    assert np.array_equal(dropped.any(-1), dropped.all(-1))
    assert 0 < dropped.any(-1).sum() < 24


class Downscaled(torch.nn.Module):
    """Drops without scaling in training, scales in evaluation."""

    def __init__(self, scale_in_eval: float) -> None:
        super().__init__()
        self.scale = scale_in_eval

    def forward(self, x):
        dropped = torch.nn.functional.dropout(x, 0.25, self.training)
        return dropped * 0.75 if self.training else x * self.scale


@pytest.mark.parametrize("written", ["layer", "keywords", "positions"])
@pytest.mark.parametrize("training", [True, False])
def test_the_mode_downscale_in_infer_is_kept(written: str, training: bool) -> None:
    class ByFunction(paddle.nn.Layer):
        def forward(self, x):
            if written == "keywords":
                return paddle.nn.functional.dropout(x, 0.25, training=self.training, mode="downscale_in_infer")
            return paddle.nn.functional.dropout(x, 0.25, None, self.training, False, "downscale_in_infer")

    def layer():
        made = PaddleModel(paddle.nn.Dropout(0.25, mode="downscale_in_infer") if written == "layer" else ByFunction())
        made.train() if training else made.eval()
        return made

    def module(scale: float):
        return TorchModel(Downscaled(scale)).train(training)

    assert auto_diff(layer(), module(0.75), X, **EASY)
    assert bool(auto_diff(layer(), module(1.0), X, **EASY)) is training


@pytest.mark.parametrize(("dropout", "training"), [(0.1, False), (0.0, True)])
def test_a_transformer_layer_with_dropout_agrees(dropout: float, training: bool) -> None:
    layer = paddle.nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, activation="relu")
    module = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
    for model in (layer, module):
        model.train() if training else model.eval()
    x = np.random.default_rng(2).standard_normal((2, 5, 8)).astype(np.float32)
    assert auto_diff(layer, module, x, **EASY)
