"""The compiled loops behind the metrics of inference reports, each against what it stands for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from twinprobe._measure.kernels import kernel_row
from twinprobe._measure.loops import inference_sums as llm_rows
from twinprobe._measure.loops.inference import (
    NEAR,
    exponential,
    growth_and_excess,
    near_excess,
    near_weight,
    powers_in,
    weight_of,
    within_a_thousandth,
)
from twinprobe._measure.loops.inference_sums import PIECE
from twinprobe._measure.loops.sums import ONE_THOUSANDTH, PAIR_COLUMNS, WITHIN_ONE

numbers = st.floats(-50, 50, width=32)


@settings(deadline=None, max_examples=300)
@given(st.floats(-800, 0))
def test_the_compiled_exponential_is_exact_enough(x: float) -> None:
    assert exponential(x) == pytest.approx(np.exp(max(x, -708.0)), rel=1e-9)


@settings(deadline=None, max_examples=300)
@given(st.floats(-9000, 9000, width=32), st.floats(0, 200, width=32))
def test_the_weight_in_single_precision_has_its_digits(x: float, below: float) -> None:
    top = powers_in(np.float32(x))
    number = np.float32(x - below)
    exact = np.exp(np.float64(number) - np.float64(top) * np.log(2.0))
    assert weight_of(number, top) == pytest.approx(exact, rel=5e-7, abs=1e-37)


@settings(deadline=None, max_examples=300)
@given(st.floats(-64, 64, width=32))
def test_the_excess_in_single_precision_has_its_digits_at_small_differences_too(d: float) -> None:
    exact = np.expm1(d) - d if abs(d) > 1e-5 else d * d / 2 + d * d * d / 6
    growth, excess = growth_and_excess(np.float32(d))
    assert excess == pytest.approx(exact, rel=3e-6, abs=1e-44)
    assert growth == pytest.approx(np.exp(d), rel=5e-7)


@settings(deadline=None, max_examples=60)
@given(arrays.arrays(np.float32, st.integers(1, 300), elements=numbers), st.floats(-1, 1, width=32))
def test_the_compiled_row_is_the_plain_row(golden: np.ndarray, shift: float) -> None:
    my = golden + np.float32(shift)
    plain = [float(value) for value in llm_rows.plain_row(my, golden)]
    compiled = kernel_row("float32", my, golden.copy())[PAIR_COLUMNS:].tolist()
    np.testing.assert_allclose(compiled[: llm_rows.SHIFT], plain[: llm_rows.SHIFT], rtol=1e-9, atol=1e-12)
    assert llm_rows.divergence(np.array(compiled)) == pytest.approx(llm_rows.divergence(np.array(plain)), abs=1e-12)


@settings(deadline=None, max_examples=300)
@given(st.floats(-9000, 9000, width=32), st.floats(0, 80, width=32))
def test_the_quick_weight_has_its_digits_where_it_is_used(x: float, below: float) -> None:
    top = powers_in(np.float32(x))
    number = np.float32(x - below)
    exact = np.exp(np.float64(number) - np.float64(top) * np.log(2.0))
    assert near_weight(number, np.int32(top)) == pytest.approx(exact, rel=6e-7)


@settings(deadline=None, max_examples=300)
@given(st.floats(-0.34375, 0.34375, width=32))
def test_the_quick_excess_has_its_digits_at_small_differences_too(d: float) -> None:
    assert abs(d) <= NEAR
    exact = np.expm1(d) - d if abs(d) > 1e-3 else d * d / 2 + d**3 / 6 + d**4 / 24
    assert near_excess(np.float32(d)) == pytest.approx(exact, rel=1e-6, abs=1e-44)


@settings(deadline=None, max_examples=500)
@given(st.floats(2.0**-20, 2.0**20, width=32), st.integers(-40, 40))
def test_within_a_thousandth_is_what_the_division_says(base: float, steps: int) -> None:
    """At the very border, too: a few units in the last place around a thousandth."""
    golden = np.float32(base)
    my = golden + np.float32(golden * np.float32(ONE_THOUSANDTH))
    for _ in range(abs(steps)):
        my = np.nextafter(my, np.float32(np.inf if steps > 0 else 0))
    gap = np.float32(abs(my - golden))
    assert within_a_thousandth(gap, golden) == bool(gap / golden < np.float32(ONE_THOUSANDTH))


@pytest.mark.parametrize(
    ("my", "golden", "share"), [(3003.0, 3000.0, 0), (1e-11, 0.0, 1), (1.0, 0.0, 0), (0.0, 0.0, 1)]
)
def test_equal_numbers_count_as_within_a_thousandth_and_zeros_against_nothing_do(
    my: float, golden: float, share: int
) -> None:
    row = kernel_row("float32", np.full(5, my, np.float32), np.full(5, golden, np.float32))
    assert row[WITHIN_ONE] == 5 * share


def stored(dtype: str, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers as a file of this dtype holds them, and what they are."""
    if dtype == "bfloat16":
        bits = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return bits, (bits.astype(np.uint32) << 16).view(np.float32)
    narrow = values.astype(dtype)
    return narrow, narrow.astype(np.float32)


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from(["float32", "float16", "bfloat16"]),
    arrays.arrays(np.float32, st.integers(1, 70), elements=st.floats(-6e4, 6e4, width=16)),
    st.sampled_from([-1, 0, 1]),
)
def test_extremes_of_all_signs_are_found(dtype: str, values: np.ndarray, sign: int) -> None:
    data, wide = stored(dtype, values if sign == 0 else sign * np.abs(values))
    row = kernel_row(dtype, data, data)[PAIR_COLUMNS:]
    for top, low in ((llm_rows.MY_MAX, llm_rows.MY_MIN), (llm_rows.GOLDEN_MAX, llm_rows.GOLDEN_MIN)):
        assert (row[top], row[low]) == (wide.max(), wide.min())


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-5, 1e-3, 0.05, 0.2, 1.0]), st.sampled_from([0.0, 0.1]))
def test_pieces_with_scales_of_their_own_add_up_to_one_softmax(seed: int, size: float, offset: float) -> None:
    rng = np.random.default_rng(seed)
    golden = (
        rng.standard_normal(5 * PIECE + 3).astype(np.float32) * np.repeat([1, 3, 0.1, 9, 1, 1], PIECE)[: 5 * PIECE + 3]
    )
    golden = golden.astype(np.float32)
    my = (golden + size * rng.standard_normal(golden.size) + offset).astype(np.float32)
    whole = llm_rows.divergence(kernel_row("float32", my, golden)[PAIR_COLUMNS:])
    plain = llm_rows.divergence(np.array(llm_rows.plain_row(my, golden), np.float64))
    assert whole == pytest.approx(plain, rel=1e-5, abs=1e-7 * size * min(size, 1.0) + 1e-15)
