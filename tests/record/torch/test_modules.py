"""Modules in all their uses: several models, shared ones, repeated calls, in-place, recomputed, whole, custom."""

from __future__ import annotations

import types
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import Checkpointed, batch
from torch import nn

from twinprobe.errors import BadInput
from twinprobe.torch import PrecisionDebugger, module_dump, module_dump_end, record, register_custom_api


def test_several_models_have_their_position_in_the_names(tmp_path: Path, dump_of: Any) -> None:
    models = [nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4))]
    with record(models, tmp_path / "dump", level="L0"):
        models[1](models[0](torch.ones(2, 4))).sum().backward()
    assert [name for name in dump_of(tmp_path / "dump").data if "parameters" not in name] == [
        "Module.0.0.Linear.forward.0",
        "Module.1.0.Linear.forward.0",
        "Module.1.0.Linear.backward.0",
        "Module.0.0.Linear.backward.0",
    ]


def test_a_list_of_one_model_has_its_position_too(tmp_path: Path, dump_of: Any) -> None:
    with record([nn.Sequential(nn.Tanh())], tmp_path / "dump", level="L0") as recording:
        recording._model[0](torch.ones(2))
    assert list(dump_of(tmp_path / "dump").data) == ["Module.0.0.Tanh.forward.0"]


def test_calls_of_one_module_are_numbered(tmp_path: Path, dump_of: Any) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(torch.tanh(self.layer(x)))

    model = Twice()
    with record(model, tmp_path / "dump", level="mix"):
        model(torch.ones(2, 4)).sum().backward()
    dump = dump_of(tmp_path / "dump")
    layer = "Module.layer.Linear."
    assert [name for name in dump.data if name.startswith(layer)] == [
        f"{layer}forward.0",
        f"{layer}forward.1",
        f"{layer}backward.1",
        f"{layer}backward.0",
        f"{layer}parameters_grad.0",
    ]
    tree = dump.side("construct")
    assert tree["Functional.linear.1.forward"] == f"{layer}forward.1"
    assert tree["Functional.linear.1.backward"] == f"{layer}backward.1"
    assert tree["Functional.linear.0.backward"] == f"{layer}backward.0"


def test_a_shared_module_keeps_its_first_name(tmp_path: Path, dump_of: Any) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = self.first
            self.act = nn.ReLU()
            self.blocks = nn.ModuleList([self.act, self.act])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.blocks[1](self.second(self.act(self.first(x))))

    model = Tied()
    with record(model, tmp_path / "dump", level="L0"):
        model(torch.ones(1, 4)).sum().backward()
    names = [name for name in dump_of(tmp_path / "dump").data if "forward" in name]
    assert names == [
        "Module.first.Linear.forward.0",
        "Module.act.ReLU.forward.0",
        "Module.first.Linear.forward.1",
        "Module.act.ReLU.forward.1",
    ]


def test_in_place_modules_have_values_before_and_after_and_a_backward(tmp_path: Path, dump_of: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Dropout(0.0, inplace=True), nn.Linear(3, 1))
    with record(model, tmp_path / "dump", level="mix"):
        with torch.no_grad():
            model[0].weight.copy_(torch.eye(3))
            model[0].bias.copy_(torch.tensor([-1.0, 0.0, 1.0]))
        model(torch.zeros(1, 3)).sum().backward()
    data = dump_of(tmp_path / "dump").data
    call = data["Module.1.ReLU.forward.0"]
    assert (call["input_args"][0]["Min"], call["output"][0]["Min"]) == (-1.0, 0.0)
    call = data["Functional.relu.0.forward"]
    assert (call["input_args"][0]["Min"], call["output"][0]["Min"]) == (-1.0, 0.0)
    back = data["Module.1.ReLU.backward.0"]
    assert back["input"][0]["shape"] == [1, 3]
    assert back["output"][0]["shape"] == [1, 3]


def test_accumulated_gradients_are_recorded_one_pass_at_a_time(tmp_path: Path, dump_of: Any) -> None:
    model = nn.Sequential(nn.Linear(2, 1, bias=False))
    with record(model, tmp_path / "dump", level="L0"):
        for scale in (1.0, 10.0):
            model(torch.full((1, 2), scale)).sum().backward()
    data = dump_of(tmp_path / "dump").data
    found = [data[f"Module.0.Linear.parameters_grad.{at}"]["weight"][0]["Max"] for at in range(2)]
    assert found == [1.0, 10.0]
    assert model[0].weight.grad.tolist() == [[11.0, 11.0]]


@pytest.mark.parametrize(("reentrant", "backward"), [(False, 0), (True, 1)])
def test_recomputed_calls_go_on_counting(tmp_path: Path, dump_of: Any, reentrant: bool, backward: int) -> None:
    model = Checkpointed(reentrant=reentrant)
    with record(model, tmp_path / "dump", level="mix"):
        model(batch()).sum().backward()
    dump = dump_of(tmp_path / "dump")
    block = "Module.block.0.Linear."
    # A reentrant checkpoint builds the graph in its second run only, so the gradients belong to that one.
    assert [name for name in dump.data if name.startswith(block) and "parameters" not in name] == [
        f"{block}forward.0",
        f"{block}forward.1",
        f"{block}backward.{backward}",
    ]
    linears = {name for name in dump.data if name.startswith("Functional.linear")}
    last = (3, 4) if reentrant else (1, 2)
    assert linears == {f"Functional.linear.{at}.forward" for at in range(5)} | {
        f"Functional.linear.{at}.backward" for at in (0, *last)
    }
    tree = dump.side("construct")
    again = tree["Module.block.Sequential.forward.1"]
    assert again == (None if reentrant else "Module.block.3.Linear.backward.0")
    assert tree["Functional.linear.3.forward"] == f"{block}forward.1"


def test_a_call_that_raises_is_recorded_with_its_inputs(tmp_path: Path, dump_of: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(3, 3))
    with pytest.raises(RuntimeError, match="shapes"), record(model, tmp_path / "dump", level="mix"):
        model(torch.ones(2, 4))
    data = dump_of(tmp_path / "dump").data
    assert list(data)[-2:] == ["Functional.linear.1.forward", "Module.1.Linear.forward.0"]
    for name in list(data)[-2:]:
        assert data[name]["input_args"][0]["shape"] == [2, 4]
        assert "output" not in data[name]


def test_a_module_dumped_as_a_whole_shows_nothing_inside(tmp_path: Path, dump_of: Any) -> None:
    inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model = nn.Sequential(inner, nn.Linear(4, 2))
    debugger = PrecisionDebugger(dump_path=tmp_path / "dump", level="mix")
    debugger.start(model=model)
    module_dump(inner, "Encoder")
    model(torch.ones(1, 4)).sum().backward()
    module_dump_end()
    model(torch.ones(1, 4))
    debugger.stop()
    debugger.close()
    forward = [name for name in dump_of(tmp_path / "dump").data if "forward" in name]
    assert forward[:4] == [
        "Module.Encoder.Sequential.forward.0",
        "Functional.linear.0.forward",
        "Module.1.Linear.forward.0",
        "Tensor.sum.0.forward",
    ]
    assert "Module.0.0.Linear.forward.0" in forward
    assert "Module.Encoder.Sequential.backward.0" in dump_of(tmp_path / "dump").data


def test_module_dump_checks_what_it_gets(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no PrecisionDebugger"):
        module_dump(nn.ReLU(), "Name")
    PrecisionDebugger(dump_path=tmp_path / "dump", level="mix")
    with pytest.raises(BadInput, match="not a torch"):
        module_dump(3, "Name")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="needs a name"):
        module_dump(nn.ReLU(), "")


def test_a_custom_function_is_recorded_with_its_gradients(tmp_path: Path, dump_of: Any) -> None:
    kernels = types.SimpleNamespace(__name__="fused.kernels", scale=lambda x, by: torch.exp(x) * by)
    register_custom_api(kernels, "scale", api_prefix="Fused")
    register_custom_api(kernels, "scale", api_prefix="Fused")
    plain = torch.zeros(3, requires_grad=True)
    assert kernels.scale(plain, 2).tolist() == [2.0, 2.0, 2.0]
    debugger = PrecisionDebugger(dump_path=tmp_path / "dump", level="L1")
    debugger.start()
    kernels.scale(plain, by=torch.tensor(3.0)).sum().backward()
    debugger.stop()
    debugger.close()
    data = dump_of(tmp_path / "dump").data
    assert list(data) == [
        "Fused.scale.0.forward",
        "Tensor.sum.0.forward",
        "Tensor.sum.0.backward",
        "Fused.scale.0.backward",
    ]
    assert data["Fused.scale.0.forward"]["output"][0]["Max"] == 3.0
    assert data["Fused.scale.0.backward"]["output"][0]["shape"] == [3]


def test_a_custom_function_must_exist() -> None:
    with pytest.raises(BadInput, match="has no function 'nothing'"):
        register_custom_api(types.SimpleNamespace(), "nothing")


class Loop(nn.Module):
    """A model that is called once per token."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_token_range_limits_a_generation_loop(tmp_path: Path, dump_of: Any, level: str) -> None:
    model = Loop()
    debugger = PrecisionDebugger(dump_path=tmp_path / "dump", level=level)
    debugger.start(model=model, token_range=[1, 2])
    for token in range(5):
        with torch.no_grad():
            model(torch.full((1, 2), float(token)))
        torch.exp(torch.ones(1))
    debugger.stop()
    debugger.close()
    data = dump_of(tmp_path / "dump").data
    seen = [entry["input_args"][0]["Max"] for name, entry in data.items() if "inear" in name]
    assert set(seen) == {1.0, 2.0}
    assert not any("exp" in name for name in data)


Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Result:
    value: torch.Tensor
    nothing: Any
    parts: list[Any]


class Container(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(
            Pair(x, None), flags={"deep": [x, (1, "a")], "none": None}, where=slice(1, None), dtype=x.dtype
        )


class Inner(nn.Module):
    def forward(self, pair: Pair, *, flags: dict[str, Any], where: slice, dtype: torch.dtype) -> Result:
        return Result(pair.left * 2, None, [flags["deep"][0].sum(), x_shape(pair.left)])


def x_shape(x: torch.Tensor) -> torch.Size:
    return x.shape


def test_nested_arguments_and_results_keep_their_places(tmp_path: Path, dump_of: Any) -> None:
    model = Container()
    with record(model, tmp_path / "dump", level="L0", task="tensor"):
        model(torch.ones(2, requires_grad=True)).value.sum().backward()
    dump = dump_of(tmp_path / "dump")
    call = dump.data["Module.inner.Inner.forward.0"]
    assert call["input_args"][0]["left"]["shape"] == [2]
    assert call["input_args"][0]["right"] is None
    kwargs = call["input_kwargs"]
    assert kwargs["flags"]["deep"][1] == [{"type": "int", "value": 1}, {"type": "str", "value": "a"}]
    assert kwargs["flags"]["none"] is None
    assert kwargs["where"] == {"type": "slice", "value": [1, None, None]}
    assert kwargs["dtype"] == {"type": "torch.dtype", "value": "torch.float32"}
    output = call["output"][0]
    assert list(output) == ["value", "nothing", "parts"]
    assert output["parts"][1] == {"type": "torch.Size", "value": [2]}
    name = kwargs["flags"]["deep"][0]["data_name"]
    assert name == "Module.inner.Inner.forward.0.kwargs.flags.deep.0.pt"
    assert torch.load(dump.folder / "dump_tensor_data" / name).tolist() == [1.0, 1.0]
