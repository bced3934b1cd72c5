"""padiff with a Paddle layer and a PyTorch module: which of them is written to, and what create_model dumps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
import torch

COMPAT = Path(__file__).resolve().parents[3] / "compat" / "src"


class Layer(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = paddle.nn.Linear(4, 4), paddle.nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return self.two(paddle.nn.functional.relu(self.one(x)))


class Module(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return self.two(torch.relu(self.one(x)))


@pytest.fixture
def padiff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(COMPAT))
    import padiff

    padiff.set_dump_root_path(tmp_path)
    return padiff


def test_recordings_of_both_frameworks_agree_until_one_is_fed_otherwise(padiff: Any) -> None:
    layer, module = padiff.create_model(Layer()), padiff.create_model(Module())
    assert padiff.assign_weight(module, layer)  # the first is the base
    np.testing.assert_array_equal(layer.model.one.weight.numpy(), module.model.one.weight.detach().numpy().T)
    x = np.ones((3, 4), np.float32)
    for model, given in ((layer, paddle.to_tensor(x)), (module, torch.as_tensor(x))):
        model.backward(model(given).mean())
        model.try_dump()
    tolerance = {"atol": 1e-5, "rtol": 1e-5}
    assert padiff.check_report(module.dump_path, layer.dump_path, tolerance)
    again = padiff.create_model(layer.model)
    again.backward(again(paddle.to_tensor(2 * x)).mean())
    again.try_dump()
    assert not padiff.check_report(module.dump_path, again.dump_path, tolerance)


X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
PADDLE_X, TORCH_X = {"x": paddle.to_tensor(X)}, {"x": torch.as_tensor(X)}


def test_a_layer_before_a_module_is_the_released_form_and_the_other_order_the_development_one(padiff: Any) -> None:
    """Both take the PyTorch module's weights: as the module of the one, as base_model of the other."""
    for call in (padiff.auto_diff, lambda *models: padiff.assign_weight(*models[:2])):
        for by_released in (True, False):
            layer, module = Layer(), Module()
            kept = module.one.weight.detach().clone()
            models = (layer, module, (PADDLE_X, TORCH_X)) if by_released else (module, layer, (TORCH_X, PADDLE_X))
            call(*models)
            assert torch.equal(module.one.weight, kept)
            np.testing.assert_array_equal(layer.one.weight.numpy(), kept.numpy().T)
    layer, module = Layer(), Module()
    kept = layer.one.weight.numpy().copy()
    assert padiff.auto_diff(padiff.create_model(layer), module, (PADDLE_X, TORCH_X), atol=1e-5) is True
    np.testing.assert_array_equal(module.one.weight.detach().numpy(), kept.T)  # the development form, by create_model
    np.testing.assert_array_equal(layer.one.weight.numpy(), kept)


def test_weights_and_gradients_are_dumped_and_checked_across_the_frameworks(padiff: Any) -> None:
    def trained() -> tuple[Any, Any]:
        layer, module = padiff.create_model(Layer()), padiff.create_model(Module())
        assert padiff.assign_weight(layer, module)
        for model, given in ((layer, PADDLE_X), (module, TORCH_X)):
            model.backward(model(**given).mean())
        return layer, module

    def checks(*models: Any) -> tuple[bool, bool]:
        for model in models:
            model.dump_weights(model.dump_path)
            model.dump_grads(model.dump_path)
        paths = [model.dump_path for model in models]
        return padiff.check_weights(*paths, cfg={"atol": 1e-5}), padiff.check_grads(*paths, cfg={"atol": 1e-5})

    layer, module = trained()
    assert checks(layer, module) == (True, True)
    module.model.zero_grad()
    assert checks(layer, module) == (True, False)
    layer, module = trained()
    with torch.no_grad():
        for parameter in module.model.parameters():
            parameter.mul_(2)
    assert checks(layer, module) == (False, True)
    assert next(iter(module.parameters(recursively=True))).grad().shape == (4, 4)
    assert {one.grad().shape for one in layer.parameters(recursively=True)} == {(4, 4), (4,), (4, 2), (2,)}


class PaddleNorm(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.norm = paddle.nn.LSTM(4, 4), paddle.nn.BatchNorm1D(4)

    def forward(self, x: Any) -> Any:
        return self.norm(self.rnn(x.unsqueeze(0))[0][0])


class TorchNorm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.norm = torch.nn.LSTM(4, 4, batch_first=True), torch.nn.BatchNorm1d(4)

    def forward(self, x: Any) -> Any:
        return self.norm(self.rnn(x.unsqueeze(0))[0][0])


def test_mapped_layers_and_the_pass_that_auto_diff_leaves_behind(padiff: Any) -> None:
    layer, module = padiff.create_model(PaddleNorm()), padiff.create_model(TorchNorm())
    module.auto_layer_map("base")
    layer.auto_layer_map("raw")
    assert [type(one).__name__ for one in layer.layer_map] == ["LSTM", "BatchNorm1D"]
    assert padiff.auto_diff(module, layer, (TORCH_X, PADDLE_X), atol=1e-4) is True
    statistics = layer.model.norm._mean.numpy().copy()
    assert padiff.auto_diff(module, layer, (TORCH_X, PADDLE_X), diff_phase="forward", atol=1e-4) is True
    np.testing.assert_array_equal(layer.model.norm._mean.numpy(), statistics)
    layer.model(**PADDLE_X)
    assert not np.array_equal(layer.model.norm._mean.numpy(), statistics)
    folders = [f"{one.dump_path}/auto_diff" for one in (module, layer)]
    assert padiff.check_report(*folders, cfg={"atol": 1e-4}) is True


def test_a_proxy_that_is_gone_leaves_nothing_in_the_framework(padiff: Any) -> None:
    """Also where its step was never ended with try_dump()."""
    call = paddle.nn.Layer.__call__
    proxy = padiff.create_model(Layer())
    proxy(paddle.to_tensor(X))
    assert paddle.nn.Layer.__call__ is not call
    del proxy
    assert paddle.nn.Layer.__call__ is call
