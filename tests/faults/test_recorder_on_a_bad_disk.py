"""A disk that is full, read-only or taken away stops the recording, never the training, and halves no file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fault_checks import check_recording
from fault_tools import Victims, make_read_only

STOPS = "recording stops, the program continues"


def _check_trained(result: dict[str, Any], reason: str) -> None:
    assert result["status"] == 0, result["said"]
    assert "trained to the end" in result["said"]
    assert result["said"].count(STOPS) == 1, result["said"]
    assert reason in result["said"]
    assert "recording stopped early" in result["said"]


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_a_full_disk(victims: Victims, small_disk: Callable[..., Path], task: str) -> None:
    folder = small_disk(160 if task == "tensor" else 40) / "dump"
    result = victims.record(folder, task=task, steps=12)
    _check_trained(result, "No space left on device")
    whole = check_recording(folder)
    assert whole == set(range(len(whole)))
    assert len(whole) < 12
    assert [path for path in folder.rglob(".*") if path.is_file()] == []


def test_a_limit_on_the_size_of_files(victims: Victims, tmp_path: Path) -> None:
    result = victims.record(tmp_path / "dump", task="statistics", limit=6000)
    _check_trained(result, "File too large")
    assert check_recording(tmp_path / "dump") == set()
    parts = list((tmp_path / "dump").glob("step0/*/*.part"))  # the index and the sketches: one of them meets the limit
    assert max(part.stat().st_size for part in parts) == 6000
    assert list((tmp_path / "dump").rglob(".*")) == []


def test_a_read_only_file_system(victims: Victims, small_disk: Callable[..., Path]) -> None:
    disk = small_disk(1000)
    make_read_only(disk)
    _check_trained(victims.record(disk / "dump"), "Read-only file system")


def test_a_folder_without_permission(victims: Victims, open_folder: Path, plain_user: dict[str, int]) -> None:
    open_folder.chmod(0o555)
    _check_trained(victims.record(open_folder / "dump", **plain_user), "Permission denied")


def test_a_permission_lost_in_the_middle(victims: Victims, open_folder: Path, plain_user: dict[str, int]) -> None:
    result = victims.record(open_folder / "dump", lose_permission=1, **plain_user)
    _check_trained(result, "Permission denied")
    assert check_recording(open_folder / "dump") == {0, 1}
