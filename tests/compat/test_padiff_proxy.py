"""PaDiff's development version: models that record themselves, and the checks of what they wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import padiff
import twinprobe._live.auto_diff
import twinprobe._live.checks
from twinprobe._cli import main


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
    assert sorted(path.name for path in Path(raw.dump_path).iterdir() if path.is_dir()) == ["step_0", "step_1"]
    assert padiff.check_report(base.dump_path, raw.dump_path)
    other = padiff.create_model(raw.model)
    train(other, scale=3.0)
    assert padiff.check_report(base.dump_path, other.dump_path, diff_phase="forward")
    assert not padiff.check_report(base.dump_path, other.dump_path)
    assert padiff.check_weights(base.dump_path, other.dump_path)
    assert not padiff.check_grads(base.dump_path, other.dump_path)


def test_the_commands_read_what_was_dumped(pair: tuple[Any, Any], tmp_path: Path) -> None:
    for model in pair:
        train(model)
    sides = ["-tp", pair[1].dump_path, "-gp", pair[0].dump_path]
    assert main(["compare", *sides, "-o", str(tmp_path / "tables"), "--quiet"]) == 0
    found = sorted((tmp_path / "tables").rglob("compare_result_rank0_*.xlsx"))
    assert [path.parent.name for path in found] == ["step0", "step1"]
    assert main(["graph_visualize", *sides, "-o", str(tmp_path / "graph"), "--quiet"]) == 0
    assert list((tmp_path / "graph").glob("*.vis.db"))


def test_only_every_so_many_steps_are_recorded(tmp_path: Path) -> None:
    padiff.set_dump_root_path(tmp_path)
    made = padiff.create_model(Net(), dump_freq=2)
    train(made, steps=4)
    assert sorted(path.name for path in Path(made.dump_path).iterdir() if path.is_dir()) == ["step_0", "step_2"]


def test_auto_diff_takes_such_models_and_the_first_is_the_reference(pair: tuple[Any, Any]) -> None:
    base, raw = pair
    before = base.model.one.weight.clone()
    x = torch.ones(3, 4)
    assert not padiff.auto_diff(base, raw, ({"x": x}, {"x": x}), auto_init=False)
    assert padiff.auto_diff(base, raw, ({"x": x}, {"x": x}))
    assert torch.equal(base.model.one.weight, before)


class Attending(nn.Module):
    def __init__(self, *, before: bool) -> None:
        super().__init__()
        if before:
            self.attn, self.last = nn.MultiheadAttention(4, 1), nn.Linear(4, 2)
        else:
            self.last, self.attn = nn.Linear(4, 2), nn.MultiheadAttention(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.attn(x, x, x)[0])


@pytest.mark.parametrize("by", ["hand", "itself"])
def test_layers_that_both_models_map_are_compared_as_wholes(
    tmp_path: Path, by: str, capsys: pytest.CaptureFixture[str]
) -> None:
    padiff.set_dump_root_path(tmp_path)
    base, raw = (padiff.create_model(Attending(before=before)) for before in (True, False))
    for model, place in ((base, "base"), (raw, "raw")):
        model.set_layer_map([model.model.attn]) if by == "hand" else model.auto_layer_map(place)
    assert [type(layer) for layer in base.layer_map + raw.layer_map] == [nn.MultiheadAttention] * 2
    inputs = ({"x": torch.rand(3, 2, 4)},) * 2
    assert padiff.auto_diff(base, raw, inputs, atol=1e-5) is True
    assert torch.equal(raw.model.attn.in_proj_weight, base.model.attn.in_proj_weight)
    assert "weights: copied from base Attending (PyTorch) to raw Attending (PyTorch)" in capsys.readouterr().out
    with torch.no_grad():
        raw.model.attn.in_proj_weight.mul_(2)
    assert padiff.auto_diff(base, raw, inputs, auto_init=False, atol=1e-5) is False
    assert "Module.attn.MultiheadAttention.forward.0" in capsys.readouterr().out


def test_maps_of_which_one_model_knows_nothing_are_refused(pair: tuple[Any, Any]) -> None:
    pair[0].set_layer_map([pair[0].model.one])
    with pytest.raises(Exception, match="the base model maps 1 layers, the raw model 0"):
        padiff.auto_diff(*pair, ({"x": torch.ones(3, 4)},) * 2)
    with pytest.raises(Exception, match="not a layer of this model"):
        pair[0].set_layer_map([pair[1].model.one])
    with pytest.raises(Exception, match="auto_layer_map got 'both'"):
        pair[0].auto_layer_map("both")


def test_weights_are_dumped_as_they_are_when_they_are_dumped(pair: tuple[Any, Any], tmp_path: Path) -> None:
    """PaDiff's manual: the report, then gradients, then an optimizer's step, then the weights after it."""
    padiff.assign_weight(*pair)
    for model, rate in zip(pair, (0.1, 0.2), strict=True):
        folder = tmp_path / model.name / f"{rate}"
        optimizer = torch.optim.SGD(model.model.parameters(), rate)
        for _ in range(2):  # into the same folder: the second takes the place of the first
            model.zero_grad()
            model.backward(model(torch.ones(3, 4)).mean())
            model.dump_report(folder)
            model.dump_params(folder)
            model.dump_grads(folder)
            model.clear_report()
        optimizer.step()
        model.dump_weights(folder)
    first, second = tmp_path / "Net/0.1", tmp_path / "Net/0.2"
    assert padiff.check_report(first, second) is True
    assert padiff.check_params(first, second) is True
    assert padiff.check_grads(first, second) is True
    assert padiff.check_weights(first, second) is False
    (first / "notes.txt").write_text("precious")
    pair[0](torch.ones(3, 4))
    pair[0].dump_report(first)
    assert (first / "notes.txt").read_text() == "precious"


def test_a_gradient_that_only_one_model_has_is_a_difference(
    pair: tuple[Any, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    padiff.assign_weight(*pair)
    for model in pair:
        model.backward(model(torch.ones(3, 4)).mean())
    pair[1].zero_grad()
    for model in pair:
        model.try_dump()
    paths = [model.dump_path for model in pair]
    capsys.readouterr()
    assert padiff.check_grads(*paths) is False
    assert padiff.check_params(*paths) is False
    assert "step_0/rank_0/params holds gradients" in capsys.readouterr().out
    assert padiff.check_weights(*paths) is True


def test_a_cleared_report_is_not_dumped(pair: tuple[Any, Any], tmp_path: Path) -> None:
    model = pair[0]
    model(torch.ones(3, 4))
    model.clear_report()
    model(torch.ones(5, 4))
    model(torch.ones(6, 4))
    model.try_dump(tmp_path / "kept")
    text = (tmp_path / "kept/dump.json").read_text()
    assert {rows: f'"shape": [{rows}, 4]' in text for rows in (3, 5, 6)} == {3: False, 5: True, 6: True}
    model.dump_report(tmp_path / "empty")
    assert not (tmp_path / "empty").exists()


def test_weights_on_the_unassigned_list_are_not_copied(pair: tuple[Any, Any]) -> None:
    base, raw = pair
    kept = raw.model.two.weight.detach().clone()
    for model in pair:
        model.update_unassigned_weights_list([model.model.two])
    assert padiff.assign_weight(base, raw)
    assert torch.equal(raw.model.one.weight, base.model.one.weight)
    assert torch.equal(raw.model.two.weight, kept)
    assert padiff.auto_diff(base, raw, ({"x": torch.ones(3, 4)},) * 2) is False
    assert torch.equal(raw.model.two.weight, kept)


def test_auto_diff_leaves_its_dumps_and_the_models_as_they_were(tmp_path: Path) -> None:
    padiff.set_dump_root_path(tmp_path)
    pair = [padiff.create_model(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())) for _ in range(2)]
    inputs = ({"input": torch.rand(8, 4)},) * 2
    alone = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout()) for _ in range(2)]
    for model, twin in zip(pair, alone, strict=True):
        twin.load_state_dict(model.model.state_dict())
    assert padiff.auto_diff(*pair, inputs, atol=1e-5) is True
    twinprobe._live.auto_diff.auto_diff(*alone, inputs, quiet=True)
    for model, twin in zip(pair, alone, strict=True):  # the pass that is dumped leaves no trace of its own
        for one, other in zip(model.model.state_dict().values(), twin.state_dict().values(), strict=True):
            assert torch.equal(one, other)
    folders = [f"{model.dump_path}/auto_diff" for model in pair]
    assert padiff.check_report(*folders, cfg={"atol": 1e-5}) is True
    assert padiff.check_grads(*folders, cfg={"atol": 1e-5}) is True


def test_a_model_that_raises_is_left_without_hooks(pair: tuple[Any, Any]) -> None:
    base, raw = pair
    with pytest.raises(Exception, match="mat1 and mat2"):
        padiff.auto_diff(base, raw, ({"x": torch.ones(3, 5)},) * 2)
    assert not base.model.one._forward_hooks
    assert padiff.auto_diff(base, raw, ({"x": torch.ones(3, 4)},) * 2) is True
    with pytest.raises(Exception, match="needs inputs"):
        padiff.auto_diff(base, raw)


def test_what_a_list_leaves_out_does_not_decide(tmp_path: Path) -> None:
    padiff.set_dump_root_path(tmp_path)
    base, raw = padiff.create_model(Nested()), padiff.create_model(Nested())
    # What one layer adds the next takes back: nobody else sees it.
    raw.model.block.two.register_forward_hook(lambda _, __, output: output + 1)
    raw.model.block.register_forward_hook(lambda _, __, output: output - 1)
    inputs = ({"x": torch.rand(3, 4)},) * 2
    assert padiff.auto_diff(base, raw, inputs, diff_phase="forward", atol=1e-5) is False
    for model in (base, raw):
        model.update_black_list([model.model.block.two], mode="self")
    assert padiff.auto_diff(base, raw, inputs, diff_phase="forward", atol=1e-5) is True


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.last = Net(), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.block(x))


def recorded_layers(made: Any) -> set[str]:
    from twinprobe._runs.names import parse_op
    from twinprobe._runs.run import open_run, run_folders

    train(made, steps=1)
    (folder,) = run_folders(Path(made.dump_path))  # step_0/rank_0, as every command reads it
    assert (folder.key.step, folder.key.rank, folder.label) == (0, 0, "rank0")
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
    made.update_black_list_with_class(nn.Linear, mode="all")
    made.update_white_list(made.model.block, mode="sublayers")
    assert recorded_layers(made) == {"block.one", "block.two"}
    by_class = padiff.create_model(Nested())
    by_class.update_white_list_with_class(Net)
    assert recorded_layers(by_class) == {"block"}
    with pytest.raises(Exception, match="not a layer of this model"):
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
    assert padiff.check_report(base.dump_path, raw.dump_path)
    result = twinprobe._live.checks.check_report(base.dump_path, raw.dump_path)
    assert {finding.step for finding in result.findings} == {0, 1}
    assert any("Module.one" in finding.raw for finding in result.findings)
