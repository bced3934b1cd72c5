"""Which order of axes gives the other side's layout."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from twinprobe._align.turns import VIEW, Candidate, find_turns, fits_shape
from twinprobe._measure.elements import turned
from twinprobe._runs.tensors.elements import HostTensor


def _one(target: tuple[int, ...], golden: tuple[int, ...], place: int = 0, **more: object) -> Candidate:
    options = {"is_weight": False, "marked": False, "sort": "x", **more}
    return Candidate(place, target, golden, **options)  # type: ignore[arg-type]


def test_distinct_sizes_tell_the_order() -> None:
    assert find_turns([_one((8, 2, 32), (2, 8, 32))]) == {0: [(1, 0, 2)]}
    assert find_turns([_one((2, 8, 32), (2, 8, 32))]) == {}
    assert find_turns([_one((2, 8, 32), (2, 8, 33))]) == {}


def test_a_square_weight_goes_with_the_others_of_its_sort() -> None:
    wide, square = _one((32, 96), (96, 32), 0, is_weight=True), _one((32, 32), (32, 32), 1, is_weight=True)
    assert find_turns([wide, square]) == {0: [(1, 0)], 1: [(1, 0)]}
    assert find_turns([square]) == {}
    assert find_turns([_one((32, 32), (32, 32), is_weight=True, marked=True)]) == {0: [(1, 0)]}
    same = _one((32, 96), (32, 96), 1, is_weight=True, marked=True)
    marked = _one((32, 32), (32, 32), 0, is_weight=True, marked=True)
    assert find_turns([marked, same]) == {}  # the mark is on one side, but shapes show that both are stored alike


def test_equal_sizes_leave_several_orders_the_likeliest_first() -> None:
    clear, unclear = _one((8, 2, 4), (2, 8, 4), 0, sort=3), _one((8, 2, 8), (2, 8, 8), 1, sort=3)
    ways = find_turns([clear, unclear])[1]
    assert ways[0] == (1, 0, 2)
    assert len(ways) == 2


def test_views_keep_the_order_of_elements() -> None:
    assert find_turns([_one((16, 96), (2, 8, 96))]) == {0: [VIEW]}
    assert find_turns([_one((8, 4, 8), (2, 4, 4, 8))]) == {0: [VIEW]}
    assert find_turns([_one((12, 96), (8, 2, 96))]) == {}


def test_axes_may_be_turned_and_cut_at_once() -> None:
    """Channels first as an image, channels last as a row of patches."""
    image = np.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)
    rows = image.transpose(0, 2, 3, 1).reshape(2, 20, 3)
    for one, other in ((image, rows), (rows, image), (image[:1], rows[:1]), (rows[:1], image[:1])):
        ways = find_turns([_one(one.shape, other.shape)])[0]
        host, like = (HostTensor("float64", array.shape, array.reshape(-1)) for array in (one, other))
        assert np.array_equal(turned(host, ways, like).data, other.reshape(-1))
    assert not fits_shape((2, 3, 4, 5), (2, 20, 4))
    assert not fits_shape((8, 9, 5), (2, 6, 6, 5))  # windows of an image are no order of its axes


@settings(deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_every_order_of_axes_fits(shape: list[int], random: object) -> None:
    axes = list(range(len(shape)))
    random.shuffle(axes)  # type: ignore[attr-defined]
    other = tuple(shape[axis] for axis in axes)
    assert fits_shape(tuple(shape), other)
    for ways in find_turns([_one(tuple(shape), other)]).values():
        assert all(np.zeros(shape).transpose(way).shape == other for way in ways)
