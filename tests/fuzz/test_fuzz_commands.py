"""Fuzzing whole commands."""

from __future__ import annotations

import pytest
from fuzz_trial import fuzz


@pytest.mark.parametrize("name", ["compare_command", "graph_command"])
def test_only_our_own_errors_leave_a_reader(name: str) -> None:
    fuzz(name)
