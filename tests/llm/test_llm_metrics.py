"""The metrics of inference reports against their definitions, and the columns that tell what those hide."""

from __future__ import annotations

from math import inf, isnan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from twinprobe._measure.engine import PLAIN
from twinprobe._measure.kernels import KernelEngine
from twinprobe._measure.llm_metrics import EMPTY, GOLDEN_NONFINITE, MY_NONFINITE, SHAPE, LlmMetrics, measure_llm_pair
from twinprobe._measure.loops.inference_sums import PIECE
from twinprobe._measure.loops.sums import BLOCK
from twinprobe._runs.tensors.elements import HostTensor

EPS = np.finfo(np.float32).eps
KERNELS = KernelEngine()


def host(array: np.ndarray) -> HostTensor:
    return HostTensor(array.dtype.name, array.shape, np.ascontiguousarray(array).reshape(-1))


def metrics_of(my: list[float], golden: list[float]) -> LlmMetrics:
    return measure_llm_pair(host(np.array(my, np.float32)), host(np.array(golden, np.float32)))


def by_definition(m: np.ndarray, g: np.ndarray) -> dict[str, float]:
    """Straight from the definitions, in float64 but for the ratio, which is taken in float32."""
    counts = np.abs(g) > EPS
    ratio = np.where(counts, np.abs(m / np.where(counts, g, 1) - np.float32(1)), 0)
    gap = np.where(counts, np.abs(m - g), 0)
    m, g = m.astype(np.float64), g.astype(np.float64)
    norms = np.linalg.norm(m), np.linalg.norm(g)
    p, q = (np.exp(x - x.max()) / np.exp(x - x.max()).sum() for x in (g, m))
    logs = (g - g.max() - np.log(np.exp(g - g.max()).sum())) - (m - m.max() - np.log(np.exp(m - m.max()).sum()))
    del q
    return {
        "cosine": 1.0 if not any(norms) else round(float(m @ g / (norms[0] * norms[1])), 10) if all(norms) else 0.0,
        "max_rel": float(ratio.max()),
        "mean_rel": float(ratio.mean(dtype=np.float64)),
        "max_abs": float(gap.max()),
        "mean_abs": float(gap.mean(dtype=np.float64)),
        "kl": max(float((p * logs).sum()), 0.0),
        "euclid": 0.0 if norms[1] <= EPS else float(np.linalg.norm(m - g) / norms[1]),
    }


numbers = st.floats(-50, 50, width=32)


@settings(deadline=None, max_examples=150)
@given(st.data(), st.sampled_from(["plain", "kernels"]))
def test_both_engines_follow_the_definitions(data: st.DataObject, engine: str) -> None:
    size = data.draw(st.integers(1, 200))
    m, g = (data.draw(arrays.arrays(np.float32, size, elements=numbers)) for _ in range(2))
    found = measure_llm_pair(host(m), host(g), engine=PLAIN if engine == "plain" else KERNELS)
    for name, value in by_definition(m, g).items():
        slack = 1e-6 * min(float(np.abs(m - g).max()), 8.0) if name == "kl" and engine == "kernels" else 0.0
        assert getattr(found, name) == pytest.approx(value, rel=2e-6, abs=1e-9 + slack), name
    assert found.max_rel == by_definition(m, g)["max_rel"]
    assert found.max_abs == by_definition(m, g)["max_abs"]
    assert found.max_abs_all == pytest.approx(float(np.abs(m.astype(np.float64) - g).max()))


def test_a_tensor_of_many_blocks_is_one_softmax() -> None:
    rng = np.random.default_rng(1)
    g = (rng.standard_normal(3 * BLOCK + 17) * 4).astype(np.float32)
    g[BLOCK + 5] = 30.0
    m = (g + rng.standard_normal(g.size) * 0.5).astype(np.float32)
    for engine in (PLAIN, KERNELS):
        found = measure_llm_pair(host(m), host(g), engine=engine)
        for name, value in by_definition(m, g).items():
            assert getattr(found, name) == pytest.approx(value, rel=1e-6), name


@settings(deadline=None, max_examples=60)
@given(
    arrays.arrays(np.float32, st.integers(1, 3 * PIECE), elements=numbers),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1e-6, 1e-3, 0.3, 3.0, 40.0]),
)
def test_the_divergence_is_right_to_a_millionth_of_the_differences(golden: np.ndarray, seed: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    my = (golden + size * rng.standard_normal(golden.size)).astype(np.float32)
    found = measure_llm_pair(host(my), host(golden), engine=KERNELS).kl
    spread = min(2 * float(np.abs(my - golden).max()), 16.0)
    slack = 1e-6 * spread * min(spread, 1.0)
    assert found == pytest.approx(by_definition(my, golden)["kl"], rel=4e-6, abs=slack + 1e-13)


@pytest.mark.parametrize(("count", "value"), [(1300, 1.09375), (1695, 38.536915), (1850, 32.50721), (5700, 22.231577)])
def test_roundings_that_all_go_one_way_do_not_add_up(count: int, value: float) -> None:
    golden = np.full(count, value, np.float32)
    for seed in range(60, 70):
        my = (golden + 0.3 * np.random.default_rng(seed).standard_normal(count)).astype(np.float32)
        found = measure_llm_pair(host(my), host(golden), engine=KERNELS).kl
        assert found == pytest.approx(by_definition(my, golden)["kl"], rel=1e-6)


def test_differences_of_the_last_digit_keep_their_divergence() -> None:
    golden = np.full(2000, -35.608925, np.float32)
    golden[:5] = -30.266302  # numbers from 16 to 32 have a digit more than those from 32 to 64
    for seed in range(10):
        my = (golden + 1e-6 * np.random.default_rng(seed).standard_normal(golden.size)).astype(np.float32)
        found = measure_llm_pair(host(my), host(golden), engine=KERNELS).kl
        assert found == pytest.approx(by_definition(my, golden)["kl"], rel=0.02, abs=0)


@pytest.mark.parametrize(
    ("my", "golden"),
    [
        ([0.0, 1000.0, 3.0], [0.0, 1.0, 2.0]),
        ([0.0, 1.0, 2.0], [0.0, 1000.0, 3.0]),
        ([-65504.0, 1.0, 2.5], [-65504.0, 1.0, 2.0]),
        ([3e38, 1.0], [2e38, 3e38]),
        ([-30000.0, -30001.0], [-30001.0, -30001.5]),
        ([20000.0, 20001.0], [20001.0, 20001.5]),
    ],
)
def test_huge_numbers_and_differences_have_a_divergence_too(my: list[float], golden: list[float]) -> None:
    m, g = np.array(my, np.float32), np.array(golden, np.float32)
    for engine in (PLAIN, KERNELS):
        found = measure_llm_pair(host(m), host(g), engine=engine).kl
        assert found == pytest.approx(by_definition(m, g)["kl"], rel=2e-6), engine
    # Beside tame numbers in the same block, and in another one.
    for tame in (PIECE, BLOCK):
        many = [np.concatenate([np.full(tame, 0.5, np.float32), side]) for side in (m, g)]
        found = measure_llm_pair(host(many[0]), host(many[1]), engine=KERNELS).kl
        assert found == pytest.approx(by_definition(many[0], many[1])["kl"], rel=2e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats_are_read_in_their_own_form(dtype: str) -> None:
    rng = np.random.default_rng(2)
    g, m = (rng.standard_normal(1000).astype(np.float32) for _ in range(2))
    if dtype == "float16":
        stored = [x.astype(np.float16) for x in (m, g)]
        wide = [x.astype(np.float32) for x in stored]
    else:
        stored = [(x.view(np.uint32) >> 16).astype(np.uint16) for x in (m, g)]
        wide = [(x.astype(np.uint32) << 16).view(np.float32) for x in stored]
    found = measure_llm_pair(*(HostTensor(dtype, x.shape, x) for x in stored), engine=KERNELS)
    for name, value in by_definition(*wide).items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-6), name


def test_errors_where_golden_is_nothing_are_hidden_in_the_old_columns_and_told_in_the_new() -> None:
    found = metrics_of([5, 1], [1e-8, 1])
    assert found.max_abs == 0.0
    assert found.max_rel == 0.0
    assert found.max_abs_all == pytest.approx(5.0)
    assert found.relative_norm is not None
    assert found.relative_norm == pytest.approx(5.0)


def test_ones_against_zeros() -> None:
    found = metrics_of([1, 1], [0, 0])
    assert (found.cosine, found.max_abs, found.euclid) == (0.0, 0.0, 0.0)
    assert found.relative_norm == inf
    assert found.max_abs_all == 1.0
    assert metrics_of([0, 0], [0, 0]).cosine == 1.0
    assert metrics_of([0, 0], [0, 0]).identical


def test_nan_and_inf_blank_the_old_columns_and_name_the_side() -> None:
    found = metrics_of([1, inf], [1, 2])
    assert (found.reason, found.cosine) == (MY_NONFINITE, None)
    assert found.nonfinite
    assert metrics_of([1, 2], [float("nan"), 2]).reason == GOLDEN_NONFINITE
    both = metrics_of([float("nan"), 2], [float("nan"), 2])
    assert both.reason == f"{GOLDEN_NONFINITE} {MY_NONFINITE}"
    assert both.identical
    assert both.golden.max is not None
    assert isnan(both.golden.max)


def test_only_the_number_of_elements_must_agree() -> None:
    array = np.arange(6, dtype=np.float32)
    assert measure_llm_pair(host(array.reshape(1, 2, 3)), host(array.reshape(3, 2))).reason == ""
    odd = measure_llm_pair(host(array), host(array[:4]))
    assert (odd.reason, odd.cosine) == (SHAPE, None)
    assert odd.target.max == 5.0


def test_empty_tensors_are_told_apart() -> None:
    empty = np.empty((0, 4), np.float32)
    assert measure_llm_pair(host(empty), host(empty)).reason == EMPTY
    assert measure_llm_pair(host(empty), host(np.ones(1, np.float32))).reason == SHAPE


def test_integers_and_complex_numbers_have_metrics_too() -> None:
    found = measure_llm_pair(host(np.array([1, 2], np.int64)), host(np.array([1, 4], np.int32)))
    assert (found.max_abs, found.max_rel) == (2.0, 0.5)
    big = np.array([2**60, 1], np.int64)
    assert not measure_llm_pair(host(big), host(big + np.array([1, 0]))).identical
    z = np.array([1 + 1j, 2], np.complex64)
    other = measure_llm_pair(host(z), host(z + np.complex64(1j)))
    assert other.max_abs == 0.0
    assert not other.identical
    assert other.relative_norm is not None
    assert other.relative_norm > 0
