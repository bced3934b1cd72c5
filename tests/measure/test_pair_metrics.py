"""The metrics of a pair mean what their plain definition says, for every dtype, with both engines."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from measure_definitions import host, pair_by_definition
from measure_strategies import tensor_pairs

from twinprobe._measure.engine import STRIP
from twinprobe._measure.loops.sums import BLOCK, Engine
from twinprobe._measure.pair import PairMetrics, measure_pair
from twinprobe._runs.dtypes import STORAGE
from twinprobe._runs.tensors.elements import HostTensor

OLD = ("cosine", "euclid", "max_abs", "max_rel", "one_thousandth", "five_thousandths")
INF, NAN = math.inf, math.nan


def check(found: PairMetrics, target: HostTensor, golden: HostTensor) -> None:
    wanted = pair_by_definition(target, golden)
    for name in ("status", "identical", "nan_only_target", "nan_only_golden", "inf_differs", "elements"):
        assert getattr(found, name) == wanted[name], name
    assert found.relative_norm == pytest.approx(wanted["relative_norm"], rel=1e-9)
    if found.status == "N/A":
        assert [getattr(found, name) for name in OLD] == [None] * 6
        return
    assert found.euclid == pytest.approx(wanted["euclid"], rel=1e-12)
    for name in ("max_abs", "max_rel", "one_thousandth", "five_thousandths"):
        assert getattr(found, name) == round(wanted[name], 12), name
    tolerance = 5.01e-7 if wanted["cosine"] > 0.9999 else 1e-11
    assert found.cosine == pytest.approx(wanted["cosine"], rel=0, abs=tolerance, nan_ok=True)


@settings(deadline=None, max_examples=300)
@given(pair=tensor_pairs())
def test_metrics_equal_their_definition(engine: Engine, pair: tuple[HostTensor, HostTensor]) -> None:
    check(measure_pair(*pair, engine=engine), *pair)


@pytest.mark.parametrize("golden_dtype", sorted(STORAGE))
@pytest.mark.parametrize("target_dtype", sorted(STORAGE))
def test_every_two_dtypes_can_be_compared(engine: Engine, target_dtype: str, golden_dtype: str) -> None:
    target, golden = [
        host(dtype, (np.arange(600) % (256 if dtype.startswith("float8") else 100)).astype(STORAGE[dtype]))
        for dtype in (target_dtype, golden_dtype)
    ]
    check(measure_pair(target, golden, engine=engine), target, golden)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_16_bit_pattern_is_read_right(engine: Engine, dtype: str) -> None:
    patterns = np.arange(0x10000, dtype=np.uint16)
    for golden in (patterns, np.roll(patterns, 1)):
        sides = [host(dtype, side.view(STORAGE[dtype])) for side in (patterns, golden)]
        check(measure_pair(*sides, engine=engine), *sides)


@pytest.mark.parametrize("size", [STRIP - 1, STRIP, STRIP + 1, STRIP + BLOCK + 3])
def test_a_tensor_that_several_threads_share_is_measured_whole(engine: Engine, size: int) -> None:
    golden = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    target = golden.copy()
    target[-1] += 3
    target[[0, STRIP - 9]] = np.inf
    golden[[0, STRIP - 9]] = [-np.inf, np.inf]
    pair = host("float32", target), host("float32", golden)
    found = measure_pair(*pair, engine=engine)
    check(found, *pair)
    assert (found.inf_differs, found.max_abs) == (1, round(float(target[-1]) - float(golden[-1]), 12))


@pytest.mark.parametrize(
    ("target", "golden", "status"),
    [((2, 1, 3), (2, 3), "ok"), ((2, 3), (3, 2), "shape unmatched"), ((6,), (2, 3), "shape unmatched"),
     ((1, 1), (), "scalar"), ((1,), (2,), "shape unmatched"), ((0, 3), (0, 3), "unsupported"),
     ((2, 0), (4,), "unsupported"), ((3,), (0,), "unsupported")],
)  # fmt: skip
def test_shapes_are_compared_without_lengths_of_one(
    engine: Engine, target: tuple[int, ...], golden: tuple[int, ...], status: str
) -> None:
    sides = [host("float32", np.ones(math.prod(shape)), shape) for shape in (target, golden)]
    found = measure_pair(*sides, engine=engine)
    assert found.status == status
    assert (found.relative_norm is None) == (status in ("shape unmatched", "unsupported"))
    assert found.elements == math.prod(target)
    if status not in ("ok", "scalar"):
        assert [getattr(found, name) for name in OLD] == [None] * 6


@pytest.mark.parametrize(
    ("dtype", "target", "golden", "max_abs", "max_rel"),
    [
        ("float32", 1e-8, 0.0, 1e-8, 0.0839),
        ("float32", 3.0, 2.0, 1.0, 0.5),
        ("bool", True, False, 1.0, 4503599627370496.0),
        ("int64", 5, 4, 1.0, 0.25),
        ("float64", 0.0, 0.0, 0.0, 0.0),
        ("complex64", 3 + 9j, 2 + 1j, 1.0, 0.5),
        ("float32", INF, INF, NAN, NAN),
        ("float32", 1.0, INF, INF, NAN),
        ("float32", INF, 1.0, INF, INF),
        ("float32", NAN, 1.0, NAN, NAN),
    ],
)
def test_of_a_single_element_only_the_largest_errors_are_known(
    engine: Engine, dtype: str, target: Any, golden: Any, max_abs: float, max_rel: float
) -> None:
    found = measure_pair(host(dtype, [target], ()), host(dtype, [golden], (1, 1)), engine=engine)
    assert found.status == "scalar"
    assert (found.cosine, found.euclid, found.one_thousandth, found.five_thousandths) == (None,) * 4
    assert found.max_abs == pytest.approx(max_abs, rel=1e-6, nan_ok=True)
    assert found.max_rel == pytest.approx(max_rel, rel=1e-3, nan_ok=True)
    assert found.identical == (target == golden)


def test_infinities_of_opposite_sign_are_told_though_the_old_metrics_do_not_see_them(engine: Engine) -> None:
    found = measure_pair(host("float32", [1, INF, 2]), host("float32", [1, -INF, 2]), engine=engine)
    assert (found.status, found.cosine, found.max_abs, found.one_thousandth) == ("ok", 1.0, 0.0, 1.0)
    assert (found.identical, found.inf_differs, found.relative_norm) == (False, 1, 0.0)


@pytest.mark.parametrize(
    ("target", "golden", "counts"),
    [([1, NAN], [1, 2], (1, 0, 0)), ([1, 2], [NAN, 2], (0, 1, 0)), ([1, INF], [1, 2], (0, 0, 1)),
     ([1, 2], [1, -INF], (0, 0, 1)), ([NAN, 1], [INF, 1], (1, 0, 0)), ([NAN, NAN], [NAN, NAN], (0, 0, 0))],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "complex64"])
def test_nan_and_inf_at_different_places_rule_out_the_old_metrics(
    engine: Engine, dtype: str, target: list[float], golden: list[float], counts: tuple[int, int, int]
) -> None:
    found = measure_pair(host(dtype, target), host(dtype, golden), engine=engine)
    assert (found.nan_only_target, found.nan_only_golden, found.inf_differs) == counts
    assert found.status == ("N/A" if any(counts) else "ok")
    assert found.identical == (not any(counts))


def test_zero_norms_have_no_angle(engine: Engine) -> None:
    zeros, ones = host("float32", [0, 0, -0.0]), host("float32", [1, 1, 1])
    both = measure_pair(zeros, zeros, engine=engine)
    assert (both.cosine, both.relative_norm, both.identical, both.one_thousandth) == (1.0, 0.0, True, 1.0)
    golden_only = measure_pair(ones, zeros, engine=engine)
    assert math.isnan(golden_only.cosine or 0)
    assert golden_only.relative_norm == INF
    target_only = measure_pair(zeros, ones, engine=engine)
    assert math.isnan(target_only.cosine or 0)
    assert target_only.relative_norm == 1.0


@pytest.mark.parametrize(
    ("target", "golden", "ratio"),
    [
        ([3e200, 4e200], [3e200, 4.5e200], 0.5 / math.hypot(3, 4.5)),
        ([1.7e308, 1.0], [-1.7e308, 1.0], 2.0),
        ([3e-200, 4e-200], [3e-200, 5e-200], 1 / math.hypot(3, 5)),
        ([5e-324, 0.0], [0.0, 0.0], INF),
        ([5e-324, 0.0], [0.0, 5e-324], math.sqrt(2)),
        ([1e300, 0.0], [0.0, 1e-300], INF),
        ([1e-200, NAN], [2e-200, NAN], 0.5),
    ],
)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_the_relative_norm_survives_numbers_whose_squares_do_not_fit(
    engine: Engine, dtype: str, target: list[float], golden: list[float], ratio: float
) -> None:
    found = measure_pair(host(dtype, target), host(dtype, golden), engine=engine)
    assert found.relative_norm == pytest.approx(ratio, rel=1e-12)
    assert not found.identical


def test_imaginary_parts_count_for_the_new_fields_only(engine: Engine) -> None:
    found = measure_pair(host("complex64", [3 + 4j, 1]), host("complex64", [3, 1]), engine=engine)
    assert (found.status, found.max_abs, found.cosine) == ("ok", 0.0, 1.0)
    assert not found.identical
    assert found.relative_norm == pytest.approx(4 / math.sqrt(10))


@pytest.mark.parametrize(
    ("target", "golden", "identical"),
    [(("int64", 2**53 + 1), ("int64", 2**53), False), (("int64", 2**53 + 1), ("float64", 2.0**53), False),
     (("uint64", 2**64 - 1), ("int64", -1), False), (("uint64", 2**63), ("float32", 2.0**63), True),
     (("int64", 2**63 - 1), ("float64", 2.0**63), False), (("int64", 7), ("uint8", 7), True),
     (("bool", True), ("int64", 1), True), (("uint64", 2**63), ("int64", 2**63 - 1), False),
     (("uint64", 2**63 - 1), ("int64", 2**63 - 1), True), (("int64", -5), ("bfloat16", 0xC0A0), True)],
)  # fmt: skip
def test_integers_beyond_float64_are_identical_only_if_they_are_equal(
    engine: Engine, target: tuple[str, Any], golden: tuple[str, Any], identical: bool
) -> None:
    sides = [host(dtype, [value, 0]) for dtype, value in (target, golden)]
    assert measure_pair(*sides, engine=engine).identical == identical


def test_a_misaligned_or_read_only_tensor_is_read_as_it_lies(engine: Engine) -> None:
    numbers = np.linspace(-1, 1, BLOCK + 5, dtype=np.float32)
    raw = np.frombuffer(b"x" + numbers.tobytes(), dtype=np.uint8)
    crooked = HostTensor("float32", numbers.shape, raw[1:].view(np.float32))
    assert not crooked.data.flags.aligned
    assert measure_pair(crooked, host("float32", numbers), engine=engine).identical
    frozen = host("float32", numbers * 2)
    frozen.data.flags.writeable = False
    check(measure_pair(crooked, frozen, engine=engine), crooked, frozen)
    np.testing.assert_array_equal(frozen.data, numbers * 2)


@pytest.mark.parametrize("dtype", ["float32", "int64", "complex64"])
def test_measuring_changes_neither_tensor(engine: Engine, dtype: str) -> None:
    values = [1, NAN, INF, 0] if dtype != "int64" else [1, 2, 3, 0]
    sides = [host(dtype, values), host(dtype, values[::-1])]
    before = [side.data.tobytes() for side in sides]
    measure_pair(sides[0], sides[1], engine=engine)
    assert [side.data.tobytes() for side in sides] == before
