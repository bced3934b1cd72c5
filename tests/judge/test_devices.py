"""Pairs of a CPU and an H200, recorded once (bench/judge/record_device.py): the noise of another device is noise."""

from __future__ import annotations

from pathlib import Path

import pytest

import twinprobe

PAIRS = Path(__file__).resolve().parents[2] / "bench" / "judge" / "devices"


@pytest.mark.parametrize("pair", sorted(path.name for path in PAIRS.iterdir()))
def test_the_same_step_on_two_devices_agrees(pair: str) -> None:
    result = twinprobe.compare(PAIRS / pair / "cuda" / "dump.json", PAIRS / pair / "cpu" / "dump.json")
    assert result.agrees, result.first
    (summary,) = (one.summary for one in result.pairs.values())
    assert all(one.agrees for one in summary.results)
    assert max(one.worst_eps for one in summary.results) > 0, "two devices are never equal to the last bit"


def test_there_are_pairs_in_every_precision() -> None:
    names = " ".join(path.name for path in PAIRS.iterdir())
    assert all(word in names for word in ("float32", "tf32", "bf16"))
