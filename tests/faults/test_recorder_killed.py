"""A recorder that is killed, at any point: whole files, nothing lost that was flushed, and a next run that says so."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any

import pytest
from fault_checks import check_recording
from fault_tools import Victims

from twinprobe._record.engine import refuse_earlier_dump
from twinprobe.errors import BadInput


def _kill_points(victims: Victims, path: Path, points: int) -> None:
    """Two of three points before or after a call that changes files, the others at any moment."""
    calm = victims.record(path / "calm", kill_call=0)
    assert calm["status"] == 0, calm["said"]
    assert check_recording(path / "calm") == {0, 1, 2, 3}
    chance = random.Random(points)
    killed = 0
    for point in range(points):
        folder = path / f"dump{point}"
        share = (point + chance.random()) / points
        fault: dict[str, Any] = {"kill_call": 1 + int(share * calm["calls"])}
        if point % 3 == 2:
            fault = {"kill_after": share * calm["seconds"]}
        result = victims.record(folder, **fault)
        killed += result["status"] == -signal.SIGKILL
        whole = check_recording(folder)
        flushed = max(result["told"], default=-1)
        assert whole >= set(range(flushed + 1)), f"point {point}: steps 0 to {flushed} were flushed, found {whole}"
        _check_next_run(folder)
    assert killed >= points // 2  # those at a call, at least


def _check_next_run(folder: Path) -> None:
    """The next run of this rank does not mix with what is there: it names it."""
    indexes = sorted(folder.glob("step*/*/dump.json*"))
    if not indexes:
        return
    own = indexes[0].parent.name
    with pytest.raises(BadInput, match=r"holds an earlier dump.*not overwritten.*give another dump_path") as caught:
        refuse_earlier_dump(folder, own)
    only_part = [index.name for index in indexes if index.parent == indexes[0].parent] == ["dump.json.part"]
    assert ("that was not finished (dump.json.part)" in str(caught.value)) is only_part


def test_killed_at_random_points(victims: Victims, tmp_path: Path) -> None:
    _kill_points(victims, tmp_path, 6)


@pytest.mark.slow
def test_killed_at_a_hundred_random_points(victims: Victims, tmp_path: Path) -> None:
    _kill_points(victims, tmp_path, 100)


def test_sigterm_ends_the_program_at_once_and_keeps_what_was_flushed(victims: Victims, tmp_path: Path) -> None:
    result = victims.record(tmp_path / "dump", wait_after=1, signal=signal.SIGTERM)
    assert result["status"] == -signal.SIGTERM
    assert check_recording(tmp_path / "dump") == {0, 1}


def test_a_program_that_exits_on_sigterm_closes_its_dump(victims: Victims, tmp_path: Path) -> None:
    result = victims.record(tmp_path / "dump", wait_after=2, signal=signal.SIGTERM, exit_on_sigterm=True)
    assert result["status"] == 7, result["said"]
    assert check_recording(tmp_path / "dump") == {0, 1, 2}
    assert list((tmp_path / "dump").rglob("*.part")) == []
    assert "recorded" in result["said"]
