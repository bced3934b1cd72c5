"""numba is loaded when the work is worth it, never for a small run, and never needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from twinprobe._measure.engine import KERNEL_BYTES

SETUP = """
import sys
import numpy as np
from twinprobe._measure.pair import measure_pairs
from twinprobe._measure.engine import engine_for
from twinprobe._measure.pair import measure_pair
from twinprobe._measure.statistics import statistics
from twinprobe._runs.tensors.elements import HostTensor
one = HostTensor("float32", (1000,), np.arange(1000, dtype=np.float32))
two = HostTensor("float32", (1000,), np.arange(1000, dtype=np.float32) * np.float32(1.01))
"""
MEASURE = "print(measure_pair(two, one).max_abs, statistics(two).max)"
RIGHT = "9.98999 1008.98999"


def fresh(code: str, **environment: str) -> str:
    """What a new interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", SETUP + code],
        env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_small_run_does_not_load_numba() -> None:
    jobs = "list(measure_pairs([(lambda: one, lambda: two)] * 50, total_bytes=400_000))"
    assert fresh(f"{jobs}; statistics(one); print('numba' in sys.modules)") == "False\n"


def test_an_announced_large_run_has_the_kernels_from_the_start() -> None:
    pytest.importorskip("numba")
    jobs = f"list(measure_pairs([(lambda: one, lambda: two)], total_bytes={KERNEL_BYTES}))"
    assert fresh(f"{jobs}; print(type(engine_for(0)).__name__)") == "KernelEngine\n"


def test_a_run_that_turns_out_large_changes_over_to_the_kernels() -> None:
    pytest.importorskip("numba")
    names = f"[type(engine_for({KERNEL_BYTES // 2})).__name__ for _ in range(3)]"
    assert fresh(f"print({names})") == "['PlainEngine', 'KernelEngine', 'KernelEngine']\n"


def test_without_numba_numpy_computes() -> None:
    found = fresh(f"sys.modules['numba'] = None; engine_for(1 << 40); print(type(engine_for(0)).__name__); {MEASURE}")
    assert found.split("\n")[0] == "PlainEngine"
    assert found.split("\n")[1].startswith(RIGHT[:7])


def test_with_numba_switched_off_numpy_computes() -> None:
    pytest.importorskip("numba")
    assert fresh("engine_for(1 << 40); print(type(engine_for(0)).__name__)", NUMBA_DISABLE_JIT="1") == "PlainEngine\n"


def test_kernels_are_kept_in_the_users_cache_folder_and_found_again(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    code = f"engine_for(1 << 40); {MEASURE}"
    environment = {"XDG_CACHE_HOME": str(tmp_path), "LOCALAPPDATA": str(tmp_path), "NUMBA_CACHE_DIR": ""}
    first = fresh(code, **environment)
    kept = sorted(tmp_path.rglob("*.o"))
    if sys.platform == "darwin":
        pytest.skip("the cache folder of macOS does not move")
    assert [path for path in kept if "pair_float32" in path.name]
    assert [path for path in kept if "tensor_float32" in path.name]
    stamps = [path.stat().st_mtime_ns for path in kept]
    assert fresh(code, **environment) == first
    assert [path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*.o"))] == stamps


@pytest.mark.slow  # test_machine_code.py has one file of it
def test_a_damaged_cache_is_passed_over(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    environment = {"NUMBA_CACHE_DIR": str(tmp_path)}
    code = f"engine_for(1 << 40); {MEASURE}"
    first = fresh(code, **environment)
    for path in tmp_path.rglob("*.o"):
        path.write_bytes(b"not a kernel")
    assert fresh(code, **environment) == first


def test_where_nothing_can_be_kept_the_kernels_still_work(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    blocked = tmp_path / "a file, not a folder"
    blocked.write_text("")
    environment = {"HOME": str(blocked), "XDG_CACHE_HOME": str(blocked), "LOCALAPPDATA": str(blocked)}
    code = f"""
import tempfile
tempfile.tempdir = {str(blocked)!r}
engine_for(1 << 40)
from twinprobe._measure.kernels import cache_folder
print(cache_folder(), type(engine_for(0)).__name__)
{MEASURE}
"""
    found = fresh(code, NUMBA_CACHE_DIR="", **environment).split("\n")
    assert found[0] == "None KernelEngine"
    assert found[1].startswith(RIGHT[:7])


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs the owners and modes of POSIX files")
def test_a_cache_folder_that_others_may_write_to_is_not_trusted(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    (tmp_path / "twinprobe").mkdir()
    (tmp_path / "twinprobe").chmod(0o777)
    code = "from twinprobe._measure.kernels import cache_folder; print(cache_folder())"
    found = fresh(code, XDG_CACHE_HOME=str(tmp_path), NUMBA_CACHE_DIR="")
    assert str(tmp_path / "twinprobe") not in found


def test_a_forked_child_can_measure_large_tensors_after_its_parent_did() -> None:
    code = """
import os
size = 3 << 21
large = HostTensor("uint8", (size,), np.ones(size, np.uint8))
assert measure_pair(large, large).identical
child = os.fork()
if child == 0:
    os._exit(0 if measure_pair(large, large).identical else 1)
print(os.waitpid(child, 0)[1])
"""
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    assert fresh(code) == "0\n"
