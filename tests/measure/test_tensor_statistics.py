"""Statistics and checksums of one tensor, for every dtype, with both engines."""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from measure_definitions import host, values
from measure_strategies import tensor_pairs

from twinprobe._measure.engine import STRIP
from twinprobe._measure.loops.sums import BLOCK, Engine
from twinprobe._measure.statistics import Statistics, crc32, statistics, xor64
from twinprobe._runs.dtypes import STORAGE
from twinprobe._runs.tensors.elements import HostTensor

INF, NAN = math.inf, math.nan


def by_definition(tensor: HostTensor) -> Statistics:
    numbers = values(tensor)
    nans, infs = int(np.isnan(numbers).sum()), int(np.isinf(numbers).sum())
    if nans:
        return Statistics(NAN, NAN, NAN, NAN, nans, infs)
    numbers = np.abs(numbers) if np.iscomplexobj(numbers) else numbers
    top: Any = numbers.max()
    bottom: Any = numbers.min()
    if tensor.dtype == "bool":
        top, bottom = any(tensor.data.tolist()), all(tensor.data.tolist())
    elif "int" in tensor.dtype:
        top, bottom = max(tensor.data.tolist()), min(tensor.data.tolist())
    with np.errstate(all="ignore"):
        return Statistics(top, bottom, float(numbers.mean()), math.sqrt((numbers * numbers).sum()), 0, infs)


def check(found: Statistics, tensor: HostTensor) -> None:
    wanted = by_definition(tensor)
    assert (found.nan, found.inf) == (wanted.nan, wanted.inf)
    assert found.max == pytest.approx(wanted.max, rel=0, abs=0, nan_ok=True)
    assert found.min == pytest.approx(wanted.min, rel=0, abs=0, nan_ok=True)
    scale = np.abs(np.nan_to_num(values(tensor), posinf=0, neginf=0)).max()
    assert found.mean == pytest.approx(wanted.mean, rel=1e-12, abs=1e-13 * float(scale), nan_ok=True)
    assert found.norm == pytest.approx(wanted.norm, rel=1e-12, nan_ok=True)


@settings(deadline=None, max_examples=200)
@given(pair=tensor_pairs())
def test_statistics_equal_their_definition(engine: Engine, pair: tuple[HostTensor, HostTensor]) -> None:
    check(statistics(pair[0], engine=engine), pair[0])


@pytest.mark.parametrize("dtype", sorted(STORAGE))
def test_extremes_have_the_type_of_the_elements(engine: Engine, dtype: str) -> None:
    found = statistics(host(dtype, np.array([1, 0, 1]).astype(STORAGE[dtype])), engine=engine)
    kind = bool if dtype == "bool" else int if "int" in dtype else float
    assert (type(found.max), type(found.min), type(found.mean), type(found.norm)) == (kind, kind, float, float)


@pytest.mark.parametrize("dtype", sorted(STORAGE))
def test_an_empty_tensor_has_no_statistics(engine: Engine, dtype: str) -> None:
    assert statistics(host(dtype, [], (0, 4)), engine=engine) == Statistics(None, None, None, None, 0, 0)


def test_integer_extremes_are_exact(engine: Engine) -> None:
    found = statistics(host("int64", [2**63 - 1, -(2**63), 2**53 + 1]), engine=engine)
    assert (found.max, found.min) == (2**63 - 1, -(2**63))
    assert statistics(host("uint64", [2**64 - 1, 1]), engine=engine).max == 2**64 - 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("size", [STRIP - 1, STRIP + 1])
def test_a_tensor_that_several_threads_share_is_read_whole(engine: Engine, dtype: str, size: int) -> None:
    numbers = np.random.default_rng(size).integers(0, 0x7000, size)
    stored = numbers.astype(np.uint16) if dtype == "bfloat16" else (numbers / 7).astype(STORAGE[dtype])
    stored[[0, -1]] = np.array([0xC000, 0x7000] if dtype == "bfloat16" else [-5, 30000]).astype(STORAGE[dtype])
    check(statistics(host(dtype, stored), engine=engine), host(dtype, stored))


@pytest.mark.parametrize(
    ("numbers", "wanted"),
    [
        ([3e200, 4e200], Statistics(4e200, 3e200, 3.5e200, 5e200)),
        ([3e-200, -4e-200], Statistics(3e-200, -4e-200, -0.5e-200, 5e-200)),
        ([1.5e308, 1.5e308], Statistics(1.5e308, 1.5e308, 1.5e308, INF)),
        ([5e-324, 0.0], Statistics(5e-324, 0.0, 0.0, 5e-324)),
        ([0.0, -0.0], Statistics(0.0, 0.0, 0.0, 0.0)),
        ([INF, 1.0], Statistics(INF, 1.0, INF, INF, 0, 1)),
        ([INF, -INF], Statistics(INF, -INF, NAN, INF, 0, 2)),
        ([INF, NAN], Statistics(NAN, NAN, NAN, NAN, 1, 1)),
        ([1e300] * 3 + [-1e300] * 3, Statistics(1e300, -1e300, 0.0, 1e300 * math.sqrt(6))),
    ],
)
def test_extreme_float64_numbers_neither_overflow_nor_vanish(
    engine: Engine, numbers: list[float], wanted: Statistics
) -> None:
    found = statistics(host("float64", numbers), engine=engine)
    for name in ("max", "min", "mean", "norm", "nan", "inf"):
        assert getattr(found, name) == pytest.approx(getattr(wanted, name), rel=1e-12, nan_ok=True), name


@pytest.mark.parametrize("special", [NAN, INF, -INF])
@pytest.mark.parametrize("place", [0, BLOCK - 1, BLOCK, 2 * BLOCK])
def test_one_special_number_is_found_in_any_block(engine: Engine, special: float, place: int) -> None:
    numbers = np.ones(2 * BLOCK + 1, np.float32)
    numbers[place] = special
    check(statistics(host("float32", numbers), engine=engine), host("float32", numbers))


def test_a_crc_is_that_of_the_raw_bytes() -> None:
    for dtype in sorted(STORAGE):
        tensor = host(dtype, np.arange(37).astype(STORAGE[dtype]))
        assert crc32(tensor) == f"{zlib.crc32(tensor.data.tobytes()):08x}"
    assert crc32(host("uint8", [])) == "00000000"
    assert crc32(host("uint8", list(b"123456789"))) == "cbf43926"


@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 1000, 1003])
def test_xor_combines_the_little_endian_words_of_the_padded_bytes(length: int) -> None:
    data = np.random.default_rng(length).integers(0, 256, length).astype(np.uint8)
    word = 0
    padded = data.tobytes() + b"\0" * (-length % 8)
    for at in range(0, len(padded), 8):
        word ^= int.from_bytes(padded[at : at + 8], "little")
    assert xor64(host("uint8", data)) == f"0x{word:016x}"


def test_the_xor_of_a_single_number_is_that_number() -> None:
    assert xor64(host("bool", [True], ())) == "0x0000000000000001"
    assert xor64(host("int32", [255], ())) == "0x00000000000000ff"
    assert xor64(host("float32", [1.5], ())) == 1.5
    assert xor64(host("bfloat16", [0x3FC0], ())) == 1.5
    assert xor64(host("float32", [1.5], (1,))) == "0x000000003fc00000"
