"""Compiled cells and asynchronous kernels: said clearly, and never blamed on the recorder or broken by it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore_networks import Jitted, WithJitted, batch, seeded

from dump_reading import Dump, run_script
from twinprobe.mindspore import record


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("twinprobe.record"), "propagate", True)
    return caplog


def test_a_compiled_cell_is_named_and_recorded_at_its_boundary(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    model = seeded(WithJitted)
    expected = model(batch()).asnumpy()
    with record(model, tmp_path, level="mix"):
        got = model(batch()).asnumpy()
    assert np.array_equal(got, expected)
    assert [path.name for path in tmp_path.iterdir()] == ["pynative"]
    assert [path.name for path in (tmp_path / "pynative" / "step0").iterdir()] == ["rank"]
    cells = [name for name in Dump(tmp_path / "pynative").data if name.startswith("Cell.")]
    assert cells == ["Cell.fast.Jitted.forward.0", "Cell.last.Dense.forward.0"]
    (warning,) = [line.getMessage() for line in said.records if "compiled graph" in line.getMessage()]
    assert "fast (Jitted)" in warning
    assert "graph/" in warning


def test_the_parameters_inside_a_compiled_cell_and_their_gradients_are_recorded(tmp_path: Path) -> None:
    model = seeded(WithJitted)
    step = ms.value_and_grad(lambda x: model(x).sum(), None, model.trainable_params())
    with record(model, tmp_path, level="L0"):
        _, gradients = step(batch())
    data = Dump(tmp_path / "pynative").data
    weight = data["Cell.fast.Jitted.forward.0"]["parameters"]["inner.weight"]
    assert weight["Norm"] == pytest.approx(np.linalg.norm(model.fast.inner.weight.asnumpy()), rel=1e-6)
    named = dict(zip((one.name for one in model.trainable_params()), gradients, strict=True))
    (gradient,) = data["Cell.fast.Jitted.parameters_grad.0"]["inner.weight"]
    assert gradient["Norm"] == pytest.approx(np.linalg.norm(named["fast.inner.weight"].asnumpy()), rel=1e-5)


def test_api_calls_around_a_compiled_cell_have_the_same_layout(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    model = seeded(WithJitted)
    with record(model, tmp_path, level="L1"):
        model(batch())
    assert [path.name for path in (tmp_path / "pynative" / "step0").iterdir()] == ["rank"]
    assert "fast (Jitted) runs as a compiled graph" in said.text


def test_a_model_compiled_as_a_whole_is_its_own_boundary(tmp_path: Path) -> None:
    model = seeded(Jitted)
    with record(model, tmp_path, level="L0"):
        model(batch())
    assert list(Dump(tmp_path / "pynative").data) == ["Cell.network.Jitted.forward.0"]


def test_compiling_while_api_calls_are_recorded_finds_the_frameworks_own_functions(
    tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    weight = ms.Tensor(np.eye(8, dtype=np.float32))

    @ms.jit
    def compiled(x: ms.Tensor) -> ms.Tensor:
        return ops.relu(ops.matmul(x, weight)) + 1

    x = batch()
    with record(None, tmp_path, level="L1"):
        got = compiled(x)
        compiled(x)
        ops.relu(x)
    assert np.array_equal(got.asnumpy(), np.maximum(x.asnumpy(), 0) + 1)
    assert list(Dump(tmp_path).data) == ["Functional.relu.0.forward"]
    assert said.text.count("compiled is given to mindspore.jit") == 1


def test_graph_mode_is_said_and_recorded_at_the_boundary(tmp_path: Path) -> None:
    done = run_script(f"""
import mindspore as ms, numpy as np
from twinprobe.mindspore import record
ms.set_context(mode=ms.GRAPH_MODE)
net = ms.nn.SequentialCell(ms.nn.Dense(8, 3), ms.nn.ReLU())
with record(net, {str(tmp_path)!r}, level="L0"):
    net(ms.Tensor(np.ones((2, 8), np.float32)))
""")
    assert done.returncode == 0, done.stderr
    assert "network (SequentialCell) runs as a compiled graph" in done.stderr
    (index,) = tmp_path.glob("pynative/step0/rank/dump.json")
    assert list(json.loads(index.read_text())["data"]) == ["Cell.network.SequentialCell.forward.0"]


class FailsLate(nn.Cell):
    """gelu of mint has no kernel on the CPU; MindSpore notices later, when a value is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Dense(8, 8)
        self.last = nn.Dense(8, 8)

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        return self.last(ms.mint.nn.functional.gelu(self.first(x)))


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_an_error_of_an_earlier_kernel_stays_the_programs(tmp_path: Path, level: str) -> None:
    model = seeded(FailsLate)
    with pytest.raises(RuntimeError, match=r"(?i)gelu"):
        model(batch()).asnumpy()
    with pytest.raises(RuntimeError, match=r"(?i)gelu"), record(model, tmp_path, level=level):
        model(batch()).asnumpy()
    assert not list(tmp_path.rglob("dump_error_info.log"))
    assert np.isfinite(ops.relu(batch()).asnumpy()).all()
