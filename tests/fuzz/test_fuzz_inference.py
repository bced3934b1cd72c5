"""Fuzzing trees and statistics of inference runs."""

from __future__ import annotations

import pytest
from fuzz_trial import fuzz


@pytest.mark.parametrize("name", ["model_tree", "topology", "llm_statistics"])
def test_only_our_own_errors_leave_a_reader(name: str) -> None:
    fuzz(name)
