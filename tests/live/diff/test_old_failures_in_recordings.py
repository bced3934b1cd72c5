"""What went wrong in the recordings of the tool that came before, each shown to be right here."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch_pairs import Chain, Residual, numbers

from twinprobe._live.checks import check_report
from twinprobe._runs.run import open_run
from twinprobe.torch import record

X = numbers(4, 8)


def test_recordings_of_one_class_are_two_recordings(tmp_path: Path) -> None:
    """Two models of one class, one five times the other, written below one folder and checked there."""
    for name, scale in (("base", 1.0), ("raw", 5.0)):
        torch.manual_seed(0)
        model = Residual(change=lambda h, scale=scale: h * scale)
        with record(model, tmp_path / name, level="L0", task="tensor"):
            model(numbers(2, 12)).mean().backward()
    assert check_report(tmp_path / "base", tmp_path / "base", quiet=True)
    assert not check_report(tmp_path / "base", tmp_path / "raw", quiet=True)


def test_recorded_gradients_of_layers_are_compared_and_not_their_outputs(tmp_path: Path) -> None:
    """Only a gradient between two layers differs: no output, no weight. It must be found where it is."""

    def tripled(h: torch.Tensor) -> torch.Tensor:
        if h.requires_grad:
            h.register_hook(lambda gradient: gradient * 3)
        return h

    for name, change in (("one", lambda h: h), ("other", tripled)):
        torch.manual_seed(0)
        model = Chain(3, at=1, change=change)
        with record(model, tmp_path / name, level="L0", task="tensor"):
            model(X).mean().backward()
    assert check_report(tmp_path / "one", tmp_path / "other", diff_phase="forward", quiet=True)
    result = check_report(tmp_path / "one", tmp_path / "other", quiet=True)
    assert not result
    assert result.first.phase == "backward"
    wrong = {one.raw for one in result.differences if one.phase == "backward"}
    assert "Module.layers.1.Linear.backward.0" in wrong
    assert "Module.layers.2.Linear.backward.0" not in wrong


def test_bfloat16_models_are_recorded_and_checked(tmp_path: Path) -> None:
    for name, shift in (("one", 0.0), ("same", 0.0), ("other", 1.0)):
        torch.manual_seed(0)
        model = Chain(2).bfloat16()
        with torch.no_grad():
            model.layers[1].bias += shift
        with record(model, tmp_path / name, level="L0", task="tensor"):
            model(X.bfloat16()).float().mean().backward()
    assert check_report(tmp_path / "one", tmp_path / "same", quiet=True)
    result = check_report(tmp_path / "one", tmp_path / "other", quiet=True)
    assert not result
    assert result.first.raw == "Module.layers.1.Linear.forward.0"
    assert {one.dtype for one in result.findings} == {"bfloat16"}


def test_a_recording_holds_inputs_buffers_types_and_statistics_and_no_repeated_passes(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    with record(model, tmp_path / "run", level="mix", task="tensor") as recording, torch.no_grad():
        for step in range(3):
            model(numbers(2, 3, 8, 8))
            if step < 2:
                recording.step()
    runs = [open_run(path) for path in sorted((tmp_path / "run").rglob("dump.json"))]
    assert len(runs) == 3
    assert runs[0].ops == runs[1].ops == runs[2].ops, "each step holds its own pass and no earlier one"
    table = runs[0].table
    names = set(table["name"])
    assert "Module.0.Conv2d.forward.0.input.0" in names
    assert {f"Functional.batch_norm.0.forward.input.{at}" for at in (1, 2)} <= names, "running mean and variance"
    tensors = table.filter(table["file"].is_not_null())
    assert not any(Path(file).is_absolute() for file in tensors["file"])
    for column in ("dtype", "shape", "max", "min", "mean", "norm"):
        assert tensors[column].null_count() == 0, column


def test_a_recording_compares_all_its_steps(tmp_path: Path) -> None:
    for name, shift in (("one", 0.0), ("other", 1.0)):
        torch.manual_seed(0)
        model = Residual()
        with record(model, tmp_path / name, level="L0", task="tensor") as recording:
            for step in range(3):
                model(numbers(2, 12) + (shift if step == 2 else 0.0)).mean().backward()
                if step < 2:
                    recording.step()
    result = check_report(tmp_path / "one", tmp_path / "other", quiet=True)
    assert not result
    assert result.first.step == 2
