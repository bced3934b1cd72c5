"""Fuzzing what lies beside a dump.json."""

from __future__ import annotations

import pytest
from fuzz_trial import fuzz


@pytest.mark.parametrize("name", ["stack", "construct", "alignment"])
def test_only_our_own_errors_leave_a_reader(name: str) -> None:
    fuzz(name)
