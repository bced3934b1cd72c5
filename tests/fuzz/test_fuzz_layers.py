"""Fuzzing layer mappings, alone and in a comparison."""

from __future__ import annotations

import pytest
from fuzz_trial import fuzz


@pytest.mark.parametrize("name", ["layer_mapping", "mapped_compare"])
def test_only_our_own_errors_leave_a_reader(name: str) -> None:
    fuzz(name)
