"""A sketch tells how far apart two tensors are, and shards add up to the whole."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from twinprobe._measure import engine as engines
from twinprobe._measure.elements import FLOAT64, numbers
from twinprobe._measure.loops.sums import Engine
from twinprobe._measure.sketch import block_length, combined, estimate, measured, sketch
from twinprobe._measure.statistics import statistics
from twinprobe._runs.dtypes import STORAGE
from twinprobe._runs.sketches import LOCAL, PARTIAL, ROW
from twinprobe._runs.tensors.elements import HostTensor

Array = NDArray[Any]
DTYPES = sorted(STORAGE)


def host(array: Array, dtype: str | None = None) -> HostTensor:
    return HostTensor(dtype or array.dtype.name, array.shape, np.ascontiguousarray(array).reshape(-1))


def stored(dtype: str, size: int, seed: int = 0) -> Array:
    """Some elements of a dtype as they lie in memory, with zeros."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(STORAGE[dtype])
    if dtype == "bool":
        return rng.random(size) < 0.3
    if kind.kind in "iu":
        low = -3 if kind.kind == "i" else 0
        return rng.integers(low, 90, size).astype(kind) if dtype != "bfloat16" else bfloat16(rng.normal(size=size))
    values = rng.normal(size=size) + 1j * rng.normal(size=size) if kind.kind == "c" else rng.normal(size=size)
    values[::7] = 0
    return values.astype(kind)


def bfloat16(values: Array) -> Array:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


# -- the definition of docs/formats.md, word by word ------------------------------------------------------------------

WORD = 0xFFFFFFFF


def mix(word: int) -> int:
    word = (word + 0x9E3779B9) & WORD
    word = ((word ^ word >> 16) * 0x85EBCA6B) & WORD
    word = ((word ^ word >> 13) * 0xC2B2AE35) & WORD
    return word ^ word >> 16


def fold(value: int) -> int:
    value &= 0xFFFF_FFFF_FFFF_FFFF
    return (value & WORD) ^ ((value >> 32) * 0x85EBCA6B & WORD)


def by_the_book(dtype: str, elements: Array) -> Array:
    """The 64 sums, one element after the other."""
    integer = dtype == "bool" or dtype.startswith(("int", "uint"))
    if dtype.startswith("complex"):
        elements = elements.view(np.float32 if dtype == "complex64" else np.float64)
    values = elements if integer or dtype.startswith("complex") else numbers(dtype, elements, FLOAT64)
    length = -(-len(values) // 16)
    step = 1
    while step < 512 and 2 * step <= length // 8:
        step *= 2
    length = -(-length // step) * step
    sums = np.zeros((16, 4))
    for i, value in enumerate(values.tolist()):
        bits = mix(mix(fold(i)) ^ fold(int(value))) if integer else mix(fold(i // 8))
        for r in range(4):
            if integer:
                sums[i // length, r] += 2 * (bits >> 8 * r & 255) - 255
            else:
                sums[i // length, r] += -value if bits >> 8 * r + i % 8 & 1 else value
    return sums.reshape(-1)


@pytest.mark.parametrize("size", [1, 8, 100, 1500])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_are_those_of_the_definition(engine: Engine, dtype: str, size: int) -> None:
    elements = stored(dtype, size)
    if dtype.startswith("float8"):
        elements &= 0x3F  # no NaN
    row = sketch(host(elements, dtype), engine=engine)[0]
    expected = by_the_book(dtype, elements)
    assert row["sums"] == pytest.approx(expected, rel=1e-6, abs=1e-6 * float(row["norm"]) + 1e-12)
    assert np.count_nonzero(expected) > 0 or size == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "int64", "bool", "float8_e5m2"])
def test_the_other_numbers_are_those_of_numpy(engine: Engine, dtype: str) -> None:
    elements = stored(dtype, 5000, seed=3)
    if dtype.startswith("float8"):
        elements &= 0x3F
    values = numbers(dtype, elements, FLOAT64)
    row = sketch(host(elements, dtype), engine=engine)[0]
    length = block_length(5000)
    blocks = [values[at : at + length] for at in range(0, 5000, length)]
    assert (row["count"], row["whole"]) == (5000, 5000)
    assert row["zeros"] == np.count_nonzero(values == 0)
    assert row["total"] == pytest.approx(values.sum(), rel=1e-6, abs=1e-6 * np.abs(values).sum())
    assert row["norm"] == pytest.approx(np.linalg.norm(values), rel=1e-6)
    assert row["l1"] == pytest.approx(np.abs(values).sum(), rel=1e-6)
    assert row["block_norm"][: len(blocks)] == pytest.approx([np.linalg.norm(part) for part in blocks], rel=1e-6)
    assert row["block_max"][: len(blocks)] == pytest.approx([np.abs(part).max() for part in blocks], rel=1e-6)


def test_fill_values_nan_and_inf_are_counted_and_left_out(engine: Engine) -> None:
    values = np.random.default_rng(0).normal(size=3000).astype(np.float32)
    odd = values.copy()
    odd[[5, 900, 901, 2999]] = nan, inf, -inf, np.finfo(np.float32).min
    odd[17] = np.finfo(np.float32).max / 3.9
    row, clean = sketch(host(odd), engine=engine)[0], values.copy()
    clean[[5, 900, 901, 2999, 17]] = 0
    expected = sketch(host(clean), engine=engine)[0]
    assert (row["nan"], row["inf"], row["fill"]) == (1, 2, 2)
    for name in ("sums", "norm", "total", "l1", "block_norm", "block_max"):
        assert row[name] == pytest.approx(expected[name], rel=1e-5, abs=1e-5), name


def test_numbers_whose_squares_overflow_or_vanish_keep_their_magnitude(engine: Engine) -> None:
    for factor in (1e200, 1e-200):
        row = sketch(host(np.full(100, factor)), engine=engine)[0]
        assert factor / 2 < row["norm"] < 20 * factor
        assert np.isfinite(row["sums"]).all()
        other = sketch(host(np.full(100, factor * 1.5)), engine=engine)
        assert estimate(other, sketch(host(np.full(100, factor)), engine=engine)).relative[0] > 0.1


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 3000), st.integers(0, 1 << 30), st.sampled_from(["numpy", "kernels"]))
def test_sketches_are_linear(size: int, seed: int, name: str) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=size), rng.normal(size=size)
    used = engines.PLAIN if name == "numpy" else kernels()
    sums = [sketch(host(part), engine=used)["sums"][0] for part in (a, b, a - 3 * b)]
    assert sums[0] - 3 * sums[1] == pytest.approx(sums[2], rel=1e-9, abs=1e-9)


def kernels() -> Engine:
    from twinprobe._measure.kernels import KernelEngine

    return KernelEngine()


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 70_000), st.integers(0, 1 << 30), st.sampled_from(["float32", "bfloat16", "int32"]))
def test_sketches_do_not_depend_on_how_the_work_is_cut(size: int, seed: int, dtype: str) -> None:
    elements = stored(dtype, size, seed)
    whole = sketch(host(elements, dtype), engine=kernels())
    strip = engines.STRIP
    try:
        engines.STRIP = 1000 + seed % 5000  # several threads where there are several cores
        cut = sketch(host(elements, dtype), engine=kernels())
    finally:
        engines.STRIP = strip
    for name in ROW.names or ():
        near = 1e-6 * max(float(whole["norm"][0]), 1.0)
        assert cut[name][0] == pytest.approx(whole[name][0], rel=1e-6, abs=near), name


@pytest.mark.parametrize("strip", [engines.STRIP, 1000])
def test_statistics_of_the_same_pass_are_the_statistics(
    engine: Engine, strip: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twinprobe._measure.sketch.engine_for", lambda _: engine)
    monkeypatch.setattr("twinprobe._measure.sketch.STRIP", strip)
    for dtype in DTYPES:
        tensor = host(stored(dtype, 4000), dtype)
        values, row = measured(tensor)
        assert tuple(values) == pytest.approx(tuple(statistics(tensor)), rel=1e-12, nan_ok=True)
        expected = sketch(tensor, engine=engine)[0]
        for name in ROW.names or ():
            assert np.frombuffer(row, ROW)[0][name] == pytest.approx(expected[name], rel=1e-9), name


INTEGER_DTYPES = sorted(dtype for dtype in DTYPES if dtype == "bool" or dtype.startswith(("int", "uint")))


@pytest.mark.parametrize("dtype", INTEGER_DTYPES)
def test_integers_have_the_same_bytes_and_statistics_whoever_adds_them_up(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = np.dtype(STORAGE[dtype])
    elements = stored(dtype, 30_000)
    if dtype != "bool":
        elements[[0, 7, 4000, 29_999]] = [np.iinfo(kind).min, np.iinfo(kind).max] * 2
    bytes_of_bools = np.frombuffer(bytes([0, 1, 2, 255] * 50), np.bool_)  # as a damaged file may have them
    for data in (elements, elements[1:5], stored(dtype, 500), bytes_of_bools if dtype == "bool" else elements[:1]):
        monkeypatch.setattr("twinprobe._measure.sketch.engine_for", lambda _: kernels())
        values, row = measured(host(data, dtype))
        expected = statistics(host(data, dtype))
        assert (tuple(values), [*map(type, values)]) == (tuple(expected), [*map(type, expected)])
        plain = sketch(host(data, dtype), engine=engines.PLAIN)
        found = np.frombuffer(row, ROW)
        for name in ("sums", "zeros", "count", "block_max"):
            assert (found[name] == plain[name]).all(), name
        assert found["norm"] == pytest.approx(plain["norm"], rel=1e-14)


@pytest.mark.parametrize("dtype", ["bool", "int32", "float32", "float64"])
def test_places_beyond_32_bits_are_hashed_as_the_definition_says(dtype: str) -> None:
    data, whole = stored(dtype, 5000), 1 << 36
    for edge in (1 << 32, 1 << 35):
        rows = [sketch(host(data, dtype), (whole,), (edge - 2003,), engine=used) for used in (kernels(), engines.PLAIN)]
        assert rows[0]["sums"] == pytest.approx(rows[1]["sums"], rel=1e-5, abs=1e-5)


# -- what two sketches say --------------------------------------------------------------------------------------------


def differences(rng: Any) -> Iterator[tuple[str, Array, Array]]:
    """A tensor and one that differs from it, in ten ways."""
    size = int(np.exp(rng.uniform(np.log(100), np.log(30_000))))
    f32, places = np.float32, np.arange(size)
    x = (rng.normal(size=size) * np.exp(rng.normal())).astype(f32)
    yield "noise", x, x + f32(0.1) * rng.normal(size=size).astype(f32)
    yield "cast to bfloat16", x, (x.view(np.uint32) + 0x8000 & 0xFFFF0000).view(f32)
    yield "factor", x, x * f32(1.4)
    yield "shift", x, np.roll(x, 1)
    yield "permutation", x, rng.permutation(x)
    yield "flipped signs", x, np.where((rng.random(size) < 0.05) | (places == 3), -x, x).astype(f32)
    yield "offset", x, x + f32(0.01)
    yield "missing bias", x, x + f32(0.1) * np.resize(rng.normal(size=size // 32 + 1).astype(f32), size)
    yield "one row", x, np.where(places // max(1, size // 64) == 7, 0, x).astype(f32)
    yield "one block", x, np.where(places // block_length(size) == 2, 2 * x, x).astype(f32)


LOCAL_KINDS = {"one row", "one block"}


def test_estimates_are_within_the_published_quantiles() -> None:
    rng, used = np.random.default_rng(29), kernels()
    spread, local, outside = [], [], 0
    for _ in range(100):
        for kind, golden, target in differences(rng):
            found = estimate(sketch(host(target), engine=used), sketch(host(golden), engine=used))
            gap = np.linalg.norm(target.astype(np.float64) - golden)
            true = gap / np.linalg.norm(golden.astype(np.float64))
            (local if kind in LOCAL_KINDS else spread).append(found.relative[0] / true)
            outside += not found.lower[0] <= true <= found.upper[0]
    assert outside <= 4  # of 1,000; the bounds promise one
    assert np.std(spread) < 0.1
    assert np.quantile(spread, 0.0005) > 0.65
    assert np.quantile(spread, 0.9995) < 1.4
    assert np.std(local) < 0.36
    assert max(local) < 2.5


def test_equal_norms_hide_nothing() -> None:
    values = np.random.default_rng(1).normal(size=100_000).astype(np.float32)
    golden, target = sketch(host(values)), sketch(host(np.roll(values, 1)))
    assert golden["norm"] == pytest.approx(target["norm"], rel=1e-12)
    assert estimate(target, golden).relative[0] == pytest.approx(2**0.5, rel=0.3)


@pytest.mark.parametrize("differing", [0, 1, 40, 3000])
def test_of_integers_the_share_that_differs_is_estimated(differing: int) -> None:
    golden = np.random.default_rng(2).integers(0, 1000, 20_000)
    target = golden.copy()
    target[np.random.default_rng(3).permutation(20_000)[:differing]] += 1
    found = estimate(sketch(host(target)), sketch(host(golden)))
    assert found.lower[0] <= differing / 20_000 <= found.upper[0]
    assert (found.relative[0] > 0) == (differing > 0)


def test_the_worst_block_is_found() -> None:
    golden = np.random.default_rng(4).normal(size=160_000).astype(np.float32)
    target = golden.copy()
    length = block_length(golden.size)
    target[5 * length : 5 * length + 700] *= -1
    found = estimate(sketch(host(target)), sketch(host(golden)))
    assert found.block[0] == 5
    assert found.worst[0] > 2 * found.relative[0]


def test_what_cannot_be_compared_is_said_so() -> None:
    values = np.random.default_rng(5).normal(size=1000)
    row = sketch(host(values))
    others = (
        np.zeros(1, ROW), sketch(host(values[:999])), sketch(host(values.astype(np.int64))),
        sketch(host(values + 1j)), sketch(host(values), flags=LOCAL), sketch(host(values), flags=PARTIAL),
        sketch(host(values[:500]), (1000,), (0,)),
    )  # fmt: skip
    for other in others:
        found = estimate(other, row)
        assert not found.comparable[0]
        assert np.isnan([found.relative[0], found.lower[0], found.upper[0], found.worst[0]]).all()


# -- shards -----------------------------------------------------------------------------------------------------------

LAYOUTS = {
    "columns over 2": [(slice(None), slice(at * 24, at * 24 + 24)) for at in range(2)],
    "columns over 4": [(slice(None), slice(at * 12, at * 12 + 12)) for at in range(4)],
    "rows over 4, the last one shorter": [(slice(at * 26, at * 26 + 26), slice(None)) for at in range(4)],
    "rows and columns": [(slice(i * 50, i * 50 + 50), slice(j * 16, j * 16 + 16)) for i in range(2) for j in range(3)],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "int64", "complex64", "bfloat16"])
def test_shards_add_up_to_the_whole(engine: Engine, layout: str, dtype: str) -> None:
    array = stored(dtype, 4800).reshape(100, 48)
    whole = sketch(host(array, dtype), engine=engine)
    parts = [
        sketch(host(array[place], dtype), array.shape, [axis.start or 0 for axis in place], engine=engine)
        for place in LAYOUTS[layout]
    ]
    together = combined(np.concatenate(parts))
    for name in ROW.names or ():
        assert together[name][0] == pytest.approx(whole[name][0], rel=1e-6, abs=1e-6 * float(whole["norm"][0])), name
    assert estimate(together, whole).upper[0] < 1e-6


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_any_cut_of_any_shape_adds_up(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
    axis = data.draw(st.integers(0, len(shape) - 1))
    cut = data.draw(st.integers(0, shape[axis]))
    used = engines.PLAIN if data.draw(st.booleans()) else kernels()
    array = np.random.default_rng(9).normal(size=shape)
    offsets = [0] * len(shape)
    first, second = np.split(array, [cut], axis=axis)
    rows = [sketch(host(first), shape, offsets, engine=used)] if first.size else []
    offsets[axis] = cut
    rows += [sketch(host(second), shape, offsets, engine=used)] if second.size else []
    whole = sketch(host(array), engine=used)
    assert combined(np.concatenate(rows))["sums"] == pytest.approx(whole["sums"], rel=1e-9, abs=1e-9)


def test_partial_values_add_up_to_the_sketch_of_their_sum() -> None:
    rng = np.random.default_rng(10)
    summands = [rng.normal(size=3000).astype(np.float32) for _ in range(4)]
    together = combined(np.concatenate([sketch(host(one), flags=PARTIAL) for one in summands]))
    whole = sketch(host(np.sum(summands, axis=0, dtype=np.float32)))
    assert together["sums"] == pytest.approx(whole["sums"], abs=1e-4)
    assert together["norm"] == pytest.approx(whole["norm"], rel=0.3)


@pytest.mark.parametrize(
    ("shape", "offsets"),
    [((100, 48), None), ((100, 48), (0,)), ((100, 48), (1, 0)), ((100,), (0,)), ((100, 48), (-1, 0))],
)
def test_a_shard_that_does_not_fit_is_refused(shape: tuple[int, ...], offsets: tuple[int, ...] | None) -> None:
    with pytest.raises(ValueError, match=r"shape|reaches"):
        sketch(host(np.zeros((100, 24))), shape, (*offsets[:1], 25) if offsets == (1, 0) else offsets)
