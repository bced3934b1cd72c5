"""PaDiff's development version: models that record themselves, and the checks of what they wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import padiff


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.relu(self.one(x)))


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Any, Any]:
    torch.manual_seed(0)
    padiff.set_dump_root_path(tmp_path / "dumps")
    return padiff.create_model(Net()), padiff.create_model(Net())


def train(model: Any, scale: float = 1.0, steps: int = 2) -> None:
    for step in range(steps):
        x = torch.full((3, 4), 1.0 + step)
        model.backward((model(x) * scale).mean())
        model.try_dump()
        model.zero_grad()


def test_two_models_of_one_class_write_to_folders_of_their_own(pair: tuple[Any, Any], tmp_path: Path) -> None:
    assert [Path(one.dump_path).name for one in pair] == ["Net", "Net_1"]
    assert padiff.get_dump_root_path() == str(tmp_path / "dumps")


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    padiff.set_dump_root_path(tmp_path)
    (tmp_path / "Mine").mkdir()
    (tmp_path / "Mine/notes.txt").write_text("precious")
    made = padiff.create_model(Net(), name="Mine")
    assert Path(made.dump_path).name == "Mine_1"
    assert (tmp_path / "Mine/notes.txt").read_text() == "precious"


def test_recordings_of_equal_models_agree_and_of_others_do_not(pair: tuple[Any, Any]) -> None:
    base, raw = pair
    assert padiff.assign_weight(base, raw)
    assert torch.equal(raw.model.one.weight, base.model.one.weight)
    train(base)
    train(raw)
    assert sorted(path.name for path in Path(raw.dump_path).iterdir() if path.is_dir()) == ["step0", "step1"]
    assert padiff.check_report(base.dump_path, raw.dump_path)
    other = padiff.create_model(raw.model)
    train(other, scale=3.0)
    assert padiff.check_report(base.dump_path, other.dump_path, diff_phase="forward")
    assert not padiff.check_report(base.dump_path, other.dump_path)
    assert padiff.check_weights(base.dump_path, other.dump_path)
    assert not padiff.check_grads(base.dump_path, other.dump_path)


def test_only_every_so_many_steps_are_recorded(tmp_path: Path) -> None:
    padiff.set_dump_root_path(tmp_path)
    made = padiff.create_model(Net(), dump_freq=2)
    train(made, steps=4)
    assert sorted(path.name for path in Path(made.dump_path).iterdir() if path.is_dir()) == ["step0", "step2"]


def test_auto_diff_takes_such_models_and_the_first_is_the_reference(pair: tuple[Any, Any]) -> None:
    base, raw = pair
    before = base.model.one.weight.clone()
    x = torch.ones(3, 4)
    assert not padiff.auto_diff(base, raw, ({"x": x}, {"x": x}), auto_init=False)
    assert padiff.auto_diff(base, raw, ({"x": x}, {"x": x}))
    assert torch.equal(base.model.one.weight, before)


def test_maps_of_layers_point_to_the_layer_map(pair: tuple[Any, Any]) -> None:
    with pytest.raises(Exception, match="LayerMap"):
        pair[0].set_layer_map([pair[0].model.one])


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.last = Net(), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.block(x))


def recorded_layers(made: Any) -> set[str]:
    from twinprobe.runs.folders import run_folders
    from twinprobe.runs.names import parse_op
    from twinprobe.runs.run import open_run

    train(made, steps=1)
    (folder,) = run_folders(Path(made.dump_path))
    return {parse_op(name).body for name in open_run(folder.files()[0]).ops}


@pytest.mark.parametrize(
    ("mode", "left"),
    [
        ("self", {"block.one", "block.two", "last"}),
        ("sublayers", {"block", "last"}),
        ("all", {"last"}),
    ],
)
def test_a_black_list_takes_out_a_layer_what_is_inside_it_or_both(tmp_path: Path, mode: str, left: set[str]) -> None:
    padiff.set_dump_root_path(tmp_path)
    made = padiff.create_model(Nested())
    made.update_black_list([made.model.block], mode=mode)
    assert recorded_layers(made) == left


def test_a_white_list_wins_over_a_black_one_and_may_name_classes(tmp_path: Path) -> None:
    padiff.set_dump_root_path(tmp_path)
    made = padiff.create_model(Nested())
    made.update_black_list_with_class(nn.Linear)
    made.update_white_list(made.model.block, mode="sublayers")
    assert recorded_layers(made) == {"block.one", "block.two"}
    by_class = padiff.create_model(Nested())
    by_class.update_white_list_with_class(Net)
    assert recorded_layers(by_class) == {"block"}
    with pytest.raises(Exception, match="no layer of this model"):
        made.update_white_list(nn.Linear(2, 2))
    with pytest.raises(Exception, match="mode is 'some'"):
        made.update_white_list(made.model.last, mode="some")


def test_a_proxy_stays_itself_and_what_is_no_model_is_refused(pair: tuple[Any, Any]) -> None:
    assert padiff.create_model(pair[0]) is pair[0]
    with pytest.raises(Exception, match="create_model got a dict"):
        padiff.create_model({})


def test_two_models_may_run_in_turn_before_their_step_ends(pair: tuple[Any, Any]) -> None:
    base, raw = pair
    padiff.assign_weight(base, raw)
    for step in range(2):
        losses = [model(torch.full((3, 4), 1.0 + step)).mean() for model in pair]
        for model, loss in zip(pair, losses, strict=True):
            model.backward(loss)
        for model in pair:
            model.try_dump()
            model.zero_grad()
    result = padiff.check_report(base.dump_path, raw.dump_path)
    assert result
    assert {finding.step for finding in result.findings} == {0, 1}
    assert any("Module.one" in finding.raw for finding in result.findings)
