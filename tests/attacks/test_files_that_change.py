"""Tensor files that somebody shortens or overwrites while they are read: a message, never a dead process or a lie."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from twinprobe.errors import DamagedTensor
from twinprobe.measure.pair import measure_pair
from twinprobe.runs import local_contents
from twinprobe.runs.npy_file import read_npy
from twinprobe.runs.tensor_files import contents, open_tensor


@pytest.fixture
def path(tmp_path: Path) -> Path:
    np.save(tmp_path / "t.npy", np.arange(200_000, dtype=np.float32))
    return tmp_path / "t.npy"


def test_a_file_that_shrinks_after_it_was_opened_is_damaged(path: Path) -> None:
    data = contents(path)
    os.truncate(path, 70_000)
    with pytest.raises(DamagedTensor, match="became shorter"):
        read_npy(data)


def test_a_file_that_is_emptied_after_it_was_opened_is_damaged(path: Path) -> None:
    data = contents(path)
    path.write_bytes(b"")
    with pytest.raises(DamagedTensor, match="became shorter"):
        read_npy(data)


def test_a_file_that_is_overwritten_while_it_is_read_is_damaged(path: Path) -> None:
    data = contents(path)
    with path.open("r+b") as file:
        file.seek(400_000)
        file.write(bytes(1000))
    os.utime(path, ns=(1, 1))  # even where the clock of the file system is coarse
    with pytest.raises(DamagedTensor, match="changed while it was read"):
        read_npy(data)


def test_a_file_that_is_replaced_is_read_as_it_was(path: Path) -> None:
    data = contents(path)
    np.save(path.with_name("new.npy"), np.zeros(200_000, np.float32))
    path.with_name("new.npy").replace(path)
    assert read_npy(data).data[-1] == 199_999


def test_a_tensor_that_was_read_outlives_its_file(path: Path) -> None:
    before = open_tensor(path)
    os.truncate(path, 0)
    assert before.data[-1] == 199_999


def test_memory_is_used_again_only_when_nobody_looks_at_it(tmp_path: Path) -> None:
    for at in range(6):
        np.save(tmp_path / f"{at}.npy", np.full(50_000 + at, at, np.float32))
    held = [open_tensor(tmp_path / f"{at}.npy") for at in range(6)]
    parts = [tensor.data[10:20] for tensor in held]
    del held
    again = [open_tensor(tmp_path / f"{at}.npy") for at in reversed(range(6))]
    assert [part.tolist() for part in parts] == [[at] * 10 for at in range(6)]
    assert [tensor.data[0] for tensor in again] == [5, 4, 3, 2, 1, 0]
    del parts, again
    first = open_tensor(tmp_path / "0.npy").data.ctypes.data
    assert open_tensor(tmp_path / "0.npy").data.ctypes.data == first


def test_the_files_of_a_thousand_tensors_are_closed(tmp_path: Path, path: Path) -> None:
    tensors = [open_tensor(path) for _ in range(20)]
    opened = Path("/proc/self/fd")
    handles = len(list(opened.iterdir())) if opened.is_dir() else 0
    for _ in range(1000):
        open_tensor(path)
    tensors += [open_tensor(path) for _ in range(20)]
    if handles:
        assert len(list(opened.iterdir())) <= handles + 2
    assert measure_pair(tensors[0], tensors[-1]).identical


SHRINKING = """
import os, sys, threading
from pathlib import Path
from twinprobe.errors import DamagedTensor
from twinprobe.runs.tensor_files import open_tensor
path, whole = Path(sys.argv[1]), Path(sys.argv[1]).read_bytes()
ended = threading.Event()
def disturb():
    while not ended.is_set():
        os.truncate(path, 1000)
        path.write_bytes(whole)
thread = threading.Thread(target=disturb)
thread.start()
read = damaged = 0
while read + damaged < 400:
    try:
        open_tensor(path).data.sum()
        read += 1
    except DamagedTensor:
        damaged += 1
ended.set()
thread.join()
print("survived", read, damaged)
"""


def test_a_process_survives_a_file_that_shrinks_all_the_time(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHRINKING, str(path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("survived")


def test_a_buffer_for_a_larger_tensor_is_made_when_it_is_needed() -> None:
    buffers = local_contents._Buffers()
    small, large = buffers.take(10), buffers.take(1000)
    assert (small.size, large.size) == (10, 1000)
    assert not np.shares_memory(small, large)
    del small, large
    assert buffers.take(500).size == 500
