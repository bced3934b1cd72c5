"""A recording stands for a model, and two recordings are checked against each other without a framework."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch_pairs import Chain, Wrapped, numbers

from twinprobe import auto_diff
from twinprobe._live.checks import check_grads, check_params, check_report, check_weights
from twinprobe.errors import BadInput
from twinprobe.torch import record

X = numbers(4, 8)


def recorded(
    model: nn.Module, folder: Path, *, steps: int = 1, task: str = "tensor", rate: float = 0.0, x: torch.Tensor = X
) -> Path:
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with record(model, folder, level="mix", task=task) as recording:
        for step in range(steps):
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
            if step + 1 < steps:
                recording.step()
    return folder


def twin(model: Chain, **more: object) -> Chain:
    made = Chain(len(model.layers), **more)
    made.load_state_dict(model.state_dict())
    return made


def test_a_model_agrees_with_its_recording_in_either_order(tmp_path: Path) -> None:
    folder = recorded(Chain(), tmp_path / "run")
    assert auto_diff(Chain(), folder, X, quiet=True)
    assert auto_diff(str(folder), Chain(), X, quiet=True)


def test_inputs_and_weights_come_from_the_recording(tmp_path: Path) -> None:
    folder = recorded(Chain(), tmp_path / "run")
    assert auto_diff(Chain(), folder, quiet=True)
    result = auto_diff(Chain(), folder, auto_weights=False, quiet=True)
    assert not result
    assert result.first.raw == "Module.layers.0.Linear.forward.0"


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_a_fault_is_found_against_a_recording(tmp_path: Path, task: str) -> None:
    base = Chain()
    folder = recorded(base, tmp_path / "run", task=task)
    assert auto_diff(twin(base), folder, X, auto_weights=False, quiet=True)
    result = auto_diff(twin(base, at=3, change=torch.sin), folder, X, auto_weights=False, quiet=True)
    assert not result
    assert result.first.raw == "Module.layers.4.Linear.forward.0"


def test_a_model_written_otherwise_takes_the_recorded_weights(tmp_path: Path) -> None:
    base = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    folder = recorded(base, tmp_path / "run", x=numbers(4, 6))
    assert auto_diff(Wrapped(), folder, numbers(4, 6), quiet=True)


def test_a_recording_whose_calls_enclose_one_another_in_a_circle_is_shown_too(tmp_path: Path) -> None:
    base = Chain()
    folders = recorded(base, tmp_path / "base"), recorded(twin(base, at=3, change=torch.sin), tmp_path / "raw")
    for file in tmp_path.glob("*/**/construct.json"):
        parents = json.loads(file.read_text())
        inner = "Module.layers.0.Linear.forward.0"
        parents |= {inner: "Tensor.a.0.forward", "Tensor.a.0.forward": "Tensor.b.0.forward"}
        file.write_text(json.dumps(parents | {"Tensor.b.0.forward": "Tensor.a.0.forward"}))
    code = f"from twinprobe import check_report\nassert not check_report({str(folders[0])!r}, {str(folders[1])!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600
    )  # an endless search does not end by itself
    assert done.returncode == 0, done.stderr
    assert "Module.layers.4.Linear.forward.0" in done.stdout
    assert "layers.0 (Linear)" in done.stdout


def test_steps_are_compared_one_by_one(tmp_path: Path) -> None:
    base, raw = Chain(), Chain()
    raw.load_state_dict(base.state_dict())
    folder = recorded(base, tmp_path / "run", steps=3, rate=0.1)
    for rate, agree in ((0.1, True), (0.2, False)):
        model = twin(raw)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        result = auto_diff(model, folder, X, optimizers=[optimizer, optimizer], steps=3, auto_weights=False, quiet=True)
        assert bool(result) is agree
        if not agree:
            assert result.first.step == 1


def test_same_input_agrees_other_input_does_not(tmp_path: Path) -> None:
    base = Chain()
    one = recorded(base, tmp_path / "one")
    same = recorded(base, tmp_path / "same")
    other = recorded(base, tmp_path / "other", x=numbers(4, 8, seed=7))
    assert check_report(one, same, quiet=True)
    assert not check_report(one, other, quiet=True)
    assert check_report(one, other, {"atol": 100.0}, quiet=True)
    assert not check_report(one, other, quiet=True), "a tolerance must not leak into the next check"


def test_every_step_is_checked(tmp_path: Path) -> None:
    """An optimizer that steps on one side only shows from the second step on."""
    base = Chain()
    raw = twin(base)
    one = recorded(base, tmp_path / "one", steps=3)
    other = recorded(raw, tmp_path / "other", steps=3, rate=0.3)
    result = check_report(one, other, quiet=True)
    assert not result
    assert result.first.step == 1


def test_weights_and_gradients_are_checked_apart(tmp_path: Path) -> None:
    base = Chain()
    one = recorded(base, tmp_path / "one")
    scaled = twin(base, at=5, change=lambda h: h.register_hook(lambda gradient: gradient * 2) and h)
    gradients = recorded(scaled, tmp_path / "gradients")
    assert check_weights(one, gradients, quiet=True)
    assert not check_grads(one, gradients, quiet=True)
    assert not check_params(one, gradients, quiet=True)
    doubled = twin(base)
    with torch.no_grad():
        for parameter in doubled.parameters():
            parameter.mul_(2)
    weights = recorded(doubled, tmp_path / "weights")
    assert not check_weights(one, weights, quiet=True)
    assert check_weights(one, weights, {"atol": 10}, quiet=True)


def test_a_recording_may_be_moved_and_needs_no_framework_to_be_checked(tmp_path: Path) -> None:
    folder = recorded(Chain(), tmp_path / "run")
    moved = tmp_path / "elsewhere" / "run"
    shutil.copytree(folder, moved)
    shutil.copytree(folder, tmp_path / "kept")
    shutil.rmtree(folder)
    program = (
        "import sys\n"
        "for name in ('torch', 'paddle', 'mindspore'): sys.modules[name] = None\n"
        "from twinprobe._live.checks import check_report\n"
        "assert check_report(sys.argv[1], sys.argv[2], quiet=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(moved), str(tmp_path / "kept")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_dropout_masks_are_replayed_from_the_recording(tmp_path: Path) -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 40), nn.Dropout(0.5), nn.Linear(40, 2), nn.Dropout(0.2)).train()

    folder = recorded(net(), tmp_path / "run")
    assert auto_diff(net(), folder, X, quiet=True)
    assert not auto_diff(net(), folder, X, random="seed", quiet=True)


def test_bad_folders_and_keys_are_refused(tmp_path: Path) -> None:
    folder = recorded(Chain(), tmp_path / "run")
    with pytest.raises(BadInput, match="does not exist"):
        auto_diff(Chain(), tmp_path / "nowhere", X, quiet=True)
    with pytest.raises(BadInput, match="atol"):
        check_report(folder, folder, {"atoll": 1}, quiet=True)
    with pytest.raises(BadInput, match="diff_phase"):
        check_report(folder, folder, diff_phase="up", quiet=True)
    several = recorded(Chain(), tmp_path / "several", steps=2)
    with pytest.raises(BadInput, match="2 runs"):
        check_report(folder, several, quiet=True)
