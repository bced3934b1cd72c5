"""The difference columns, case by case, as the format's table defines them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support import forward, tensor, value, write_dump
from twinprobe._compare.one import compare_paths

NAN, INF = float("nan"), float("inf")


def row(tmp_path: Path, ours: Any, theirs: Any) -> dict[str, Any]:
    paths = [
        write_dump(tmp_path / side, {"Torch.f.0.forward": forward([leaf], [])})
        for side, leaf in (("t", ours), ("g", theirs))
    ]
    return compare_paths(*paths).table().row(0, named=True)


@pytest.mark.parametrize(
    ("ours", "theirs", "difference", "relative"),
    [
        (3.0, 2.0, "1.0", "50.0%"),
        (-1.0, 2.0, "-3.0", "150.0%"),
        (1e-10, 4e-10, "-3e-10", "75.0%"),
        (2.0, 0.0, "2.0", "inf"),
        (0, 0.0, "0.0", "inf"),
        (7, 7, "0", "0"),
        (7, 8, "-1.0", "12.5%"),
        (0.5, 0.5, "0", "0"),
        (NAN, NAN, "0", "0"),
        (NAN, 1.0, "Nan", "Nan"),
        (1.0, NAN, "Nan", "Nan"),
        (NAN, INF, "Nan", "Nan"),
        (INF, INF, "0", "0"),
        (INF, 1.0, "inf", "inf"),
        (INF, -INF, "inf", "inf"),
        (-INF, 1.0, "-inf", "-inf"),
        (-INF, INF, "-inf", "-inf"),
        (1.0, INF, "-inf", "-inf"),
        (1.0, -INF, "inf", "inf"),
        (None, None, "0", "0"),
        (None, 1.0, "Diff", "Diff"),
        (True, True, "0", "0"),
        (True, False, "Diff", "Diff"),
    ],
)
def test_two_recorded_maxima(tmp_path: Path, ours: Any, theirs: Any, difference: str, relative: str) -> None:
    found = row(tmp_path, tensor(Max=ours), tensor(Max=theirs))
    assert (found["Max diff"], found["MaxRelativeErr"]) == (difference, relative)


@pytest.mark.parametrize(
    ("ours", "theirs", "difference"),
    [("sum", "sum", "0"), ("sum", "mean", "Diff"), ("cpu", "cpu", "0"), ("npu:0", "cuda:0", "N/A"), ("x", 1, "Diff")],
)
def test_two_recorded_texts(tmp_path: Path, ours: Any, theirs: Any, difference: str) -> None:
    found = row(tmp_path, value(ours), value(theirs))
    assert (found["Max diff"], found["MaxRelativeErr"]) == (difference, difference)


def test_a_row_without_a_counterpart_is_not_applicable(tmp_path: Path) -> None:
    left = write_dump(tmp_path / "t", {"Torch.f.0.forward": forward([tensor()], [])})
    right = write_dump(tmp_path / "g", {"Torch.g.0.forward": forward([tensor()], [])})
    ours, theirs = compare_paths(left, right).table().to_dicts()
    assert ours["Bench Name"] == ours["Max diff"] == ours["Bench max"] == "N/A"
    assert theirs["NPU Name"] == theirs["NPU max"] == "N/A"
    assert theirs["Bench Name"] == "Torch.g.0.forward.input.0"
