"""Result files have the names that people's scripts look for."""

from __future__ import annotations

import re

import pytest

from twinprobe._report.files import part_name, result_stem, timestamp_now


@pytest.mark.parametrize(
    ("rank", "debug", "stem"),
    [
        ("", False, "compare_result_20260102030405"),
        ("rank0", False, "compare_result_rank0_20260102030405"),
        ("rank", False, "compare_result_rank_20260102030405"),
        ("proc12345", False, "compare_result_proc12345_20260102030405"),
        ("", True, "debug_compare_result_20260102030405"),
        ("rank1", True, "debug_compare_result_rank1_20260102030405"),
    ],
)
def test_a_result_is_named_after_rank_and_time(rank: str, debug: bool, stem: str) -> None:
    assert result_stem("20260102030405", rank, debug=debug) == stem


def test_the_timestamp_has_fourteen_digits() -> None:
    assert re.fullmatch(r"20\d{12}", timestamp_now())
    with pytest.raises(ValueError, match="14 digits"):
        result_stem("2026-01-02")


def test_a_rank_folder_cannot_lead_out_of_the_output_folder() -> None:
    with pytest.raises(ValueError, match="one name"):
        result_stem("20260102030405", "../rank0")


def test_parts_are_counted_from_one() -> None:
    assert part_name("compare_result_20260102030405.csv", 1) == "compare_result_20260102030405_part_1.csv"
