"""When the pieces that two ranks hold are copies of one value."""

from __future__ import annotations

import pytest

from twinprobe._layout.pieces import COPIES, PLAIN, SUM, Arithmetic, Piece, fitting_way, nearest, same, signature

MASKED = (1.108, -1e4, -4375.026, 149666.297)  # max, min, mean and norm of scores behind a mask


def pieces(*stats: tuple[float, float, float, float]) -> list[Piece]:
    return [Piece(rank, (rank,), (4, 2, 8, 8), values, None, None) for rank, values in enumerate(stats)]


@pytest.mark.parametrize(
    ("other", "copies"),
    [
        (MASKED, True),
        ((1.108 * (1 + 1e-7), -1e4, -4375.026, 149666.297), True),  # the rounding of a collective
        ((1.164, -1e4, -4374.954, 149666.297), False),  # other heads: a fill value hides them from the norm
        ((1.108, -1e4, -4300.0, 149666.297), False),
    ],
)
def test_a_fill_value_makes_no_copies(other: tuple[float, float, float, float], copies: bool) -> None:
    assert same(pieces(MASKED, other)) is copies


def quarters(*values: float) -> list[Piece]:
    """What four ranks hold, two by two along context and tensor parallelism: numbers, or parts of a sequence."""
    return [
        Piece(at, (0, 0, 0, at // 2, at % 2), (), (one, one, one, abs(one)), None, None)
        for at, one in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("values", "adds"), [((2.0, 2.0, 3.0, 3.0), True), ((2.0, 2.0, 3.1, 3.1), True), ((5.0, 5.0, 5.0, 5.0), False)]
)
def test_copies_of_a_part_of_the_loss_count_once(values: tuple[float, ...], adds: bool) -> None:
    mean = Arithmetic({"cp": [0.5, 0.5]}, {})
    found = nearest(5.0, quarters(*values), (COPIES, COPIES, COPIES, SUM, COPIES), (PLAIN, mean))
    assert (found is PLAIN) is adds


def test_ranks_with_other_words_hold_no_parts_of_one_sum() -> None:
    """Half of the sequence, of which the tensor parallel ranks have other numbers: nothing has reduced them."""
    places = tuple((piece.place, (4, 8, 32)) for piece in quarters(1.0, 2.0, 3.0, 4.0))
    way = fitting_way(places, (4, 16, 32), (False,) * 5, weight=False)
    assert way == (COPIES, COPIES, COPIES, 1, SUM)


def test_values_are_known_in_another_order_of_dimensions() -> None:
    """Norms and means that were added up in another order differ in their last digits."""
    one = Piece(0, (0,), (4, 2), (1.5, -2.0, 0.1, 3.0), None, None)
    other = Piece(0, (0,), (2, 4), (1.5, -2.0, 0.1000001, 3.0000002), None, None)
    assert signature([one]) == signature([other])
    assert signature([one]) != signature([other._replace(stats=(1.4, -2.0, 0.1, 3.0))])
