"""Statistics taken straight from memory are those of the array, bit for bit, or are left to the longer way."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from twinprobe._measure.engine import KERNEL_BYTES, engine_for
from twinprobe._measure.loops.sums import FLOATS, Engine
from twinprobe._measure.statistics import statistics, statistics_at
from twinprobe._runs.dtypes import STORAGE
from twinprobe._runs.tensors.elements import HostTensor

_BITS = {2: np.uint16, 4: np.uint32, 8: np.uint64}


@pytest.fixture(autouse=True, scope="module")
def _kernels() -> None:
    engine_for(KERNEL_BYTES)


@settings(deadline=None, max_examples=300)
@given(st.data(), st.sampled_from(sorted(FLOATS)))
def test_any_bits_of_any_dtype(data: st.DataObject, dtype: str) -> None:
    bits = data.draw(arrays.arrays(_BITS[FLOATS[dtype]], st.integers(1, 300)))
    stored = bits.view(STORAGE[dtype])
    expected = statistics(HostTensor(dtype, stored.shape, stored))
    found = statistics_at(dtype, stored.ctypes.data, stored.size)
    if found is None:
        values = [expected.max, expected.min, expected.mean, expected.norm]
        unusual = not np.isfinite(values).all() or dtype == "float64"
        assert unusual
    else:
        assert found == expected


@pytest.mark.parametrize("dtype", sorted(FLOATS))
def test_ordinary_numbers_take_the_short_way(dtype: str) -> None:
    numbers = np.linspace(-3, 5, 1000, dtype=np.float32)
    if dtype == "bfloat16":
        stored = (numbers.view(np.uint32) >> 16).astype(np.uint16).view(STORAGE[dtype])
    else:
        stored = numbers.astype(dtype).view(STORAGE[dtype])
    found = statistics_at(dtype, stored.ctypes.data, stored.size)
    assert found is not None
    assert found == statistics(HostTensor(dtype, stored.shape, stored))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 70_000), st.integers(0, 9), st.integers(0, 1 << 30))
def test_checksums_straight_from_memory_are_those_of_zlib(engine: Engine, size: int, offset: int, seed: int) -> None:
    octets = np.random.default_rng(seed).integers(0, 256, size + offset, dtype=np.uint8)[offset:]
    assert engine.crc32_at(octets.ctypes.data, size) == zlib.crc32(octets.tobytes())
