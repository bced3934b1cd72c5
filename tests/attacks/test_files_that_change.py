"""Tensor files that somebody shortens or overwrites while they are read: a message, never a dead process or a lie."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from attack_tools import BAD, GOOD, compared, row_of

from support import tensor_dump
from twinprobe._measure.pair import measure_pair
from twinprobe._runs.tensors import elements as file_contents
from twinprobe._runs.tensors import elements as local_contents
from twinprobe._runs.tensors import elements as strided
from twinprobe._runs.tensors.elements import FileElements
from twinprobe._runs.tensors.npy_file import read_npy
from twinprobe._runs.tensors.tensor_files import contents, open_tensor
from twinprobe.errors import DamagedTensor


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
    def handles() -> int:
        """Of this file: other threads of this process may open and close others."""
        opened = (os.path.realpath(one) for one in Path("/proc/self/fd").glob("*"))
        return sum(one == str(path.resolve()) for one in opened)

    tensors = [open_tensor(path) for _ in range(20)]
    before = handles()
    for _ in range(1000):
        open_tensor(path)
    tensors += [open_tensor(path) for _ in range(20)]
    assert handles() <= before + 2
    assert measure_pair(tensors[0], tensors[-1]).identical


SHRINKING = """
import os, sys, threading
from pathlib import Path
from twinprobe.errors import DamagedTensor
from twinprobe._runs.tensors.tensor_files import open_tensor
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
        [sys.executable, "-c", SHRINKING, str(path)], capture_output=True, text=True, timeout=600, check=False
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


@pytest.fixture
def strips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file above 64 KiB counts as large: its elements are read strip by strip, as they are measured."""
    monkeypatch.setattr(file_contents, "LARGEST_READ", 1 << 16)


@pytest.mark.usefixtures("strips")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda path: os.truncate(path, 300_000), "became shorter"),
        (lambda path: os.truncate(path, 0), "became shorter"),
        (lambda path: os.truncate(path, 900_000), "changed while it was read"),
        (lambda path: os.utime(path, ns=(1, 1)), "changed while it was read"),
    ],
    ids=["shortened", "emptied", "made longer", "overwritten"],
)
def test_a_large_file_that_changes_between_two_strips_is_damaged(change, words: str, path: Path) -> None:
    tensor = open_tensor(path)
    assert tensor.data[:1000].tolist() == list(range(1000))
    change(path)
    with pytest.raises(DamagedTensor, match=words):
        tensor.data[150_000:]


def test_a_large_file_that_shrinks_costs_its_own_row(tmp_path: Path) -> None:
    arrays = {GOOD: {"output.0": np.ones(200_000, np.float32)}, BAD: {"output.0": np.ones(600_000, np.float32)}}
    target, golden = (tensor_dump(tmp_path / side, arrays) for side in ("target", "golden"))
    bad = target.parent / "dump_tensor_data" / f"{BAD}.output.0.npy"
    opened = FileElements.__getitem__

    def and_then_shrink(self: FileElements, at: object) -> object:
        if self.size == 600_000:
            os.truncate(bad, 1000)
        return opened(self, at)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileElements, "__getitem__", and_then_shrink)
        rows = compared(target, golden, tmp_path / "out")
    assert row_of(rows, GOOD)["Result"] == "pass"
    assert "became shorter while it was read" in str(row_of(rows, BAD))


@pytest.mark.usefixtures("strips")
def test_elements_that_are_read_in_strips_are_an_array_to_whoever_asks(path: Path) -> None:
    data, whole = open_tensor(path).data, np.arange(200_000, dtype=np.float32)
    assert isinstance(data, FileElements)
    assert (data.shape, len(data), data.nbytes, data.ndim) == ((200_000,), 200_000, 800_000, 1)
    assert data[-1] == 199_999
    assert data[np.int64(3)] == 3
    assert data[::1000].tolist() == whole[::1000].tolist()
    assert data[5:2].size == 0
    assert np.array_equal(np.asarray(data), whole)
    assert np.asarray(data, np.float64).dtype == np.float64
    assert (data == whole).all()
    assert data.reshape(2, -1).shape == (2, 100_000)
    assert measure_pair(open_tensor(path), open_tensor(path)).identical
    with pytest.raises(IndexError):
        data[200_000]
    with pytest.raises(ValueError, match="read-only"):
        data[:10][0] = 1


@pytest.mark.usefixtures("strips")
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("layout", ["C", "F"])
def test_large_arrays_of_any_layout_are_read_as_numpy_reads_them(
    order: str, layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strided, "PIECE", 10_000)  # put in order a few columns at a time
    array = np.random.default_rng(0).standard_normal((30, 1, 40, 50)).astype(f"{order}f8", order=layout)
    np.save(tmp_path / "a.npy", array)
    read = open_tensor(tmp_path / "a.npy")
    assert np.array_equal(np.asarray(read.data), array.astype("f8").reshape(-1))


SHRINKING_LARGE = """
import os, sys, threading
from pathlib import Path
import numpy as np
from twinprobe.errors import DamagedTensor
from twinprobe._measure.pair import measure_pair
from twinprobe._runs.tensors.tensor_files import open_tensor
path, sound = Path(sys.argv[1]), Path(sys.argv[2])
size = path.stat().st_size
began, ended, outcomes = threading.Event(), threading.Event(), []
def disturb():
    began.wait()
    while not ended.is_set():
        os.truncate(path, 4096)
        os.truncate(path, size)
thread = threading.Thread(target=disturb)
thread.start()
while len(outcomes) < 6 or ("damaged" not in outcomes and len(outcomes) < 600):  # until the other thread had its turn
    try:
        tensor = open_tensor(path)
        began.set()
        outcomes.append(measure_pair(tensor, open_tensor(sound)).status)
    except DamagedTensor as error:
        outcomes.append("damaged")
ended.set()
thread.join()
print("survived", *outcomes)
"""


def test_a_process_survives_a_file_above_256_mib_that_shrinks_while_it_is_measured(tmp_path: Path) -> None:
    header = {"descr": "<f4", "fortran_order": False, "shape": (70_000_000,)}
    for name in ("target.npy", "golden.npy"):
        with (tmp_path / name).open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + 280_000_000)  # holes: no disk is needed for them
    words = [sys.executable, "-c", SHRINKING_LARGE, str(tmp_path / "target.npy"), str(tmp_path / "golden.npy")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("survived")
    assert "damaged" in done.stdout
