"""Tensors laid out like the one they are compared with: turned, and several joined to one."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinprobe._measure.elements import joined, turned
from twinprobe._runs.tensors.elements import HostTensor


def _tensor(array: np.ndarray) -> HostTensor:
    return HostTensor("float32", array.shape, np.ascontiguousarray(array, dtype=np.float32).reshape(-1))


def _array(tensor: HostTensor) -> np.ndarray:
    return tensor.data.reshape(tensor.shape)


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=2, max_size=3), st.sampled_from([1, 2, 4]), st.booleans(), st.randoms(),
    st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_parts_find_their_order_groups_and_layout(
    widths: list[int], heads: int, transposed: bool, random: object, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    parts = [rng.normal(size=(heads * width, 5)) for width in widths]
    order = list(range(len(parts)))
    random.shuffle(order)  # type: ignore[attr-defined]
    # Head after head, the parts of each in this order.
    pieces = [parts[at].reshape(heads, -1, 5)[head] for head in range(heads) for at in order]
    whole = np.concatenate(pieces)
    target = [_tensor(part) for part in parts]
    made = joined(target, _tensor(whole.T if transposed else whole))
    assert np.array_equal(_array(made), np.asarray(whole.T if transposed else whole, dtype=np.float32))


def test_a_changed_element_stays_changed() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(8, 16)) for _ in range(3)]
    whole = np.concatenate(parts)
    whole[5, 7] += 1
    made = _array(joined([_tensor(part) for part in parts], _tensor(whole)))
    assert np.argwhere(made != whole.astype(np.float32)).tolist() == [[5, 7]]


def test_parts_that_do_not_add_up_are_left_alone() -> None:
    parts = [_tensor(np.ones((4, 3))), _tensor(np.ones((4, 2)))]
    assert joined(parts, _tensor(np.ones((9, 9)))) is parts[0]
    assert joined(parts, _tensor(np.ones(20))) is parts[0]


def test_batch_and_sequence_may_be_one_axis_on_one_side() -> None:
    rng = np.random.default_rng(1)
    parts = [rng.normal(size=(2, 8, 4)) for _ in range(3)]
    whole = np.concatenate(parts, axis=-1).reshape(16, 12)
    assert np.array_equal(_array(joined([_tensor(part) for part in parts], _tensor(whole))), whole.astype(np.float32))


@pytest.mark.parametrize("axes", list(permutations(range(3))))
def test_turning_takes_the_way_that_fits_best(axes: tuple[int, ...]) -> None:
    cube = np.random.default_rng(2).normal(size=(4, 4, 4))
    like = _tensor(cube.transpose(axes))
    made = turned(_tensor(cube), list(permutations(range(3))), like)
    assert np.array_equal(made.data, like.data)


def test_a_view_and_axes_of_length_one_are_no_difference() -> None:
    plain = np.random.default_rng(3).normal(size=(6, 5))
    assert turned(_tensor(plain), [()], _tensor(plain.reshape(2, 3, 5))).shape == (2, 3, 5)
    made = turned(_tensor(plain[:, :, None, None]), [(1, 0)], _tensor(plain.T))
    assert np.array_equal(_array(made), plain.T.astype(np.float32))


def test_a_file_of_another_shape_is_left_as_it_is() -> None:
    tensor = _tensor(np.ones((2, 3)))
    assert turned(tensor, [(2, 0, 1)], _tensor(np.ones((3, 2, 1)))) is tensor
