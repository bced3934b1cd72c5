"""Random pairs of tensors of every dtype, with NaN, inf and zeros at the same and at different places."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from measure_definitions import host
from numpy.typing import NDArray

from twinprobe._measure.loops.sums import BLOCK
from twinprobe._runs.dtypes import STORAGE
from twinprobe._runs.tensors.elements import HostTensor

DTYPES = sorted(STORAGE)
SIZES = st.one_of(st.integers(2, 300), st.sampled_from([BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK]))
SPECIALS = [0.0, -0.0, np.nan, np.inf, -np.inf]


@st.composite
def tensor_pairs(draw: st.DrawFn) -> tuple[HostTensor, HostTensor]:
    """Two tensors of one size: unrelated, close to each other, or equal, and strewn with special values."""
    target_dtype = draw(st.sampled_from(DTYPES))
    golden_dtype = draw(st.one_of(st.just(target_dtype), st.sampled_from(DTYPES)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = draw(SIZES)
    golden = rng.standard_normal(size) * draw(st.sampled_from([1e-6, 1.0, 100.0]))
    target = golden * (1 + rng.standard_normal(size) * draw(st.sampled_from([0.0, 1e-3, 1e-2, 1.0])))
    golden[rng.random(size) < draw(st.sampled_from([0.0, 0.2]))] = 0
    share = draw(st.sampled_from([0.0, 0.0, 0.05]))
    strewn = rng.random(size) < share
    both = rng.choice(SPECIALS, size)
    golden = np.where(strewn, both, golden)
    target = np.where(strewn, both if draw(st.booleans()) else rng.choice(SPECIALS, size), target)
    return stored(target_dtype, target, rng), stored(golden_dtype, golden, rng)


def stored(dtype: str, numbers: NDArray[Any], rng: np.random.Generator) -> HostTensor:
    """A tensor that holds about these numbers, as far as its dtype can."""
    with np.errstate(all="ignore"):
        if dtype == "bfloat16":
            bits = numbers.astype(np.float32).view(np.uint32)
            return host(dtype, np.where(np.isnan(numbers), 0x7FC0, bits >> 16).astype(np.uint16))
        if dtype.startswith("float8"):
            codes = (np.abs(np.nan_to_num(numbers)) * 37).astype(np.int64) % 256
            return host(dtype, codes.astype(np.uint8))
        if dtype.startswith("complex"):
            imaginary = np.round(numbers.real * 3) + np.where(rng.random(numbers.size) < 0.01, np.inf, 0)
            return host(dtype, numbers + 1j * np.nan_to_num(imaginary, posinf=1e9))
        if dtype.startswith(("float", "bool")):
            return host(dtype, numbers.astype(STORAGE[dtype]))
        return host(dtype, np.nan_to_num(numbers, posinf=120, neginf=-120).astype(np.int64).astype(STORAGE[dtype]))
