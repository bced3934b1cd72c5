"""Fuzzing lists of kernels."""

from __future__ import annotations

import pytest
from fuzz_trial import fuzz


@pytest.mark.parametrize("name", ["kernel_statistics", "kernel_names"])
def test_only_our_own_errors_leave_a_reader(name: str) -> None:
    fuzz(name)
