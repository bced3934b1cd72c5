"""Files that vanish, shrink or change while they are read cost their own rows, with a reason; the rest goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from fault_tools import Victims

from support import forward, tensor, tensor_dump, write_dump

CALLS = 8
BIG = (300, 300)  # above what is read at once


@pytest.fixture
def dumps(open_folder: Path) -> tuple[Path, Path]:
    rng = np.random.default_rng(0)
    calls = {f"Torch.mul.{i}.forward": {"output.0": rng.standard_normal(BIG).astype(np.float32)} for i in range(CALLS)}
    return tensor_dump(open_folder / "a", calls), tensor_dump(open_folder / "b", calls)


def _file(dump: Path, call: int) -> Path:
    return dump.parent / "dump_tensor_data" / f"Torch.mul.{call}.forward.output.0.npy"


def _compare(victims: Victims, dumps: tuple[Path, Path], out: Path, **fault: Any) -> pl.DataFrame:
    words = ("compare", "-tp", dumps[0], "-gp", dumps[1], "-o", out, "--format", "csv", "--quiet")
    result = victims.command(out, *words, **fault)
    assert result["told"] == [0], result["said"]
    (path,) = out.glob("*.csv")
    table = pl.read_csv(path, infer_schema=False)
    assert table.height == CALLS
    return table


def _check_only(table: pl.DataFrame, call: int, reason: str) -> None:
    """One row has no metrics and says why; all others are compared."""
    for row in table.iter_rows(named=True):
        if row["NPU Name"].startswith(f"Torch.mul.{call}."):
            assert reason in row["Reason"], row
            assert row["Result"] != "pass"
        else:
            assert float(row["Cosine"]) == pytest.approx(1.0)
            assert row["Result"] == "pass"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("remove", "is missing"),
        ("empty", "is empty"),
        ("shrink", "bytes of elements, but only"),
        ("replace", "is not a regular file"),
    ],
)
def test_before_it_is_opened(
    victims: Victims, dumps: tuple[Path, Path], tmp_path: Path, change: str, reason: str
) -> None:
    meddle = [[_file(dumps[0], 0).name, change, str(_file(dumps[0], 5))]]
    _check_only(_compare(victims, dumps, tmp_path, meddle=meddle), 5, reason)


@pytest.mark.parametrize(
    ("change", "reason"),
    [("shrink", "while it was read"), ("empty", "while it was read"), ("rewrite", "changed while it was read")],
)
def test_between_opening_and_reading(
    victims: Victims, dumps: tuple[Path, Path], tmp_path: Path, change: str, reason: str
) -> None:
    """A file is opened, and then no longer holds what its header said."""
    changed = _file(dumps[0], 5)
    table = _compare(victims, dumps, tmp_path, meddle_after=[[str(changed), change, str(changed)]])
    _check_only(table, 5, reason)


def test_a_file_without_permission(
    victims: Victims, dumps: tuple[Path, Path], open_folder: Path, plain_user: dict[str, int]
) -> None:
    _file(dumps[0], 5).chmod(0)
    out = open_folder / "out"
    out.mkdir()
    out.chmod(0o777)
    table = _compare(victims, dumps, out, **plain_user)
    _check_only(table, 5, "cannot be opened: Permission denied")


def test_a_pipe_in_the_place_of_a_file(victims: Victims, dumps: tuple[Path, Path], tmp_path: Path) -> None:
    _file(dumps[0], 5).unlink()
    os.mkfifo(_file(dumps[0], 5))
    _check_only(_compare(victims, dumps, tmp_path), 5, "is not a regular file")


@pytest.mark.parametrize("name", ["stack.json", "construct.json"])
def test_a_pipe_in_the_place_of_a_side_file(
    victims: Victims, dumps: tuple[Path, Path], tmp_path: Path, name: str
) -> None:
    os.mkfifo(dumps[0].parent / name)
    assert _compare(victims, dumps, tmp_path)["Result"].to_list() == ["pass"] * CALLS


def test_few_file_descriptors(victims: Victims, dumps: tuple[Path, Path], tmp_path: Path) -> None:
    table = _compare(victims, dumps, tmp_path, descriptors=40)
    assert table["Result"].to_list() == ["pass"] * CALLS


def test_a_rank_that_vanishes_costs_itself_only(victims: Victims, tmp_path: Path) -> None:
    data = {"Torch.mul.0.forward": forward([tensor()], [tensor()])}
    for side in "ab":
        for rank in range(3):
            write_dump(tmp_path / side / f"rank{rank}", data)
    out = tmp_path / "out"
    words = ("compare", "-tp", tmp_path / "a", "-gp", tmp_path / "b", "-o", out, "--format", "csv", "--workers", "1")
    gone = tmp_path / "a" / "rank1" / "dump.json"
    result = victims.command(out, *words, meddle=[["a/rank0/dump.json", "remove", str(gone)]])
    assert result["told"] == [2], result["said"]  # the rest is compared, but not all that was asked for
    assert sorted(path.name.split("_")[2] for path in out.glob("*.csv")) == ["rank0", "rank2"]
    assert f"warning: {gone}: " in result["said"]


@pytest.fixture
def failing_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system on a device of its own, the file ``image``, whose end can be cut off."""
    image, place = tmp_path / "image", tmp_path / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(8 << 20)
    made = shutil.which("mkfs.ext4") and _runs("mkfs.ext4", "-q", "-O", "^has_journal", image)
    if not made or not _runs("mount", "-o", "loop", image, place):
        pytest.skip("no failing disk can be made here: that needs mkfs.ext4, loop devices and root's rights")
    yield place
    _runs("umount", "-l", place)


def _runs(*command: str | Path) -> bool:
    return subprocess.run([str(word) for word in command], capture_output=True, check=False).returncode == 0


def test_a_disk_that_fails_while_it_is_read(
    victims: Victims, dumps: tuple[Path, Path], tmp_path: Path, failing_disk: Path
) -> None:
    shutil.copytree(dumps[0].parent, failing_disk / "a")
    assert _runs("umount", failing_disk)  # and mounted again, so that nothing of it is in memory
    assert _runs("mount", "-o", "loop,ro", tmp_path / "image", failing_disk)
    dump = failing_disk / "a" / "dump.json"
    for file in (dump, *(_file(dump, call) for call in range(CALLS // 2))):
        file.read_bytes()  # these are
    assert all(file.stat().st_size for file in dump.parent.rglob("*.npy"))
    os.truncate(tmp_path / "image", 1 << 16)
    table = _compare(victims, (dump, dumps[1]), tmp_path / "out")
    failed = table["Reason"].str.contains("Input/output error")
    assert 0 < failed.sum() < CALLS, table["Reason"].to_list()
    assert table.filter(~failed)["Result"].to_list() == ["pass"] * int((~failed).sum())
