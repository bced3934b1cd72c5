"""What a MindSpore dump holds: names, values, gradients, parameters, files."""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import mint, nn, ops
from mindspore.ops import relu as imported_by_name
from mindspore_networks import PostNorm, Residual, TwoUsers, batch, seeded
from shared_records import *  # noqa: F403

from dump_reading import Dump
from models import small_transformer_mindspore
from twinprobe.mindspore import PrecisionDebugger, record


def trained(path: Path, model: nn.Cell, **options: Any) -> Dump:
    step = ms.value_and_grad(lambda x: model(x).sum(), None, model.trainable_params())
    with record(model, path, **options):
        step(batch())
    return Dump(path)


def saved(dump: Dump, name: str, part: str, at: int = 0) -> np.ndarray:
    return np.load(dump.folder / "dump_tensor_data" / dump.data[name][part][at]["data_name"])


def test_cells_are_named_by_their_path_and_calls_are_counted(tmp_path: Path) -> None:
    names = [name for name in trained(tmp_path, Residual(), level="L0").data if ".forward." in name]
    assert names == [
        "Cell.first.Dense.forward.0",
        "Cell.drop.Dropout.forward.0",
        "Cell.norm.LayerNorm.forward.0",
        "Cell.first.Dense.forward.1",
        "Cell.last.Dense.forward.0",
    ]


def test_every_kind_of_api_has_its_prefix(tmp_path: Path) -> None:
    x = batch()
    with record(seeded(Residual), tmp_path, level="L1") as recording:
        recording._model(x)
        ops.relu(x)
        mint.add(x, x)
        mint.nn.functional.silu(x)
        x.reshape(8, 6)
        x + x
        imported_by_name(x)
    names = list(Dump(tmp_path).data)
    for name in (
        "Functional.relu.2.forward",
        "Functional.relu.3.forward",
        "Mint.add.0.forward",
        "MintFunctional.silu.0.forward",
        "Tensor.reshape.2.forward",
        "Tensor.__add__.2.forward",
        "Primitive.matmul.MatMul.0.forward",
        "Primitive.bias_add.BiasAdd.2.forward",
    ):
        assert name in names, name


def test_statistics_are_those_of_the_values(tmp_path: Path) -> None:
    x = batch()
    numbers = ms.Tensor(np.array([[1, 2], [3, 40]], np.int32))
    with record(None, tmp_path, level="L1"):
        y = ops.exp(x)
        ops.equal(numbers, numbers)
    data = Dump(tmp_path).data
    leaf, array = data["Functional.exp.0.forward"]["output"][0], y.asnumpy().astype(np.float64)
    assert (leaf["type"], leaf["dtype"], leaf["shape"]) == ("mindspore.Tensor", "Float32", [6, 8])
    assert "requires_grad" not in leaf
    assert (leaf["Max"], leaf["Min"]) == (array.max(), array.min())
    assert math.isclose(leaf["Mean"], array.mean(), rel_tol=1e-6)
    assert math.isclose(leaf["Norm"], np.linalg.norm(array), rel_tol=1e-6)
    entry = data["Functional.equal.0.forward"]
    whole = entry["input_args"][0]
    assert [whole[key] for key in ("dtype", "Max", "Min", "Mean")] == ["Int32", 40.0, 1.0, 11.5]
    assert math.isclose(whole["Norm"], math.sqrt(1 + 4 + 9 + 1600), rel_tol=1e-6)
    flags = entry["output"][0]
    assert [flags[key] for key in ("dtype", "Max", "Min", "Mean", "Norm")] == ["Bool", True, True, None, None]


def test_bfloat16_is_read_as_numbers_and_its_checksum_is_that_of_float32(tmp_path: Path) -> None:
    value = ms.Tensor(np.array([1.5, -2.0, 3.25], np.float32)).astype(ms.bfloat16)
    with record(None, tmp_path, level="L1", task="tensor", summary_mode="md5"):
        value.to(ms.float32)
    dump = Dump(tmp_path)
    leaf = dump.data["Tensor.to.0.forward"]["input_args"][0]
    assert (leaf["dtype"], leaf["Max"], leaf["Min"]) == ("BFloat16", 3.25, -2.0)
    assert leaf["md5"] == f"{zlib.crc32(np.array([1.5, -2.0, 3.25], np.float32).tobytes()):08x}"
    assert saved(dump, "Tensor.to.0.forward", "input_args").tolist() == [1.5, -2.0, 3.25]


@pytest.mark.parametrize("by_nodes", [True, False])
def test_a_cells_gradient_is_its_own_share(tmp_path: Path, by_nodes: bool) -> None:
    model = seeded(TwoUsers)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0", task="tensor")
    debugger.recorder.uses_nodes &= by_nodes  # the other way is the one of older versions
    debugger.start(model=model)
    ms.value_and_grad(lambda x: model(x).sum(), None, model.trainable_params())(batch())
    debugger.stop()
    debugger.close()
    dump = Dump(tmp_path)
    assert dump.log() == ""
    left = saved(dump, "Cell.left.Dense.backward.0", "output")
    right = saved(dump, "Cell.right.Dense.backward.0", "output")
    ones = np.ones((6, 4), dtype=np.float32)
    assert np.allclose(left, ones @ model.left.weight.asnumpy(), rtol=1e-5)
    assert np.allclose(right, 2 * ones @ model.right.weight.asnumpy(), rtol=1e-5)
    assert np.allclose(saved(dump, "Cell.front.Dense.backward.0", "input"), left + right, rtol=1e-5)


@pytest.mark.parametrize("style", ["grad", "value_and_grad", "GradOperation"])
def test_every_style_of_gradient_gives_backward_and_parameter_gradients(tmp_path: Path, style: str) -> None:
    model = seeded(Residual)
    weights = ms.ParameterTuple(model.trainable_params())
    with record(model, tmp_path, level="L0"):
        if style == "grad":
            gradients = ms.grad(lambda x: model(x).sum(), None, weights)(batch())
        elif style == "value_and_grad":
            gradients = ms.value_and_grad(lambda x: model(x).sum(), None, weights)(batch())[1]
        else:
            gradients = ops.GradOperation(get_by_list=True)(model, weights)(batch())
    data = Dump(tmp_path).data
    assert "Cell.first.Dense.backward.0" in data
    assert "Cell.first.Dense.backward.1" in data
    named = dict(zip((one.name for one in weights), gradients, strict=True))
    leaf = data["Cell.first.Dense.parameters_grad.0"]["weight"][0]
    assert math.isclose(leaf["Norm"], float(np.linalg.norm(named["first.weight"].asnumpy())), rel_tol=1e-5)


def test_recomputed_cells_are_recorded(tmp_path: Path) -> None:
    model = seeded(PostNorm)
    model.attention[1].recompute()
    data = trained(tmp_path, model, level="L0").data
    assert "Cell.attention.1.q.Dense.forward.0" in data
    assert "Cell.attention.1.Attending.forward.0" in data


def test_names_and_fields_are_those_of_dumps_of_old(tmp_path: Path, reference: Path) -> None:
    """The same kinds of cells and primitives occur in the reference dump; the same fields must be in their leaves."""
    model = small_transformer_mindspore.model()
    with record(model, tmp_path, level="mix", task="tensor"):
        small_transformer_mindspore.train_step(model)
    ours = Dump(tmp_path).data
    folder = reference / "mindspore" / "dumps" / "ms_mix_tensor" / "step0" / "rank0"
    theirs = json.loads((folder / "dump.json").read_text(encoding="utf-8"))["data"]

    def kinds(data: dict[str, Any]) -> set[str]:
        return {name.split(".")[-3] for name in data if name.startswith("Cell.")} & {"Dense", "LayerNorm", "Embedding"}

    assert kinds(ours) == kinds(theirs)
    for name in (
        "Primitive.get_shp.Shape.0.forward",
        "Primitive.gather.Gather.0.forward",
        "Primitive.layer_norm.LayerNorm.0.forward",
        "Primitive.matmul.MatMul.3.backward",
        "Primitive.bias_add.BiasAdd.0.forward",
        "Functional.shape.0.forward",
        "Tensor.to.1.forward",
        "MintFunctional.silu.0.forward",
    ):
        assert set(ours[name]) == set(theirs[name]), name
    leaf, other = ours["Primitive.gather.Gather.0.forward"], theirs["Primitive.gather.Gather.0.forward"]
    assert list(leaf["output"][0]) == list(other["output"][0])
    assert leaf["output"][0]["data_name"] == other["output"][0]["data_name"]
