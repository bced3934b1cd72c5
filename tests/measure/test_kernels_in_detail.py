"""Parts of the kernels that no dtype reaches on every machine."""

from __future__ import annotations

import numpy as np
import pytest

numba = pytest.importorskip("numba")


def test_float16_is_read_right_without_help_from_the_processor() -> None:
    from twinprobe._measure.loops.elements import half_by_arithmetic

    @numba.njit
    def read(bits: np.ndarray, out: np.ndarray) -> None:
        for i in range(bits.size):
            out[i] = half_by_arithmetic(bits[i])

    bits = np.arange(0x10000, dtype=np.uint16)
    out = np.empty(bits.size, np.float32)
    read(bits, out)
    np.testing.assert_array_equal(out, bits.view(np.float16).astype(np.float32))
    np.testing.assert_array_equal(np.signbit(out), np.signbit(bits.view(np.float16)))


def test_the_sums_of_a_block_are_those_of_numpy_to_the_last_digits() -> None:
    from twinprobe._measure.engine import PlainEngine
    from twinprobe._measure.kernels import KernelEngine
    from twinprobe._measure.loops.sums import BLOCK

    rng = np.random.default_rng(5)
    golden = rng.standard_normal(2 * BLOCK + 77).astype(np.float32)
    golden[::9] = 0
    target = golden + rng.standard_normal(golden.size).astype(np.float32) * np.float32(1e-3)
    compiled, plain = [kind().pair_rows("float32", target, golden) for kind in (KernelEngine, PlainEngine)]
    np.testing.assert_allclose(compiled[:, :4], plain[:, :4], rtol=1e-12)
    np.testing.assert_array_equal(compiled[:, 4:], plain[:, 4:])
