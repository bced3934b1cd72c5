"""bench_path: checksums are compared while running; real tensors are kept for the first differences only."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from twinprobe.errors import BadInput
from twinprobe.torch import PrecisionDebugger


class Chain(nn.Module):
    """Four layers; the scale of one may be changed between runs."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for at, layer in enumerate(self.layers):
            x = torch.tanh(layer(x))
            if at == 2:
                x = torch.mul(x, torch.full((1,), self.scale))
        return x


def run(path: Path, scale: float = 1.0, steps: int = 1, **options: Any) -> None:
    torch.manual_seed(0)
    model = Chain(scale)
    debugger = PrecisionDebugger(dump_path=path, level="mix", **options)
    for _ in range(steps):
        debugger.start(model=model)
        model(torch.ones(2, 4)).sum().backward()
        debugger.stop()
        debugger.step()
    debugger.close()


def saved(path: Path) -> dict[str, list[str]]:
    """Entry name to the files that were kept for it."""
    (folder,) = (path / "step0").iterdir()
    data = json.loads((folder / "dump.json").read_text(encoding="utf-8"))["data"]
    files = sorted(one.name for one in folder.glob("dump_tensor_data/*.pt"))
    return {name: [file for file in files if file.startswith(f"{name}.")] for name in data}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "dump"
    run(path, task="statistics", summary_mode="md5")
    return path


def check(bench: Path, path: Path, scale: float, count: int) -> dict[str, list[str]]:
    run(path, scale, task="tensor", summary_mode="md5", bench_path=str(bench), diff_nums=count)
    return {name: files for name, files in saved(path).items() if files}


def test_an_equal_run_keeps_no_tensor(tmp_path: Path, bench: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="twinprobe.record")
    assert check(bench, tmp_path / "dump", 1.0, 3) == {}
    assert "no checksum differs" in caplog.text


def test_the_first_differing_call_is_kept_with_its_inputs(tmp_path: Path, bench: Path) -> None:
    kept = check(bench, tmp_path / "dump", 0.5, 1)
    name = "Torch.mul.0.forward"
    assert kept == {name: [f"{name}.input.0.pt", f"{name}.input.1.pt", f"{name}.output.0.pt"]}
    (folder,) = (tmp_path / "dump" / "step0").iterdir()
    inputs, scale, output = (torch.load(folder / "dump_tensor_data" / file) for file in kept[name])
    assert scale.tolist() == [0.5]
    assert torch.equal(inputs * 0.5, output)


def test_an_enclosing_module_still_has_its_inputs(tmp_path: Path, bench: Path) -> None:
    kept = check(bench, tmp_path / "dump", 0.5, 3)
    assert list(kept) == ["Torch.mul.0.forward", "Functional.linear.3.forward", "Module.layers.3.Linear.forward.0"]
    module = "Module.layers.3.Linear.forward.0"
    assert f"{module}.input.0.pt" in kept[module]
    assert f"{module}.output.0.pt" in kept[module]


def test_minus_one_keeps_every_difference(tmp_path: Path, bench: Path) -> None:
    kept = check(bench, tmp_path / "dump", 0.5, -1)
    assert "Functional.linear.0.backward" in kept
    assert "Module.layers.0.Linear.parameters_grad.0" in kept
    assert "Functional.linear.2.forward" not in kept


def test_a_step_that_the_bench_lacks_is_recorded_without_comparing(
    tmp_path: Path, bench: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"task": "tensor", "summary_mode": "md5", "bench_path": str(bench), "diff_nums": 1}
    run(tmp_path / "dump", 1.0, steps=2, **options)
    assert "has no step 1" in caplog.text
    assert (tmp_path / "dump" / "step1").is_dir()


def test_a_bench_without_checksums_is_refused(tmp_path: Path) -> None:
    run(tmp_path / "plain", task="statistics")
    with pytest.raises(BadInput, match=r"holds no checksums.*summary_mode md5"):
        check(tmp_path / "plain", tmp_path / "dump", 1.0, 1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"summary_mode": "statistics"}, "set summary_mode to 'md5'"),
        ({"summary_mode": "md5", "bench_path": "nowhere"}, "bench_path nowhere is not a folder"),
        ({"summary_mode": "md5", "diff_nums": 0}, "diff_nums must be a positive number"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        PrecisionDebugger(dump_path=tmp_path / "x", task="tensor", **({"bench_path": str(tmp_path)} | options))
