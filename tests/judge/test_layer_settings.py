"""What layers were built with: named where the runs part, and where it shows only later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import twinprobe
from twinprobe._cli.main import main
from twinprobe._record.recorder import built_with


class Net(nn.Module):
    def __init__(self, norm: nn.Module, act: nn.Module | None = None) -> None:
        super().__init__()
        self.conv, self.norm, self.act, self.head = nn.Conv2d(3, 6, 3), norm, act or nn.GELU(), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.act(self.norm(self.conv(x))).mean((2, 3)))


def run(folder: Path, *parts: nn.Module, train: bool = True, level: str = "L0", **options: Any) -> Path:
    torch.manual_seed(0)
    net = Net(*parts).train(train)
    with twinprobe.record(net, folder, level=level, **options):
        net(torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))).square().mean().backward()
    return folder


def first(tmp_path: Path, target: tuple[nn.Module, ...], golden: tuple[nn.Module, ...], **options: Any) -> Any:
    return twinprobe.compare(run(tmp_path / "b", *target, **options), run(tmp_path / "a", *golden, **options)).first


def test_the_setting_is_named_where_the_runs_part(tmp_path: Path) -> None:
    found = first(tmp_path, (nn.BatchNorm2d(6, eps=1e-2),), (nn.BatchNorm2d(6),))
    assert found.op == "Module.norm.BatchNorm2d.forward.0"
    assert "the layers were built with eps: 0.01 against 1e-05" in found.sentence
    found = first(tmp_path / "act", (nn.BatchNorm2d(6), nn.GELU("tanh")), (nn.BatchNorm2d(6),))
    assert "approximate: tanh against none" in found.sentence


def test_layers_of_other_classes_are_compared_by_what_both_have(tmp_path: Path) -> None:
    found = first(tmp_path, (nn.GroupNorm(6, 6, eps=1e-2),), (nn.InstanceNorm2d(6, affine=True),))
    assert "the layers were built with eps: 0.01 against 1e-05" in found.sentence
    assert first(tmp_path / "same", (nn.GroupNorm(6, 6),), (nn.InstanceNorm2d(6, affine=True),)) is None


def test_a_momentum_shows_before_its_statistics_are_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = first(tmp_path, (nn.BatchNorm2d(6, momentum=0.9),), (nn.BatchNorm2d(6),))
    assert (found.op, found.module) == ("Module.norm.BatchNorm2d.forward.0", "norm")
    assert "momentum: 0.9 against 0.1: its running statistics differ after the step" in found.sentence
    sides = [str(tmp_path / side) for side in "ba"]
    assert main(["compare", *sides, "-o", str(tmp_path / "out"), "--json", "--fail-on"]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])


def test_where_functions_are_recorded_no_output_is_said_to_differ(tmp_path: Path) -> None:
    found = first(tmp_path, (nn.BatchNorm2d(6, momentum=0.9),), (nn.BatchNorm2d(6),), level="mix")
    assert found.op == "Functional.batch_norm.0.forward"
    assert "an argument differs: momentum: 0.9 against 0.1: its running statistics differ" in found.sentence
    assert "the output differs" not in found.sentence


@pytest.mark.parametrize("norms", [
    ({"momentum": 0.9, "track_running_stats": False}, {"track_running_stats": False}),  # it keeps no statistics
    ({}, {}),
])  # fmt: skip
def test_what_is_not_used_is_not_claimed(tmp_path: Path, norms: Any) -> None:
    assert first(tmp_path, *((nn.BatchNorm2d(6, **norm),) for norm in norms)) is None


def test_in_evaluation_a_momentum_means_nothing(tmp_path: Path) -> None:
    assert first(tmp_path, (nn.BatchNorm2d(6, momentum=0.9),), (nn.BatchNorm2d(6),), train=False) is None


def test_a_setting_without_effect_is_a_note(tmp_path: Path) -> None:
    class Unused(nn.Dropout):  # which does nothing with its rate
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 1.0

    sides = [run(tmp_path / side, nn.BatchNorm2d(6), Unused(rate)) for side, rate in (("b", 0.2), ("a", 0.1))]
    result = twinprobe.compare(*sides)
    assert result.first is None
    notes = next(iter(result.pairs.values())).summary.notes
    assert any("with no effect on these results beyond noise: act (p: 0.2 against 0.1)" in note for note in notes)


def test_dumps_without_settings_are_compared_as_before(tmp_path: Path) -> None:
    norms = (nn.BatchNorm2d(6, momentum=0.9),), (nn.BatchNorm2d(6),)
    assert first(tmp_path, *norms, optimizer=False) is None


@pytest.mark.parametrize("in_target", [True, False])
def test_a_parameter_that_one_run_lacks_is_named(tmp_path: Path, in_target: bool) -> None:
    """Not one of zeros, which adds nothing."""

    def net(bias: bool, value: float | None = None) -> nn.Module:
        torch.manual_seed(0)
        made = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 5, bias=bias), nn.GroupNorm(1, 5))
        if value is not None:
            nn.init.constant_(made[1].bias, value)
        made[2].load_state_dict(nn.GroupNorm(1, 5).state_dict())
        return made

    def compared(folder: Path, *models: nn.Module) -> Any:
        for model, name in zip(models, "ba", strict=True):
            with twinprobe.record(model, folder / name, level="L0"):
                model(torch.randn(3, 4, generator=torch.Generator().manual_seed(1))).square().mean().backward()
        return twinprobe.compare(folder / "b", folder / "a")

    models = net(True), net(False)
    found = compared(tmp_path / "one", *(models if in_target else models[::-1])).first
    assert found.op == "Module.1.Linear.forward.0"
    assert f"only {'the target' if in_target else 'golden'} has bias [5]" in found.sentence
    assert compared(tmp_path / "zeros", *(net(True, 0.0), net(False))[:: 1 if in_target else -1]).first is None


def test_the_mode_of_an_upsampling_and_the_padding_of_a_table_are_settings() -> None:
    """A recurrent layer's mode is its kind, which no setting says."""
    assert built_with(nn.Upsample(scale_factor=2, mode="bilinear"))["mode"] == "bilinear"
    assert [built_with(nn.Embedding(4, 3, padding_idx=at))["padding_idx"] for at in (0, None)] == [0, "none"]
    assert "mode" not in built_with(nn.GRU(3, 4))


def test_a_norm_left_in_training_is_named(tmp_path: Path) -> None:
    """At level L0, where no call has the flag as an argument."""
    runs = [run(tmp_path / str(train), nn.BatchNorm2d(6), train=train) for train in (True, False)]
    found = twinprobe.compare(*runs).first
    assert found.module == "norm"
    assert "the layers are set to training: True against False" in found.sentence


def test_training_is_noted_where_it_acts() -> None:
    assert "training" not in built_with(nn.InstanceNorm2d(6)) | built_with(nn.GELU()) | built_with(nn.Dropout(0.1))


class Drops(nn.Module):
    """It drops in its own code, before a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout, self.layer = 0.2, nn.Conv2d(6, 6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(nn.functional.dropout(x, self.dropout, self.training))


def test_a_module_that_goes_on_dropping_is_named(tmp_path: Path) -> None:
    runs = [run(tmp_path / str(train), Drops(), train=train) for train in (True, False)]
    found = twinprobe.compare(*runs).first
    assert found.module == "norm"
    assert "the layers are set to training: True against False" in found.sentence


def test_the_axis_of_the_batch_is_a_setting(tmp_path: Path) -> None:
    """At level L0, where batch and length are equal."""

    class Square(nn.Module):
        def __init__(self, batch_first: bool) -> None:
            super().__init__()
            self.gru, self.head = nn.GRU(5, 5, batch_first=batch_first), nn.Linear(5, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.gru(x)[0])

    for name, batch_first in (("target", False), ("golden", True)):
        torch.manual_seed(0)
        with twinprobe.record(net := Square(batch_first), tmp_path / name, level="L0"):
            net(torch.randn(4, 4, 5)).square().mean().backward()
    found = twinprobe.compare(tmp_path / "target", tmp_path / "golden").first
    assert "the layers were built with batch_first: False against True" in found.sentence
