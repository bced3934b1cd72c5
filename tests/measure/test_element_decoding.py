"""Elements that numpy has no type for are read as torch reads them."""

from __future__ import annotations

import numpy as np
import pytest
from measure_definitions import float8_value, host, values

from twinprobe._measure.elements import FLOAT32, FLOAT64, calculation_dtype, numbers
from twinprobe._runs.dtypes import STORAGE

FLOAT8 = [name for name in STORAGE if name.startswith("float8")]


@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("wanted", [FLOAT32, FLOAT64])
def test_every_float8_code_has_its_value(dtype: str, wanted: np.dtype[np.floating]) -> None:
    found = numbers(dtype, np.arange(256, dtype=np.uint8), wanted)
    np.testing.assert_array_equal(found, np.array([float8_value(dtype, code) for code in range(256)], wanted))


@pytest.mark.parametrize("dtype", FLOAT8)
def test_every_float8_code_has_the_value_that_torch_gives_it(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch, dtype):
        pytest.skip(f"this torch has no {dtype}")
    theirs = torch.arange(256, dtype=torch.uint8).view(getattr(torch, dtype)).to(torch.float32).numpy()
    np.testing.assert_array_equal(numbers(dtype, np.arange(256, dtype=np.uint8), FLOAT32), theirs)


@pytest.mark.parametrize("wanted", [FLOAT32, FLOAT64])
def test_every_bfloat16_code_has_its_value(wanted: np.dtype[np.floating]) -> None:
    codes = np.arange(0x10000, dtype=np.uint16)
    np.testing.assert_array_equal(numbers("bfloat16", codes, wanted), values(host("bfloat16", codes)).astype(wanted))


def test_only_floats_that_fit_are_compared_in_float32() -> None:
    assert calculation_dtype("float16", "bfloat16") == FLOAT32
    assert calculation_dtype("float32", "float8_e5m2") == FLOAT32
    for other in ("float64", "int8", "bool", "complex64"):
        assert calculation_dtype("float32", other) == FLOAT64
