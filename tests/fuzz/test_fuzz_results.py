"""Fuzzing results to merge."""

from __future__ import annotations

import pytest
from fuzz_trial import fuzz


@pytest.mark.parametrize("name", ["result_csv", "result_xlsx", "result_parquet"])
def test_only_our_own_errors_leave_a_reader(name: str) -> None:
    fuzz(name)
