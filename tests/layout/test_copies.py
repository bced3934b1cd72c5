"""When the pieces that two ranks hold are copies of one value."""

from __future__ import annotations

import pytest

from twinprobe._layout.pieces import Piece, same

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
