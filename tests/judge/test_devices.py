"""Pairs of a CPU and an H200, or of two kernels there, recorded once (bench/judge/record_device.py): their noise is
noise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import twinprobe

PAIRS = Path(__file__).resolve().parents[2] / "bench" / "judge" / "devices"


@pytest.mark.parametrize("turned", [False, True], ids=["", "turned"])
@pytest.mark.parametrize("pair", sorted(path.name for path in PAIRS.iterdir()))
def test_the_same_training_on_two_devices_agrees(pair: str, turned: bool) -> None:
    """Whichever of them is golden: what only one run computes in TF32 is noise on both sides."""
    golden, target = sorted((PAIRS / pair).iterdir(), reverse=turned)
    result = twinprobe.compare(target, golden)
    assert result.agrees, result.first
    for summary in (one.summary for one in result.pairs.values()):
        assert all(one.agrees for one in summary.results)
        assert max(one.worst_eps for one in summary.results) > 0, "two devices are never equal to the last bit"


def test_what_a_step_left_in_the_parameters_is_told_in_the_next() -> None:
    golden, target = sorted((PAIRS / "trained_tf32").iterdir())
    notes = [note for pair in twinprobe.compare(target, golden).pairs.values() for note in pair.summary.notes]
    assert any("the step before, which agrees, left them" in note for note in notes), notes


@pytest.mark.parametrize(("switch", "agrees"), [("tf32_cudnn", False), ("tf32_matmul", True)])
def test_a_switch_for_convolutions_means_nothing_without_one(switch: str, agrees: bool, tmp_path: Path) -> None:
    """cuDNN's is on by default on every GPU: an error of 1e-4 in a linear layer is still one."""
    dumps = []
    for side in ("target", "golden"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32))
        if side == "target":
            model[0].register_forward_hook(lambda _module, _args, output: output * (1 + 1e-4))
        with twinprobe.record(model, tmp_path / side, level="L0"):
            model(torch.randn(16, 32)).square().mean().backward()
        dump = next((tmp_path / side).rglob("dump.json"))
        document = json.loads(dump.read_text())
        document["settings"] |= {"device": "NVIDIA H200", switch: True}
        dump.write_text(json.dumps(document))
        dumps.append(dump)
    assert twinprobe.compare(*dumps).agrees is agrees


def test_there_are_pairs_in_every_precision() -> None:
    names = " ".join(path.name for path in PAIRS.iterdir())
    assert all(word in names for word in ("float32", "tf32", "bf16"))
