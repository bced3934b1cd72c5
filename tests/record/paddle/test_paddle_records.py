"""What a Paddle dump holds: names, values, gradients, parameters, files."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.nn.functional import relu as imported_by_name
from paddle_networks import Recomputed, Residual, TwoUsers, batch
from shared_records import *  # noqa: F403

from dump_reading import Dump
from twinprobe.errors import BadInput
from twinprobe.paddle import PrecisionDebugger, record


def trained(path: Path, model: nn.Layer, **options: Any) -> Dump:
    with record(model, path, **options):
        model(batch()).sum().backward()
    return Dump(path)


def test_layers_are_named_by_their_path_and_calls_are_counted(tmp_path: Path) -> None:
    names = [name for name in trained(tmp_path, Residual(), level="L0").data if ".forward." in name]
    assert names == [
        "Module.first.Linear.forward.0",
        "Module.drop.Dropout.forward.0",
        "Module.norm.BatchNorm1D.forward.0",
        "Module.first.Linear.forward.1",
        "Module.last.Linear.forward.0",
    ]


def test_statistics_are_those_of_the_values(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 3))
    x = batch()
    with record(model, tmp_path, level="L0"):
        y = model(x)
    entry = Dump(tmp_path).data["Module.0.Linear.forward.0"]
    for leaf, tensor in ((entry["input_args"][0], x), (entry["output"][0], y)):
        array = tensor.numpy().astype(np.float64)
        assert leaf["type"] == "paddle.Tensor"
        assert leaf["dtype"] == "paddle.float32"
        assert leaf["shape"] == list(array.shape)
        assert leaf["requires_grad"] is (not tensor.stop_gradient)
        assert leaf["Max"] == array.max()
        assert leaf["Min"] == array.min()
        assert math.isclose(leaf["Mean"], array.mean(), rel_tol=1e-6)
        assert math.isclose(leaf["Norm"], np.linalg.norm(array), rel_tol=1e-6)


def test_linear_weights_are_marked_as_in_by_out(tmp_path: Path) -> None:
    data = trained(tmp_path, nn.Sequential(nn.Linear(8, 3)), level="mix").data
    weight = data["Module.0.Linear.forward.0"]["parameters"]["weight"]
    gradient = data["Module.0.Linear.parameters_grad.0"]["weight"][0]
    function = data["Functional.linear.0.forward"]
    argument = [*function["input_args"], *function["input_kwargs"].values()][1]
    backward = data["Functional.linear.0.backward"]["output"][1]
    assert [leaf["layout"] for leaf in (weight, gradient, argument, backward)] == ["in_out"] * 4
    assert weight["shape"] == [8, 3]
    assert "layout" not in data["Module.0.Linear.forward.0"]["parameters"]["bias"]


def test_a_layers_gradient_is_its_own_share(tmp_path: Path) -> None:
    model = TwoUsers()
    x = batch()
    with record(model, tmp_path, level="mix", task="tensor"):
        model(x).sum().backward()
    dump = Dump(tmp_path)

    def saved(name: str, part: str, at: int = 0) -> np.ndarray:
        return np.load(dump.folder / "dump_tensor_data" / dump.data[name][part][at]["data_name"])

    left = saved("Module.left.Linear.backward.0", "output")
    right = saved("Module.right.Linear.backward.0", "output")
    ones = np.ones((6, 4), dtype=np.float32)
    assert np.allclose(left, ones @ model.left.weight.numpy().T, rtol=1e-6)
    assert np.allclose(right, 2 * ones @ model.right.weight.numpy().T, rtol=1e-6)
    assert np.allclose(saved("Module.front.Linear.backward.0", "input"), left + right, rtol=1e-6)


class ThreeUses(nn.Layer):
    """Uses its input three times; Paddle adds each gradient to the first one's memory."""

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return x + nn.functional.silu(x) * x


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_gradients_in_three_parts_are_added_once(tmp_path: Path, level: str) -> None:
    model, x = nn.Sequential(ThreeUses()), batch()
    x.stop_gradient = False
    with record(model, tmp_path, level=level):
        model(x).square().sum().backward()
    leaf = Dump(tmp_path).data["Module.0.ThreeUses.backward.0"]["output"][0]
    assert leaf["Norm"] == pytest.approx(float(x.grad.norm()), rel=1e-5)


def test_parameter_gradients_are_those_of_the_pass(tmp_path: Path) -> None:
    model = Residual()
    data = trained(tmp_path, model, level="L0").data
    for name, layer in (("first", model.first), ("last", model.last)):
        leaf = data[f"Module.{name}.Linear.parameters_grad.0"]["weight"][0]
        assert math.isclose(leaf["Norm"], float(np.linalg.norm(layer.weight.grad.numpy())), rel_tol=1e-6)


def test_recomputed_layers_keep_the_number_of_their_first_forward(tmp_path: Path) -> None:
    data = trained(tmp_path, Recomputed(), level="L0").data
    names = [name for name in data if "block.0.Linear" in name]
    assert "Module.block.0.Linear.forward.0" in names
    assert "Module.block.0.Linear.forward.1" in names
    assert [name for name in names if ".backward." in name] == ["Module.block.0.Linear.backward.0"]


def test_calls_imported_by_name_are_seen(tmp_path: Path) -> None:
    with record(None, tmp_path, level="L1"):
        imported_by_name(batch())
    assert list(Dump(tmp_path).data) == ["Functional.relu.0.forward"]


def test_operators_in_place_calls_and_keywords_are_seen(tmp_path: Path) -> None:
    x = batch()
    with record(None, tmp_path, level="L1", risk_level="ALL"):
        y = (1 + x * 2) / 3
        y.add_(x)
        y[0] = 1.0
        nn.functional.softmax(x=y, axis=-1)
    data = Dump(tmp_path).data
    assert list(data) == [
        "Tensor.__mul__.0.forward",
        "Tensor.__radd__.0.forward",
        "Tensor.__truediv__.0.forward",
        "Tensor.add_.0.forward",
        "Tensor.__setitem__.0.forward",
        "Functional.softmax.0.forward",
    ]
    assert data["Functional.softmax.0.forward"]["input_kwargs"]["axis"] == {"type": "int", "value": -1}
    before, after = data["Tensor.add_.0.forward"]["input_args"][0], data["Tensor.add_.0.forward"]["output"][0]
    assert before["Norm"] != after["Norm"]


def test_tensor_files_hold_the_values(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 3))
    dump = trained(tmp_path, model, level="L0", task="tensor")
    file = dump.data["Module.0.Linear.forward.0"]["parameters"]["weight"]["data_name"]
    assert file == "Module.0.Linear.forward.0.parameters.weight.npy"
    assert np.array_equal(np.load(dump.folder / "dump_tensor_data" / file), model[0].weight.numpy())


def test_a_traced_layer_is_named_and_recorded_at_its_boundary(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("twinprobe.record"), "propagate", True)
    inner = paddle.jit.to_static(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), full_graph=True)
    model = nn.Sequential(inner, nn.Linear(8, 3))
    x = batch()
    expected = model(x).numpy()
    with record(model, tmp_path, level="mix"):
        got = model(x)
    assert np.array_equal(got.numpy(), expected)
    data = Dump(tmp_path).data
    layers = [name for name in data if name.startswith("Module.")]
    assert layers == ["Module.0.Sequential.forward.0", "Module.1.Linear.forward.0"]
    assert data[layers[0]]["parameters"]["0.weight"]["layout"] == "in_out"
    assert "0 (Sequential) was given to paddle.jit.to_static" in caplog.text


def test_recording_needs_no_other_framework() -> None:
    code = "import sys; sys.modules['torch'] = None; import twinprobe.paddle"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_token_range_without_a_model_is_refused(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path / "dump", level="L1")
    with pytest.raises(BadInput, match="token_range counts the calls of a model"):
        debugger.start(token_range=[0, 1])
