"""Pairs of a CPU and an H200, or of two kernels there, recorded once (bench/judge/record_device.py): their noise is
noise."""

from __future__ import annotations

from pathlib import Path

import pytest

import twinprobe

PAIRS = Path(__file__).resolve().parents[2] / "bench" / "judge" / "devices"


@pytest.mark.parametrize("pair", sorted(path.name for path in PAIRS.iterdir()))
def test_the_same_training_on_two_devices_agrees(pair: str) -> None:
    golden, target = sorted((PAIRS / pair).iterdir())
    result = twinprobe.compare(target, golden)
    assert result.agrees, result.first
    for summary in (one.summary for one in result.pairs.values()):
        assert all(one.agrees for one in summary.results)
        assert max(one.worst_eps for one in summary.results) > 0, "two devices are never equal to the last bit"


def test_what_a_step_left_in_the_parameters_is_told_in_the_next() -> None:
    golden, target = sorted((PAIRS / "trained_tf32").iterdir())
    notes = [note for pair in twinprobe.compare(target, golden).pairs.values() for note in pair.summary.notes]
    assert any("the step before, which agrees, left them" in note for note in notes), notes


def test_there_are_pairs_in_every_precision() -> None:
    names = " ".join(path.name for path in PAIRS.iterdir())
    assert all(word in names for word in ("float32", "tf32", "bf16"))
