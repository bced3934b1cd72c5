"""A recorded call, run again from its own arguments: which side is off by itself?"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from replay_tools import Faulty, record, small

import twinprobe
import twinprobe.torch
from twinprobe._cli import main


def test_a_call_is_guilty_although_its_inputs_differ(
    golden: Path, two_faults: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(two_faults), str(golden), "--call", "Functional.softmax.3.forward"]
    assert main(["replay", *words, "--fail-on"]) == 1
    shown = capsys.readouterr().out
    assert "Functional.softmax.3.forward: the target is off by itself" in shown
    assert shown.count("<- off") == 2  # the result and its gradient, of the target alone
    assert main(["replay", *words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["off"] == "target"
    value = document["values"][0]
    assert value["target"]["relative"] == pytest.approx(5e-4, rel=0.01)
    assert value["target"]["eps"] == pytest.approx(5e-4 / 2**-23, rel=0.01)
    assert value["golden"]["times"] < 2


def test_golden_may_be_the_one_that_is_off(golden: Path, two_faults: Path) -> None:
    assert twinprobe.replay(golden, two_faults, call="Functional.gelu.1.forward").off == "golden"
    assert twinprobe.replay(two_faults, two_faults, call="Functional.gelu.1.forward").off == "both"
    assert twinprobe.replay(two_faults, golden, call="Functional.gelu.2.forward").off == "neither"


def test_compare_with_replay_finds_both_faults(golden: Path, two_faults: Path, tmp_path: Path) -> None:
    plain = next(iter(twinprobe.compare(two_faults, golden).pairs.values())).summary
    assert "Functional.softmax.3.forward" not in [other.op for other in plain.others]
    assert main(["compare", str(two_faults), str(golden), "-o", str(tmp_path), "--replay", "--format", "json,csv"]) == 0
    result = json.loads(next(tmp_path.rglob("*.json")).read_text())
    summary = result["summary"]
    assert summary["first"]["op"] == "Functional.gelu.1.forward"
    assert [other["op"] for other in summary["others"]] == ["Functional.softmax.3.forward"]
    assert "from its own inputs the target's call gives other values" in summary["others"][0]["sentence"]
    table = pl.read_csv(next(tmp_path.rglob("*.csv")), infer_schema_length=None)
    assert table.columns[-1] == "Isolated error (eps)"
    errors = dict(zip(table["NPU Name"], table["Isolated error (eps)"], strict=True))
    assert float(errors["Functional.softmax.3.forward.output.0"]) > 4000
    assert float(errors["Functional.gelu.3.forward.output.0"]) < 2  # innocent, though its output differs
    assert errors["Functional.gelu.3.forward.input.0"] is None
    # The folder of the result names both recordings; one without the json does not.
    assert main(["replay", str(tmp_path), "--call", "Functional.gelu.1.forward", "--quiet", "--fail-on"]) == 1
    next(tmp_path.rglob("*.json")).unlink()
    assert main(["replay", str(tmp_path), "--call", "Functional.gelu.1.forward"]) == 2


def test_a_comparison_replays_no_longer_than_it_may(golden: Path, two_faults: Path) -> None:
    summary = next(iter(twinprobe.compare(two_faults, golden, replay=1e-9).pairs.values())).summary
    assert any("no time was left for" in note for note in summary.notes)


def test_only_the_way_back_may_be_wrong(golden: Path, tmp_path: Path) -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 1.01

    target = record(tmp_path / "run", {("gelu", 2): Wrong.apply})
    found = twinprobe.replay(target, golden, call="Functional.gelu.2.forward")
    assert found.off == "target"
    off = [value.name for value in found.values if value.target is not None and value.target.times > 4]
    assert off == ["backward.output.0"]
    assert (
        twinprobe.reproduce(
            target, golden, call="Functional.gelu.2.forward", output_path=tmp_path / "out", shrink=True
        ).shows
        == "target's backward.output.0"
    )
    assert len((tmp_path / "out/reproduce.py").read_text().splitlines()) <= 40


class Modules(torch.nn.Module):
    """Modules of torch.nn whose settings no dump holds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.groups = torch.nn.GroupNorm(4, 8)
        self.act = torch.nn.GELU(approximate="tanh")
        self.norm = torch.nn.LayerNorm(16, eps=1e-6)
        self.out = torch.nn.Linear(16, 4)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.groups(self.conv(x))).flatten(2)
        return self.drop(self.out(self.norm(x))).square().sum()


def test_modules_are_rebuilt_from_their_class_and_parameters(tmp_path: Path) -> None:
    folders = []
    for name, faults in (("golden", {}), ("target", {("layer_norm", 0): lambda out: out * 1.001})):
        torch.manual_seed(1)
        model = Modules()
        folders.append(tmp_path / name)
        with Faulty(faults), twinprobe.torch.record(model, folders[-1], level="L0", task="tensor"):
            model(torch.randn(2, 3, 8, 8)).backward()
    golden, target = folders
    expected = {"conv": "neither", "groups": "neither", "act": "neither", "norm": "target", "out": "neither"}
    found = {name: twinprobe.replay(target, golden, call=name) for name in expected}
    assert {name: one.off for name, one in found.items()} == expected
    assert all(one.values for one in found.values())
    # What cannot be replayed says why.
    assert (
        "not a module that its parameters alone can rebuild" in twinprobe.replay(target, golden, call="drop").sentence
    )


def test_what_cannot_be_replayed_says_why(golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
    for name, task in (("tensor", "tensor"), ("statistics", "statistics")):
        with twinprobe.torch.record(model, tmp_path / name, level="mix", task=task):
            model(torch.ones(2, 4)).sum()
    dropout = twinprobe.replay(tmp_path / "tensor", call="Functional.dropout.0.forward")
    assert dropout.reasons == {"target": "it draws random numbers, which are not recorded"}
    kept = twinprobe.replay(tmp_path / "statistics", call="Functional.linear.0.forward")
    assert kept.reasons == {"target": "its tensors were not kept: record with task tensor"}
    assert main(["replay", str(golden), str(golden), "--call", "Functional.gelo.1.forward"]) == 2
    assert "did you mean 'Functional.gelu.1.forward'" in capsys.readouterr().err
    copy = tmp_path / "copy"
    shutil.copytree(golden, copy)
    next(copy.rglob("Functional.gelu.1.forward.input.0.pt")).unlink()
    assert main(["replay", str(copy), str(copy), "--call", "Functional.gelu.1.forward"]) == 2
    assert "is missing" in capsys.readouterr().err


# Planted kernel faults behind another one: each has inputs that differ already.
KERNELS = ("gelu", "softmax", "linear", "layer_norm", "matmul", "add")
FACTORS = {torch.float32: 1.0005, torch.bfloat16: 1.06}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_planted_faults_behind_another_are_found(dtype: torch.dtype, tmp_path: Path) -> None:
    factor = FACTORS[dtype]
    golden = record(tmp_path / "golden", dtype=dtype)
    missed = []
    for kernel in KERNELS:
        number = {"linear": 13, "matmul": 7, "add": 7}.get(kernel, 3)
        faults = {("gelu", 0): lambda out: out * factor, (kernel, number): lambda out: out * factor}
        target = record(tmp_path / kernel, faults, dtype=dtype)
        summary = next(iter(twinprobe.compare(target, golden, replay=True).pairs.values())).summary
        named = [found.op for found in (summary.first, *summary.others) if found is not None]
        if len(named) < 2 or kernel not in named[1] or "gelu.0" not in named[0]:
            missed.append((kernel, named))
    assert missed == []


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_healthy_pair_stays_without_a_claim(dtype: torch.dtype, tmp_path: Path) -> None:
    golden = record(tmp_path / "golden", dtype=dtype)
    with torch.backends.mkldnn.flags(enabled=False):
        target = record(tmp_path / "target", dtype=dtype)
    pair = next(iter(twinprobe.compare(target, golden, replay=True).pairs.values()))
    assert pair.summary.first is None
    assert pair.evidence.isolated is not None
    assert not (pair.evidence.isolated.times > 4).any()


def test_calls_that_only_golden_makes_are_no_hindrance(two_faults: Path, tmp_path: Path) -> None:
    model = small()
    model.layers[0].register_forward_hook(lambda _module, _args, out: out.sin().asin())
    with twinprobe.torch.record(model, tmp_path / "golden", level="mix", task="tensor"):
        model(torch.arange(24).reshape(2, 12)).backward()
    summary = next(iter(twinprobe.compare(two_faults, tmp_path / "golden", replay=True).pairs.values())).summary
    assert summary.golden_only
    named = [one.op for one in (summary.first, *summary.others) if one is not None]
    assert {"Functional.gelu.1.forward", "Functional.softmax.3.forward"} <= set(named)


def test_two_healthy_functions_do_not_clear_each_other(golden: Path, tmp_path: Path) -> None:
    """gelu and its approximation are both right by themselves; the runs part there all the same."""
    model = small()
    right = torch.nn.functional.gelu
    calls = iter(range(4))

    def other(x: torch.Tensor) -> torch.Tensor:
        return right(x, approximate="tanh" if next(calls) == 1 else "none")

    with (
        pytest.MonkeyPatch.context() as patch,
        twinprobe.torch.record(model, tmp_path / "run", level="mix", task="tensor"),
    ):
        patch.setattr(torch.nn.functional, "gelu", other)
        model(torch.arange(24).reshape(2, 12)).backward()
    found = twinprobe.compare(tmp_path / "run", golden, replay=True)
    assert found.first is not None
    assert found.first.op == "Functional.gelu.1.forward"
