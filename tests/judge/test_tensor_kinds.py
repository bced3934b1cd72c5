"""What two tensors tell of their difference: each kind planted, in float32 and bf16, and never a false one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from twinprobe._judge.deviation import Kind
from twinprobe._judge.kinds.by_tensors import tensor_cause, tensor_kinds

Array = NDArray[Any]
SHAPE = (2, 16, 4, 32)


def bf16(values: Array) -> Array:
    """Rounded to bfloat16, kept in float32."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def plain(values: Array) -> Array:
    return values.astype(np.float32)


def noisy(values: Array, seed: int, level: float) -> Array:
    """With the relative noise of a sum in another order."""
    return values * (1 + level * np.random.default_rng(seed).standard_normal(values.shape))


def tensor(seed: int = 0, shape: tuple[int, ...] = SHAPE) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def interleaved(values: Array) -> Array:
    halves = np.arange(32).reshape(2, 16).T.reshape(-1)
    return values[..., halves]


def heads_exchanged(values: Array) -> Array:
    return values[:, :, [0, 2, 1, 3]]


def dropped(values: Array) -> Array:
    kept = np.random.default_rng(5).random(values.shape) > 0.1
    return values * kept / 0.9


def in_rows(values: Array) -> Array:
    changed = values.copy()
    changed[:, 3:6] += tensor(9)[:, 3:6]
    return changed


def in_columns(values: Array) -> Array:
    changed = values.copy()
    changed[..., 8:16] *= 0.8
    return changed


def shuffled(values: Array) -> Array:
    return np.random.default_rng(3).permutation(values.reshape(-1)).reshape(values.shape)


PLANTED: dict[str, tuple[Callable[[Array], Array], str, str]] = {
    "factor": (lambda x: 1.4 * x, "factor", "target = 1.4"),
    "factor of the head size": (lambda x: x / np.sqrt(32), "factor", "1/sqrt(32) x golden"),
    "small factor": (lambda x: 1.05 * x, "factor", "x golden"),
    "zeros": (lambda x: 0 * x, "factor", "target is all zeros"),
    "sign": (lambda x: -x, "sign", "target = -golden"),
    "offset": (lambda x: x + 0.5, "offset", "golden + 0.5"),
    "bias": (lambda x: x + tensor(7, (32,)), "offset", "32 numbers along axis 3"),
    "channel bias": (lambda x: x + tensor(7, (16, 1, 1)), "offset", "16 numbers along axis 1"),
    "another table of positions": (lambda x: x + np.repeat(tensor(7, (1, 16, 4, 32)), 2, 0), "offset", "axis 0"),
    "clamp": (lambda x: np.clip(x, -1, 1), "saturation", "cut off at -1 and 1"),
    "clamp above": (lambda x: np.minimum(x, 1.5), "saturation", "cut off at 1.5"),
    "dropout": (dropped, "random", "is zero"),
    "rolled": (lambda x: np.roll(x, 1, 1), "shift", "by 1 along axis 1, round the end"),
    "moved": (lambda x: np.concatenate([0 * x[:, :1], x[:, :-1]], 1), "shift", "by 1 along axis 1"),
    "moved back": (lambda x: np.concatenate([x[..., 2:], x[..., :2] * 0], -1), "shift", "by -2 along axis 3"),
    "joined the other way": (lambda x: np.roll(x, 16, 3), "permutation", "changed places"),
    "heads": (heads_exchanged, "permutation", "axis 2: indices 0, 2, 1, 3"),
    "rotary layout": (interleaved, "permutation", "rotary layouts"),
    "reversed": (lambda x: x[:, ::-1], "permutation", "axis 1: reversed"),
    "shuffled": (shuffled, "permutation", "the same values in another order"),
    "tokens": (in_rows, "part", "only indices 3-5 of axis 1"),
    "columns": (in_columns, "part", "only indices 8-15 of axis 3"),
}


def best(kinds: list[Kind]) -> Kind:
    assert kinds, "no kind is stated"
    assert [one.confidence for one in kinds] == sorted((one.confidence for one in kinds), reverse=True)
    assert all(0 < one.confidence <= 0.9 for one in kinds)
    return kinds[0]


@pytest.mark.parametrize("rounded", [plain, bf16], ids=["float32", "bf16"])
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_kind_is_named(name: str, rounded: Callable[[Array], Array]) -> None:
    plant, kind, words = PLANTED[name]
    golden = tensor()
    level = 1e-7 if rounded is plain else 2e-3
    found = best(tensor_kinds(rounded(plant(noisy(golden, 1, level))), rounded(golden)))
    assert found.name == kind, found
    if rounded is plain or not any(sign.isdigit() for sign in words):  # numbers of bf16 are not that exact
        assert words in found.sentence, found


@pytest.mark.parametrize("level", [0.3, 1, 3])
@pytest.mark.parametrize("rounded", [plain, bf16], ids=["float32", "bf16"])
@given(st.integers(0, 10_000), st.sampled_from([(1,), (7,), (3, 5), (64, 64), (2, 16, 8), (4, 1, 128), SHAPE]))
@settings(max_examples=40)
def test_noise_is_nothing_but_noise(
    rounded: Callable[[Array], Array], level: float, seed: int, shape: tuple[int, ...]
) -> None:
    golden = tensor(seed, shape)
    eps = 2.0**-23 if rounded is plain else 2.0**-7
    target = rounded(noisy(golden, seed + 1, level * eps / 2))
    assert {kind.name for kind in tensor_kinds(target, rounded(golden))} <= {"noise"}


@given(st.integers(0, 10_000), st.sampled_from([(1,), (5,), (3, 5), (40, 40), (2, 16, 8)]))
@settings(max_examples=60)
def test_two_unrelated_tensors_have_no_kind(seed: int, shape: tuple[int, ...]) -> None:
    assert tensor_kinds(plain(tensor(seed, shape)), plain(tensor(seed + 20_000, shape))) == []


@given(
    st.integers(0, 10_000),
    st.sampled_from(["zeros", "constant", "rows alike", "mask", "tiny", "one-hot", "sparse noise", "inf mask"]),
)
@settings(max_examples=120)
def test_awkward_tensors_raise_nothing_and_state_nothing_false(seed: int, name: str) -> None:
    random = np.random.default_rng(seed)
    golden = {
        "zeros": np.zeros((8, 8)),
        "constant": np.full((8, 8), 3.0),
        "rows alike": np.repeat(random.standard_normal((1, 8)), 8, 0),
        "mask": (random.random((8, 8)) > 0.5) * 1.0,
        "tiny": 1e-30 * random.standard_normal((8, 8)),
        "one-hot": np.eye(8),
        "sparse noise": random.standard_normal((8, 8)),
        "inf mask": np.where(np.tri(8, dtype=bool), random.standard_normal((8, 8)), -np.inf),
    }[name].astype(np.float32)
    assert tensor_kinds(golden, golden) == []
    target = golden.copy()
    target[2, 0] = np.nextafter(target[2, 0], np.float32(9))
    assert {kind.name for kind in tensor_kinds(target, golden)} <= {"noise"}


@given(st.integers(0, 10_000), st.floats(-8, 8).filter(lambda one: abs(one - 1) > 0.05 and abs(one) > 0.05))
@settings(max_examples=60)
def test_any_factor_is_found_and_told(seed: int, factor: float) -> None:
    golden = bf16(tensor(seed, (32, 32)))
    found = best(tensor_kinds(bf16(factor * golden), golden))
    assert found.name == ("sign" if abs(factor + 1) < 0.01 else "factor")
    assert found.evidence["factor"] == pytest.approx(factor, rel=0.01)


@given(st.integers(0, 10_000), st.permutations(list(range(12))))
@settings(max_examples=40)
def test_any_order_of_an_axis_is_found(seed: int, order: list[int]) -> None:
    golden = plain(tensor(seed, (6, 12, 10)))
    kinds = tensor_kinds(golden[:, order], golden)
    if order == sorted(order):
        assert kinds == []
        return
    found = best(kinds)
    assert found.name in ("permutation", "shift")
    if "order" in found.evidence:
        assert found.evidence["order"] == order


def test_a_coarser_type_is_told() -> None:
    golden = plain(tensor())
    found = best(tensor_kinds(bf16(golden), golden))
    assert (found.name, found.evidence) == ("dtype", {"side": "target", "dtype": "bf16"})
    found = best(tensor_kinds(golden, golden.astype(np.float16).astype(np.float32)))
    assert (found.name, found.evidence) == ("dtype", {"side": "golden", "dtype": "fp16"})
    found = best(tensor_kinds(bf16(noisy(golden, 3, 1e-3)), golden))
    assert found.name == "dtype"
    assert "all values of target are bf16 numbers" in found.sentence


def test_nan_and_overflow_are_told_apart_from_masks() -> None:
    golden = plain(tensor())
    target = golden.copy()
    target[1, 2, 3, 4] = np.nan
    (found,) = tensor_kinds(target, golden)
    assert found.name == "nan"
    assert "[1, 2, 3, 4]" in found.sentence
    assert tensor_kinds(golden, target)[0].evidence["side"] == "golden"
    large = golden * 20000
    with np.errstate(over="ignore"):
        found = best(tensor_kinds(large.astype(np.float16).astype(np.float32), large))
    assert found.name == "saturation"
    assert "overflow" in found.sentence
    mask = np.where(np.tri(16, dtype=bool), tensor(0, (16, 16)), -np.inf).astype(np.float32)
    other = np.where(np.tri(16, k=1, dtype=bool), tensor(0, (16, 16)), -np.inf).astype(np.float32)
    assert "nan" not in {kind.name for kind in tensor_kinds(other, mask)}


def test_transposed_tensors_are_told_with_and_without_their_shape() -> None:
    square, long = plain(tensor(0, (24, 24))), plain(tensor(0, (12, 48)))
    for target, golden in ((square.T, square), (long.T, long), (long.T.reshape(12, 48), long)):
        found = best(tensor_kinds(target.copy(), golden))
        assert found.name == "transposition"
        assert "[1, 0]" in found.sentence
    symmetric = square + square.T
    assert tensor_kinds(symmetric.T, symmetric) == []


def test_a_few_rows_of_coarse_noise_are_no_part() -> None:
    golden = plain(tensor(0, (64, 64)))
    target = golden.copy()
    target[[3, 9]] = noisy(golden, 1, 0.004)[[3, 9]]  # as where a few values before were rounded otherwise, in bf16
    assert "part" not in {kind.name for kind in tensor_kinds(target, golden)}


def test_heads_that_are_repeated_the_other_way_are_told() -> None:
    heads = plain(tensor(0, (2, 2, 16, 8)))
    found = best(tensor_kinds(np.tile(heads, (1, 2, 1, 1)), np.repeat(heads, 2, 1)))
    assert found.name == "permutation"
    assert found.evidence["order"] == [0, 2, 1, 3]
    target = plain(tensor(0, (2, 4, 16, 8)))
    target[:, 1] = 0  # a head of zeros is no exchange
    assert best(tensor_kinds(target, plain(tensor(0, (2, 4, 16, 8))))).name == "part"


def test_padding_is_told() -> None:
    golden, target = plain(tensor(0, (2, 16, 8))), plain(tensor(0, (2, 16, 8)))
    golden[0, 12:], golden[1, 9:] = 0, 0
    target[0, 12:], target[1, 9:] = 0.5, 0.5
    found = best(tensor_kinds(target, golden))
    assert found.name == "padding"
    assert "11 of 32 rows" in found.sentence


def test_a_missing_summand_is_told_and_a_factor_is_none() -> None:
    residual, branch = plain(tensor(1)), plain(tensor(2))
    found = best(tensor_kinds(branch, residual + branch, others={"input.0": residual, "input.1": branch}))
    assert (found.name, found.sentence) == ("missing", "target = golden - input.0")
    found = best(tensor_kinds(residual + 1.5 * branch, residual + branch, others={"input.1": branch}))
    assert (found.name, found.sentence) == ("extra", "target = golden + 0.5 x input.1")
    found = best(tensor_kinds(0.5 * residual, residual, others={"input.0": residual}))
    assert found.name == "factor"


def test_another_mask_of_a_dropout_is_told() -> None:
    values = plain(tensor())
    masks = [np.random.default_rng(seed).random(values.shape) > 0.3 for seed in (1, 2)]
    found = best(tensor_kinds(values * masks[0] / 0.7, values * masks[1] / 0.7))
    assert found.name == "random"
    assert "another mask" in found.sentence


def test_zeros_that_nothing_makes_up_for_are_no_dropout() -> None:
    values = plain(tensor())
    masked = values * (np.random.default_rng(1).random(values.shape) > 0.3)
    assert "random" not in {kind.name for kind in tensor_kinds(masked, values)}


@given(
    st.sampled_from(["float16", "float32", "float64", "int32", "uint8", "bool"]),
    st.lists(st.integers(1, 6), max_size=4).map(tuple),
    st.lists(st.sampled_from([0.0, 1.0, -2.5, 1e-40, 6e4, 3e38, np.nan, np.inf, -np.inf]), min_size=4, max_size=4),
    st.integers(0, 10_000),
)
@settings(max_examples=150)
@pytest.mark.filterwarnings("error")
def test_any_two_tensors_are_taken(dtype: str, shape: tuple[int, ...], values: list[float], seed: int) -> None:
    random = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        sides = [
            np.where(random.random(shape) < 0.3, random.choice(values, shape), random.standard_normal(shape)).astype(
                dtype
            )
            for _ in range(2)
        ]
    for target, golden in (sides, (sides[0].T, sides[0]), (sides[0][..., ::-1] if shape else sides[0], sides[0])):
        for kind in tensor_kinds(target, golden, others={"other": sides[1]}):
            assert 0 < kind.confidence <= 0.9
            json.dumps(kind.evidence)
        tensor_cause("weight", "parameter", target, golden)


def test_few_values_are_in_proportion_only_where_the_factor_means_something() -> None:
    assert best(tensor_kinds(np.float32([6.5]), np.float32([3.25]))).sentence.startswith("target = 2")
    assert tensor_kinds(np.float32([6.6]), np.float32([3.25])) == []
    assert tensor_kinds(np.float32(6.6), np.float32(3.25)) == []


def test_what_expected_noise_explains_is_no_structure() -> None:
    golden = plain(tensor())
    target = plain(golden * 1.001)
    assert best(tensor_kinds(target, golden)).name == "factor"
    assert [kind.name for kind in tensor_kinds(target, golden, expected=0.001)] == ["noise"]


def test_integers_and_empty_tensors() -> None:
    ids = np.arange(64).reshape(4, 16) * 7 % 31
    assert tensor_kinds(ids, ids) == []
    assert best(tensor_kinds(np.roll(ids, -1, 1), ids)).name == "shift"
    assert tensor_kinds(np.zeros((0, 4)), np.zeros((0, 4))) == []
    assert tensor_kinds(np.zeros((2, 3)), np.zeros((2, 4))) == []
    assert tensor_kinds(np.array(["a"]), np.array(["b"])) == []


def test_large_tensors_are_looked_at_in_slices() -> None:
    golden = np.tile(plain(tensor(0, (1024, 1024))), (8, 1))
    assert best(tensor_kinds(golden * np.float32(1.4), golden)).name == "factor"
    target = golden.copy()
    target[2000:3000] *= 2
    found = best(tensor_kinds(target, golden))
    assert found.name == "part"
    assert "2000-2998 of axis 0 (8192 long)" in found.sentence


def test_an_input_or_parameter_that_differs_is_the_cause() -> None:
    golden = plain(tensor(0, (24, 24)))
    found = tensor_cause("weight", "parameter", golden.T.copy(), golden)
    assert found is not None
    assert (found.name, found.evidence["kind"]) == ("parameter", "transposition")
    assert found.sentence.startswith("weight differs: target is golden with its axes")
    found = tensor_cause("input.0", "input", plain(golden * 8), golden, from_outside=False)
    assert found is not None
    assert (found.name, found.sentence) == ("factor", "input.0: target = 8 x golden (residual 0 %)")
    found = tensor_cause("input_ids", "input", np.arange(9), np.arange(9)[::-1].copy(), from_outside=False)
    assert found is not None
    assert found.name == "input"
    assert tensor_cause("weight", "parameter", golden, golden) is None
    assert tensor_cause("input.0", "input", plain(tensor(5, (24, 24))), golden, from_outside=False) is None
    assert tensor_cause("weight", "parameter", plain(noisy(golden, 1, 1e-7)), golden) is None
