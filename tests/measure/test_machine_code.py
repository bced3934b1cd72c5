"""Compiled loops are kept as machine code, which runs without the compiler; what is handed to them is checked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba")

from twinprobe._measure.elements import address_of
from twinprobe._measure.kernels import KernelEngine

MEASURE = """
import sys
import numpy as np
from twinprobe._measure.kernels import KernelEngine
one = np.arange(100_000, dtype=np.float32)
print(KernelEngine().pair_rows("float32", one, one * np.float32(1.5)).tobytes().hex())
print("numba" in sys.modules)
"""


def measured(cache: Path, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], env={**os.environ, "NUMBA_CACHE_DIR": str(cache), **environment},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with the code of one loop, and what this gave when it was compiled."""
    folder = tmp_path_factory.mktemp("compiled")
    first, loaded = measured(folder)
    assert loaded == "True"
    return folder, first


def test_a_loop_that_was_kept_runs_without_the_compiler_and_gives_the_same(compiled: tuple[Path, str]) -> None:
    folder, first = compiled
    assert measured(folder) == [first, "False"]


def test_code_that_was_changed_is_not_run(compiled: tuple[Path, str]) -> None:
    folder, first = compiled
    (kept,) = folder.iterdir()
    whole = kept.read_bytes()
    for damaged in (whole[:-1], whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:]):
        kept.write_bytes(damaged)
        assert measured(folder) == [first, "True"]
    assert measured(folder) == [first, "False"]


def test_a_loop_that_would_need_the_compiler_at_run_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from twinprobe._measure.kernels import LIBRARY, host_machine
    from twinprobe._measure.loops import compile as compiler

    def allocates(size: int) -> None:
        np.empty(size)[0] = size

    monkeypatch.setitem(compiler.LOOPS, "allocates", allocates)
    with pytest.raises(RuntimeError, match="calls NRT"):
        compiler.machine_code_of("allocates", host_machine(), LIBRARY)


def test_only_elements_that_lie_one_behind_the_other_have_an_address() -> None:
    with pytest.raises(ValueError, match="one behind the other"):
        address_of(np.arange(10)[::2])
    fixed = np.arange(10)
    fixed.flags.writeable = False
    assert address_of(fixed) == fixed.ctypes.data


@pytest.mark.parametrize(
    ("dtype", "target", "golden"),
    [
        ("float32", np.zeros(3, np.float32), np.zeros(4, np.float32)),
        ("float32", np.zeros(4, np.float64), np.zeros(4, np.float64)),
        ("float64", np.zeros(8, np.float64)[::2], np.zeros(4, np.float64)),
        ("float64", np.zeros(33, np.uint8)[1:].view(np.float64), np.zeros(4, np.float64)),
    ],
)
def test_arrays_that_a_loop_would_read_wrongly_are_refused(dtype: str, target: np.ndarray, golden: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"sizes|not elements|one behind"):
        KernelEngine().pair_rows(dtype, target, golden)


def test_more_than_a_block_is_not_one_row() -> None:
    with pytest.raises(ValueError, match="more than a block"):
        KernelEngine().row_at("float32", 0, 65537)
