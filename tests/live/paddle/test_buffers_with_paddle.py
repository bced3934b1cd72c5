"""Running statistics of Paddle's batch norms against those of PyTorch's: by what each framework means with them."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
import torch

from twinprobe import auto_diff

EASY = {"atol": 1e-5, "rtol": 1e-5, "quiet": True}
X = np.random.default_rng(1).standard_normal((4, 3, 6, 6)).astype(np.float32)


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    paddle.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)


class PaddleNet(paddle.nn.Layer):
    def __init__(self, momentum: float = 0.9, calls: int = 1) -> None:
        super().__init__()
        self.conv, self.norm = paddle.nn.Conv2D(3, 3, 3, padding=1), paddle.nn.BatchNorm2D(3, momentum=momentum)
        self.calls = calls

    def forward(self, x):
        x = self.conv(x)
        for _ in range(self.calls):
            x = self.norm(x) * 2
        return x


class TorchNet(torch.nn.Module):
    def __init__(self, momentum: float = 0.1, calls: int = 1) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 3, 3, padding=1), torch.nn.BatchNorm2d(3, momentum=momentum)
        self.calls = calls

    def forward(self, x):
        x = self.conv(x)
        for _ in range(self.calls):
            x = self.norm(x) * 2
        return x


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("calls", [1, 2])
def test_a_right_port_agrees_over_steps_and_the_two_meanings_of_variance_are_told(turned: bool, calls: int) -> None:
    layer, module = PaddleNet(calls=calls), TorchNet(calls=calls)
    optimizers = [paddle.optimizer.SGD(0.01, layer.parameters()), torch.optim.SGD(module.parameters(), 0.01)]
    models = [layer, module]
    if turned:
        models.reverse()
        optimizers.reverse()
    result = auto_diff(*models, X, optimizers=optimizers, steps=3, **EASY)
    assert result, result
    compared = [one for one in result.findings if one.phase == "buffers after"]
    assert len(compared) == 6
    (note,) = [note for note in result.notes if "biased" in note]
    assert "norm" in note


def test_a_port_with_the_momentum_of_the_other_framework_is_found() -> None:
    result = auto_diff(TorchNet(), PaddleNet(momentum=0.1), X, **EASY)
    assert not result
    assert result.first.phase == "buffers after"
    assert result.first.raw == "Module.norm.BatchNorm2D.forward.0"
    assert {one.tensor for one in result.first.findings} == {"_mean", "_variance"}


def test_in_evaluation_nothing_moves_and_no_word_is_needed() -> None:
    layer, module = PaddleNet(), TorchNet()
    module.norm.running_var.uniform_(1, 2)
    layer.eval()
    module.eval()
    result = auto_diff(module, layer, X, **EASY)
    assert result
    assert result.notes == []
    assert {one.tensor for one in result.findings if one.phase == "buffers after"} == {"_mean", "_variance"}
    paddle_only = auto_diff(PaddleNet(), PaddleNet(momentum=0.1), X, **EASY)
    assert paddle_only.first.phase == "buffers after"


def test_gradients_and_statistics_of_paddle_are_as_before() -> None:
    layer, module = PaddleNet(), TorchNet()
    layer(paddle.to_tensor(X)).square().mean().backward()
    kept = [parameter.grad.numpy().copy() for parameter in layer.parameters() if not parameter.stop_gradient]
    mean = layer.norm._mean.numpy().copy()
    assert auto_diff(layer, module, X, **EASY)
    for _ in range(2):
        assert auto_diff(module, layer, X, auto_weights=False, **EASY)
    now = [parameter.grad.numpy() for parameter in layer.parameters() if not parameter.stop_gradient]
    assert all(np.array_equal(*pair) for pair in zip(kept, now, strict=True))
    assert np.array_equal(layer.norm._mean.numpy(), mean)
    layer.clear_gradients()
    layer(paddle.to_tensor(X)).square().mean().backward()
    again = [parameter.grad.numpy() for parameter in layer.parameters() if not parameter.stop_gradient]
    assert all(np.allclose(*pair, atol=1e-5) for pair in zip(kept, again, strict=True)), "Paddle goes on as before"


def test_gradients_of_a_layer_that_both_models_have_are_as_before() -> None:
    shared = paddle.nn.Linear(6, 6)
    shared(paddle.to_tensor(X)).mean().backward()
    kept = shared.weight.grad.numpy().copy()
    assert auto_diff(paddle.nn.Sequential(shared), paddle.nn.Sequential(shared), X, auto_weights=False, **EASY)
    assert np.array_equal(shared.weight.grad.numpy(), kept)
