"""What a Paddle dump holds: names, values, gradients, parameters, files."""

from __future__ import annotations

import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.nn.functional import relu as imported_by_name
from paddle_networks import Recomputed, Residual, TwoUsers, batch

from dump_reading import Dump, run_script
from twinprobe.errors import BadInput
from twinprobe.paddle import PrecisionDebugger, module_dump, module_dump_end, record, seed_all


def trained(path: Path, model: nn.Layer, **options: Any) -> Dump:
    with record(model, path, **options):
        model(batch()).sum().backward()
    return Dump(path)


def test_the_header_names_the_framework(tmp_path: Path) -> None:
    dump = trained(tmp_path, Residual(), level="mix")
    assert {key: dump.document[key] for key in ("task", "level", "framework", "dump_data_dir")} == {
        "task": "statistics",
        "level": "mix",
        "framework": "paddle",
        "dump_data_dir": None,
    }
    assert dump.log() == ""


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


def test_bfloat16_is_read_as_numbers(tmp_path: Path) -> None:
    value = paddle.to_tensor([1.5, -2.0, 3.25]).astype("bfloat16")
    with record(None, tmp_path, level="L1", task="tensor", risk_level="ALL"):
        value.astype("float32")
    entry = Dump(tmp_path).data["Tensor.astype.0.forward"]
    leaf = entry["input_args"][0]
    assert (leaf["dtype"], leaf["Max"], leaf["Min"]) == ("paddle.bfloat16", 3.25, -2.0)
    (folder,) = tmp_path.glob("step0/*/dump_tensor_data")
    assert np.load(folder / leaf["data_name"]).tolist() == [1.5, -2.0, 3.25]


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
    x = batch()[:, :4]
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


def test_every_gradient_of_an_api_is_recorded(tmp_path: Path) -> None:
    x, y = paddle.ones([2, 3]), paddle.full([3, 2], 2.0)
    x.stop_gradient = y.stop_gradient = False
    with record(None, tmp_path, level="L1"):
        (paddle.matmul(x, y) * 3).sum().backward()
    backward = Dump(tmp_path).data["Paddle.matmul.0.backward"]
    assert [leaf["shape"] for leaf in backward["input"]] == [[2, 2]]
    assert [(leaf["shape"], leaf["Max"]) for leaf in backward["output"]] == [([2, 3], 12.0), ([3, 2], 6.0)]


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


def test_parents_mirror_the_nesting(tmp_path: Path) -> None:
    parents = trained(tmp_path, nn.Sequential(nn.Sequential(nn.Linear(8, 3))), level="mix").side("construct")
    assert parents["Functional.linear.0.forward"] == "Module.0.0.Linear.forward.0"
    assert parents["Module.0.0.Linear.forward.0"] == "Module.0.Sequential.forward.0"
    assert parents["Module.0.Sequential.forward.0"] is None
    assert parents["Functional.linear.0.backward"] == "Module.0.0.Linear.backward.0"


def test_stacks_end_in_the_users_code(tmp_path: Path) -> None:
    stacks = trained(tmp_path, nn.Sequential(nn.Linear(8, 3)), level="mix").side("stack")
    (frames,) = [frames for names, frames in stacks.values() if "Functional.linear.0.forward" in names]
    assert any("test_paddle_records.py" in frame for frame in frames)
    assert not any("twinprobe" in frame for frame in frames)


def test_tensor_files_hold_the_values(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 3))
    dump = trained(tmp_path, model, level="L0", task="tensor")
    file = dump.data["Module.0.Linear.forward.0"]["parameters"]["weight"]["data_name"]
    assert file == "Module.0.Linear.forward.0.parameters.weight.npy"
    assert np.array_equal(np.load(dump.folder / "dump_tensor_data" / file), model[0].weight.numpy())


def test_checksums_are_crc32_of_the_bytes(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 3))
    data = trained(tmp_path, model, level="L0", summary_mode="md5").data
    leaf = data["Module.0.Linear.forward.0"]["parameters"]["weight"]
    assert leaf["md5"] == f"{zlib.crc32(model[0].weight.numpy().tobytes()):08x}"


def test_the_first_difference_from_an_earlier_run_is_kept_with_its_tensors(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    trained(tmp_path / "first", model, level="L0", summary_mode="md5")
    model[2].weight.set_value(model[2].weight + 1)
    trained(tmp_path / "second", model, level="L0", task="tensor", summary_mode="md5", bench_path=tmp_path / "first")
    files = {path.name for path in (tmp_path / "second").glob("step0/*/dump_tensor_data/*")}
    assert files
    assert all(name.startswith("Module.2.Linear.forward.0.") for name in files)


def test_structure_writes_the_tree_and_no_values(tmp_path: Path) -> None:
    dump = trained(tmp_path, Residual(), level="mix", task="structure")
    assert dump.data == {}
    assert "Module.first.Linear.forward.1" in dump.side("construct")


def test_steps_scope_and_start_on_the_class(tmp_path: Path) -> None:
    model = Residual()
    PrecisionDebugger(dump_path=tmp_path, level="L0", step=[1], list=["Module.last"])
    for _ in range(3):
        PrecisionDebugger.start(model=model)
        model(batch()).sum().backward()
        PrecisionDebugger.stop()
        PrecisionDebugger.step()
    PrecisionDebugger.current().close()
    assert [path.name for path in tmp_path.iterdir()] == ["step1"]
    assert all("Module.last." in name for name in Dump(tmp_path, 1).data)


def test_single_points_and_their_gradients(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="debug")
    x = paddle.ones([2, 2])
    x.stop_gradient = False
    debugger.save({"a": x, "b": [x * 2, 3]}, "point")
    y = x * 5
    debugger.save(y, "y")
    y.sum().backward()
    debugger.step()
    debugger.close()
    data = Dump(tmp_path, index="debug").data
    assert data["point.0.debug"]["b"][1] == {"type": "int", "value": 3}
    assert data["y_grad.0.debug"]["Max"] == 1.0
    assert data["point.a_grad.0.debug"]["Max"] == 5.0


def test_a_module_can_be_recorded_as_a_whole(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(8, 3), nn.ReLU()))
    debugger = PrecisionDebugger(dump_path=tmp_path, level="mix")
    debugger.start(model=model)
    module_dump(model[0], "Whole")
    model(batch())
    module_dump_end()
    debugger.stop()
    debugger.close()
    assert list(Dump(tmp_path).data) == ["Module.Whole.Sequential.forward.0"]


def test_seed_all_repeats_and_removes_dropout() -> None:
    done = run_script("""
import paddle
from twinprobe.paddle import seed_all
seed_all(7)
first = paddle.rand([3]).tolist()
seed_all(7, mode=True)
assert paddle.rand([3]).tolist() == first
layer = paddle.nn.Dropout(0.5)
assert layer(paddle.ones([100])).tolist() == [1.0] * 100
assert paddle.nn.functional.dropout(paddle.ones([100]), p=0.5).tolist() == [1.0] * 100
print("repeated")
""")
    assert "repeated" in done.stdout, done.stderr


def test_a_seed_must_be_a_number() -> None:
    with pytest.raises(BadInput, match="seed"):
        seed_all(-1)


@pytest.mark.parametrize("model", [None, "a string", [nn.ReLU(), 3]])
def test_a_model_must_be_a_layer(tmp_path: Path, model: Any) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="mix")
    with pytest.raises(BadInput, match="odel"):
        debugger.start(model=model)


def test_a_traced_layer_is_recorded_at_its_boundary(tmp_path: Path) -> None:
    inner = paddle.jit.to_static(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), full_graph=True)
    model = nn.Sequential(inner, nn.Linear(8, 3))
    x = batch()
    expected = model(x).numpy()
    with record(model, tmp_path, level="mix"):
        got = model(x)
    assert np.array_equal(got.numpy(), expected)
    layers = [name for name in Dump(tmp_path).data if name.startswith("Module.")]
    assert layers == ["Module.0.Sequential.forward.0", "Module.1.Linear.forward.0"]
