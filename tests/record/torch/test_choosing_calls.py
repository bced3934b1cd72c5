"""scope, list, tensor_list, data_mode, risk level, steps, ranks and the switch: only what was asked for is recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from twinprobe.errors import BadInput
from twinprobe.torch import PrecisionDebugger, record


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block(), Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.reshape(-1).unsqueeze(0)


def run(path: Path, **options: Any) -> None:
    torch.manual_seed(0)
    model = Stack()
    options.setdefault("level", "mix")
    with record(model, path, **options):
        model(torch.ones(2, 4)).sum().backward()


def recorded(tmp_path: Path, dump_of: Any, **options: Any) -> dict[str, Any]:
    run(tmp_path / "dump", **options)
    return dump_of(tmp_path / "dump").data  # type: ignore[no-any-return]


def test_a_scope_holds_what_lies_between_two_calls(tmp_path: Path, dump_of: Any) -> None:
    scope = ["Module.blocks.1.Block.forward.0", "Module.blocks.1.Block.forward.0"]
    data = recorded(tmp_path, dump_of, scope=scope)
    assert list(data) == [
        "Functional.linear.2.forward",
        "Module.blocks.1.up.Linear.forward.0",
        "Torch.relu.1.forward",
        "Functional.linear.3.forward",
        "Module.blocks.1.down.Linear.forward.0",
        "Tensor.__add__.1.forward",
        "Module.blocks.1.Block.forward.0",
    ]


def test_a_scope_may_end_in_backward(tmp_path: Path, dump_of: Any) -> None:
    data = recorded(
        tmp_path, dump_of, level="L1", scope=["Functional.linear.5.forward", "Functional.linear.5.backward"]
    )
    assert next(iter(data)) == "Functional.linear.5.forward"
    assert list(data)[-1] == "Functional.linear.5.backward"
    assert "Functional.linear.4.backward" not in data


def test_a_list_takes_full_names_parts_of_names_and_modules(tmp_path: Path, dump_of: Any) -> None:
    names = ["Module.blocks.0.up.Linear.forward.0", "relu", "Module.blocks.2.Block"]
    data = recorded(tmp_path, dump_of, list=names)
    assert "Module.blocks.0.up.Linear.forward.0" in data
    assert "Functional.linear.0.forward" in data  # inside the module that the list names
    assert [name for name in data if "relu" in name and "forward" in name] == [
        f"Torch.relu.{at}.forward" for at in range(3)
    ]
    assert {
        "Functional.linear.4.forward",
        "Functional.linear.5.backward",
        "Module.blocks.2.down.Linear.backward.0",
    } <= {*data}
    assert not any("blocks.1" in name for name in data)


def test_a_list_finds_calls_that_the_risk_level_leaves_out(tmp_path: Path, dump_of: Any) -> None:
    data = recorded(tmp_path, dump_of, level="L1", list=["reshape"])
    assert [name for name in data if "forward" in name] == ["Tensor.reshape.0.forward"]


def test_tensor_list_keeps_real_tensors_of_some_calls(tmp_path: Path, dump_of: Any) -> None:
    run(tmp_path / "dump", tensor_list=["relu"])
    dump = dump_of(tmp_path / "dump")
    files = {one.name for one in (dump.folder / "dump_tensor_data").iterdir()}
    assert files == {
        f"Torch.relu.{at}.{way}.{side}.0.pt"
        for at in range(3)
        for way in ("forward", "backward")
        for side in ("input", "output")
    }
    leaf = dump.data["Torch.relu.1.forward"]["output"][0]
    assert leaf["data_name"] == "Torch.relu.1.forward.output.0.pt"
    stored = torch.load(dump.folder / "dump_tensor_data" / leaf["data_name"])
    assert float(stored.max()) == leaf["Max"]
    assert "data_name" not in dump.data["Functional.linear.1.forward"]["output"][0]


@pytest.mark.parametrize(
    ("mode", "directions", "keys"),
    [
        (["forward"], {"forward"}, {"input_args", "input_kwargs", "output", "parameters"}),
        (["backward"], {"backward", "parameters_grad"}, {"input", "output", "weight", "bias"}),
        (
            ["input"],
            {"forward", "backward", "parameters_grad"},
            {"input_args", "input_kwargs", "input", "parameters", "weight", "bias"},
        ),
        (["output"], {"forward", "backward", "parameters_grad"}, {"output", "weight", "bias"}),
        (["forward", "output"], {"forward"}, {"output"}),
    ],
)
def test_data_mode_chooses_sides(
    tmp_path: Path, dump_of: Any, mode: list[str], directions: set[str], keys: set[str]
) -> None:
    data = recorded(tmp_path, dump_of, data_mode=mode)
    found = {part for name in data for part in ("forward", "backward", "parameters_grad") if part in name.split(".")}
    assert found == directions
    assert {key for entry in data.values() for key in entry} == keys


def test_the_risk_level_chooses_calls(tmp_path: Path, dump_of: Any) -> None:
    found = {}
    for risk in ("CORE", "FOCUS", "ALL"):
        run(tmp_path / risk, level="L1", risk_level=risk)
        found[risk] = {name.split(".")[1] for name in dump_of(tmp_path / risk).data}
    assert found["CORE"] == {"linear"}
    assert found["FOCUS"] == {"linear", "relu", "__add__", "sum"}
    assert found["ALL"] >= found["FOCUS"] | {"reshape", "unsqueeze"}


def test_an_entry_that_matches_nothing_is_reported_with_the_nearest_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(
        tmp_path / "dump", list=["relu", "Functional.linaer.1.forward"], tensor_list=["Module.blocks.7.Block.forward.0"]
    )
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == 2
    assert "'Functional.linaer.1.forward' matched no call; nearest: " in said[0]
    assert "Functional.linear.1.forward" in said[0]
    assert "'Module.blocks.7.Block.forward.0' matched no call" in said[1]
    assert "Block.forward.0" in said[1].partition("nearest")[2]


def test_a_scope_that_never_opens_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path / "dump", scope=["Torch.relu.9.forward", "Torch.relu.1.forward"])
    assert "'Torch.relu.9.forward' matched no call" in caplog.text


def train(debugger: PrecisionDebugger, steps: int, before: Any = None) -> None:
    model = Stack()
    for step in range(steps):
        if before is not None:
            before(step)
        debugger.start(model=model)
        model(torch.ones(2, 4)).sum().backward()
        debugger.stop()
        debugger.step()
    debugger.close()


def test_only_wanted_steps_are_recorded(tmp_path: Path) -> None:
    train(PrecisionDebugger(dump_path=tmp_path / "dump", level="L1", step=[1, "3-4"]), 6)
    assert sorted(one.name for one in (tmp_path / "dump").iterdir()) == ["step1", "step3", "step4"]


def test_a_running_job_is_switched_on_and_off_from_outside(tmp_path: Path) -> None:
    file = tmp_path / "config.json"

    def switch(step: int) -> None:
        document = {"dump_path": str(tmp_path / "dump"), "level": "L0", "dump_enable": step in {1, 2, 5}}
        file.write_text(json.dumps(document), encoding="utf-8")

    switch(0)
    train(PrecisionDebugger(config_path=file), 6, switch)
    assert sorted(one.name for one in (tmp_path / "dump").iterdir()) == ["step1", "step2", "step5"]


def test_starting_again_goes_on_with_the_same_step(tmp_path: Path, dump_of: Any) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path / "dump", level="L1")
    for _ in range(3):
        debugger.start()
        torch.exp(torch.ones(2))
        debugger.stop()
        torch.exp(torch.ones(3))
    debugger.close()
    data = dump_of(tmp_path / "dump").data
    assert list(data) == [f"Torch.exp.{at}.forward" for at in range(3)]


def test_nothing_is_written_before_the_step_ends_with_async_dump(tmp_path: Path, dump_of: Any) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path / "dump", level="L1", task="tensor", async_dump=True)
    debugger.start()
    for _ in range(200):
        torch.exp(torch.ones(2))
    debugger.flush()
    assert not list((tmp_path / "dump").rglob("*.pt"))
    debugger.stop()
    debugger.close()
    dump = dump_of(tmp_path / "dump")
    assert len(dump.data) == 200
    assert len(list((dump.folder / "dump_tensor_data").iterdir())) == 400


def test_extra_info_off_leaves_only_the_index(tmp_path: Path, dump_of: Any) -> None:
    run(tmp_path / "dump", extra_info=False)
    names = {one.name for one in dump_of(tmp_path / "dump").folder.iterdir()}
    assert names == {"dump.json", "dump.sketch"}


def test_structure_holds_the_tree_and_the_stacks_only(tmp_path: Path, dump_of: Any) -> None:
    run(tmp_path / "dump", task="structure")
    dump = dump_of(tmp_path / "dump")
    assert dump.data == {}
    assert dump.side("construct")["Functional.linear.2.forward"] == "Module.blocks.1.up.Linear.forward.0"
    assert len(dump.side("stack")) > 3


@pytest.mark.parametrize("bad", [3, [1], [2, 1], ["a", "b"], [-1, 2], "0-3"])
def test_a_token_range_is_two_numbers(tmp_path: Path, bad: Any) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path / "dump", level="L1")
    with pytest.raises(BadInput, match="token_range is"):
        debugger.start(model=Stack(), token_range=bad)
    with pytest.raises(BadInput, match="counts the calls of a model"):
        debugger.start(token_range=[0, 1])
    debugger.start(model=Stack(), token_range=[0, 1])
    debugger.stop()


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("level", "L9", "allowed: L0, L1, mix, debug"),
        ("task", "statistic", "allowed: statistics, tensor, structure"),
        ("summary_mode", "md4", "allowed: statistics, md5, xor"),
        ("step", ["a"], "key 'step' holds 'a'"),
        ("rank", "0", "key 'rank' must be a list"),
        ("scope", ["one"], "exactly two"),
        ("nonsense", 1, "unknown key 'nonsense'"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(tmp_path: Path, key: str, value: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        PrecisionDebugger(dump_path=tmp_path / "dump", **{key: value})
    assert PrecisionDebugger._current is None
    assert not (tmp_path / "dump").exists()
