"""Fuzzing mapping files of names."""

from __future__ import annotations

import pytest
from fuzz_trial import fuzz


@pytest.mark.parametrize("name", ["api_mapping", "cell_mapping", "data_mapping"])
def test_only_our_own_errors_leave_a_reader(name: str) -> None:
    fuzz(name)
