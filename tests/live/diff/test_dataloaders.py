"""check_dataloader: batches of any structure, and loaders of unequal length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from twinprobe._live.checks import check_dataloader
from twinprobe.errors import NothingToCompare


@dataclass
class Batch:
    pixels: torch.Tensor
    label: int


def batches(shift_at: int = -1) -> list[torch.Tensor]:
    return [torch.full((2, 3), float(at)) + (at == shift_at) for at in range(10)]


def test_equal_batches_agree_and_a_shifted_one_is_named() -> None:
    assert check_dataloader(batches(), batches(), quiet=True)
    result = check_dataloader(batches(), batches(shift_at=2), quiet=True)
    assert not result
    assert result.first.step == 2


def test_loaders_of_unequal_length_do_not_agree() -> None:
    result = check_dataloader(batches(), batches()[:7], quiet=True)
    assert not result
    assert "only the base loader has a batch 7" in result.first.why


@pytest.mark.parametrize(
    "make",
    [
        lambda x: (x, 3),
        lambda x: {"image": x, "more": [x, {"deep": x}]},
        lambda x: Batch(x, 1),
        lambda x: ("text", x.bool(), None),
        lambda x: x.numpy(),
        lambda x: x.bfloat16(),
    ],
)
def test_any_structure_of_a_batch(make) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    assert check_dataloader([make(x)], [make(x.clone())], quiet=True)
    assert not check_dataloader([make(x)], [make(x - 3)], quiet=True)


def test_other_keys_texts_and_arrays_against_tensors() -> None:
    x = torch.arange(6.0)
    assert check_dataloader([{"a": x}], [{"a": x.numpy()}], quiet=True)
    assert not check_dataloader([{"a": x}], [{"b": x}], quiet=True)
    assert not check_dataloader([("cat", x)], [("dog", x)], quiet=True)
    with pytest.raises(NothingToCompare):
        check_dataloader([], [])


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=8), st.integers(0, 7))
def test_a_single_changed_number_is_seen(values: list[float], place: int) -> None:
    array = np.array(values, dtype=np.float32)
    changed = array.copy()
    changed[place % len(values)] = 1e30 if changed[place % len(values)] != np.float32(1e30) else 0
    assert check_dataloader([array], [array.copy()], quiet=True)
    assert not check_dataloader([array], [changed], quiet=True)
