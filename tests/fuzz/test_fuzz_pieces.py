"""Fuzzing the ways in which large files are read."""

from __future__ import annotations

import pytest
from fuzz_trial import fuzz


@pytest.mark.parametrize("name", ["dump_in_pieces", "stack_in_pieces", "construct_in_pieces", "alignment_in_pieces"])
def test_only_our_own_errors_leave_a_reader(name: str) -> None:
    fuzz(name)
