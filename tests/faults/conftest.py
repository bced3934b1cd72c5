"""Faults to order: a server of victims, disks too small, users without rights."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fault_tools import NOBODY, Victims


@pytest.fixture(scope="module")
def victims() -> Iterator[Victims]:
    victims = Victims()
    yield victims
    victims.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Makes file systems of some kilobytes in memory, which takes root's rights."""
    made: list[Path] = []

    def make(kilobytes: int) -> Path:
        place = tmp_path / f"disk{len(made)}"
        place.mkdir()
        options = f"size={kilobytes}k,mode=0777"
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True, check=False
        )
        if done.returncode:
            pytest.skip("a small file system cannot be mounted here: that needs root's rights")
        made.append(place)
        return place

    if shutil.which("mount") is None:
        pytest.skip("a small file system cannot be mounted here: there is no mount command")
    yield make
    for place in made:
        subprocess.run(["umount", "-l", str(place)], check=False)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach, which pytest's own is not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


@pytest.fixture
def plain_user() -> dict[str, int]:
    """Options that make a job run without root's rights, which no permission stops."""
    return {"user": NOBODY} if os.geteuid() == 0 else {}
