"""Fuzzing files of settings."""

from __future__ import annotations

import pytest
from fuzz_trial import fuzz


@pytest.mark.parametrize("name", ["merge_config", "compare_json", "op_mapping"])
def test_only_our_own_errors_leave_a_reader(name: str) -> None:
    fuzz(name)
