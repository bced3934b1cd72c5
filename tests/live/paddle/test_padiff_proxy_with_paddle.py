"""Models of create_model, one of Paddle and one of PyTorch, recorded and checked."""

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


def test_recordings_of_both_frameworks_agree_until_one_is_fed_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(COMPAT))
    import padiff

    padiff.set_dump_root_path(tmp_path)
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
