"""What other tools dump is opened as a run, and two of a kind can be compared."""

from __future__ import annotations

import base64
import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import twinprobe
from twinprobe.errors import TwinProbeError

DATA = Path(__file__).resolve().parents[1] / "data" / "other_tools"


def small(scale: float = 1.0) -> nn.Module:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Sequential(nn.Linear(5, 4)))
    with torch.no_grad():
        model[2][0].weight *= scale
    return model


@pytest.mark.parametrize("in_files", [False, True], ids=["statistics", "tensors"])
def test_the_model_debugger_of_transformers(tmp_path: Path, in_files: bool) -> None:
    import transformers
    from transformers.model_debugging_utils import model_addition_debugger_context

    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        vocab_size=20,
    )  # fmt: skip
    paths = []
    for side in ("golden", "target"):
        torch.manual_seed(1)
        model = transformers.LlamaForCausalLM(config)
        if side == "target":
            model.model.layers[1].mlp.up_proj.weight.data *= 3
        folder = tmp_path / side
        with model_addition_debugger_context(model, str(folder), do_prune_layers=False, use_repr=not in_files):
            model(torch.arange(5)[None])
        paths += folder.glob(f"*{'FULL_TENSORS' if in_files else 'SUMMARY'}.json")
    golden, target = paths
    run = twinprobe.open(golden)
    assert run.task == ("tensor" if in_files else "statistics")
    assert (
        run.parents["Module.model.layers.0.mlp.up_proj.Module.forward.0"]
        == "Module.model.layers.0.mlp.Module.forward.0"
    )
    assert twinprobe.compare(golden, golden)
    first = twinprobe.compare(target, golden).first
    assert first is not None
    assert first.op == "Module.model.layers.1.mlp.up_proj.Module.forward.0"


@pytest.mark.parametrize("kind", ["norm", "hash_tensor", ["norm", "hash_tensor"]])
def test_the_debug_mode_of_torch(tmp_path: Path, kind: Any) -> None:
    from torch.utils._debug_mode import DebugMode

    paths = []
    for name, scale in (("golden", 1.0), ("target", 3.0)):
        model = small(scale)
        with DebugMode(record_nn_module=True) as mode, DebugMode.log_tensor_hashes(kind, hash_inputs=True):
            model(torch.ones(2, 6))
        paths.append(tmp_path / f"{name}.txt")
        paths[-1].write_text(mode.debug_string())
    run = twinprobe.open(paths[0])
    assert [op for op in run.ops if op.startswith("Aten.addmm")] == ["Aten.addmm.0.forward", "Aten.addmm.1.forward"]
    assert run.parents["Aten.gelu.0.forward"] == "Module.Sequential.1.Module.forward.0"
    assert twinprobe.compare(paths[0], paths[0])
    result = twinprobe.compare(paths[1], paths[0])
    assert not result
    assert result.first is not None
    assert result.first.op in ("Aten.t.1.forward", "Aten.addmm.1.forward")


def test_the_outputs_that_polygraphy_saves() -> None:
    # Written by RunResults.save of polygraphy 0.53.6.
    golden, target = (DATA / f"polygraphy_{side}.json" for side in ("golden", "target"))
    run = twinprobe.open(golden)
    assert run.ops[:2] == ["onnxrt-runner-N0.0.logits", "onnxrt-runner-N0.0.probs"]
    assert run.table["shape"].to_list()[:2] == ["[2, 3]", "[3]"]
    assert twinprobe.compare(golden, golden)
    first = twinprobe.compare(target, golden).first
    assert first is not None
    assert first.op == "onnxrt-runner-N0.0.probs"


def test_tensors_of_onnx(tmp_path: Path) -> None:
    import onnx.numpy_helper

    for side, scale in (("golden", 1.0), ("target", 2.0)):
        (tmp_path / side).mkdir()
        for at in range(2):
            array = np.arange(6, dtype=np.float32).reshape(2, 3) * (scale if at else 1)
            proto = onnx.numpy_helper.from_array(array, "out")
            (tmp_path / side / f"output_{at}.pb").write_bytes(proto.SerializeToString())
    assert twinprobe.compare(tmp_path / "golden", tmp_path / "golden")
    first = twinprobe.compare(tmp_path / "target", tmp_path / "golden").first
    assert first is not None
    assert first.op == "output_1.out"


def test_the_statistics_log_of_nvdlfw_inspect(tmp_path: Path) -> None:
    # The layout that the docs of Transformer Engine show: the package needs a GPU build of it.
    lines = {
        "golden": [("max", "4.3188"), ("mean", "0.1"), ("min", "-4.0"), ("l2_norm", "17.5"), ("std", "1.0")],
        "target": [("max", "9.9000"), ("mean", "0.1"), ("min", "-4.0"), ("l2_norm", "41.5"), ("std", "1.0")],
    }
    paths = []
    for side, found in lines.items():
        paths.append(tmp_path / f"{side}.log")
        paths[-1].write_text("".join(
            f"INFO - decoder.1.mlp.fc1_activation_{what:<40} iteration=000000      value={value}\n"
            for what, value in found
        ))  # fmt: skip
    golden, target = paths
    run = twinprobe.open(golden)
    assert run.ops == ["decoder.1.mlp.fc1_activation.iteration0"]
    assert run.table["max"].to_list() == [4.3188]
    assert twinprobe.compare(golden, golden)
    assert not twinprobe.compare(target, golden)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tree.json", '{"module_path": "A", "children": [1]}'),
        ("cut.json", '{"module_path": "A", "children": ['),
        ("deep.json", '{"module_path": "A", "children": [' * 300 + "]}" * 300),
        ("array.json", '{"lst": [["r", [{"outputs": {"x": {"array": "####"}}}]]]}'),
        ("pickle.json", json.dumps({"lst": [["r", [{"outputs": {"x": {
            "array": base64.b64encode(b"\x93NUMPY\x01\x00\x20\x00{'descr': '|O', }").decode()}}}]]]})),
        ("value.log", "INFO - a_max iteration=000000 value=lots\n"),
    ],
)  # fmt: skip
def test_damaged_and_hostile_dumps_are_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(TwinProbeError) as refused:
        twinprobe.open(tmp_path / name)
    assert name in str(refused.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("blank.txt", "\n" * 60_000),
        ("word.log", "a" * 500_000),
        ("digits.txt", "aten::a(t: f32[1])  ->  t: f32[1]  # {'hash': " + "1" * 60_000 + "x"),
        ("hashes.txt", "aten::a(t: f32[1])  ->  t: f32[1]  # {" + "'hash': , " * 6_000),
        ("names.log", "INFO - a_max iteration=0 value=1\n" + "x_" * 30_000),
    ],
)
def test_long_lines_take_no_longer_than_they_are(tmp_path: Path, name: str, text: str) -> None:
    """A pattern that begins anew at every letter would take minutes here."""
    (tmp_path / name).write_text(text)
    with contextlib.suppress(TwinProbeError):
        twinprobe.open(tmp_path / name)
