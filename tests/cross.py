"""Comparing recordings of the small transformer made in different frameworks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twinprobe._align.mapping import MappingOptions
from twinprobe._align.matcher import build_matcher
from twinprobe._compare.one import Comparison, Options, compare_paths

DATA = Path(__file__).parent / "data" / "cross"


def compared(target: Path, golden: Path, mapping: str) -> Comparison:
    """Compare two recordings under a layer mapping of tests/data/cross."""
    options = Options(match=build_matcher(MappingOptions(layer=DATA / mapping, align="none")))
    return compare_paths(_index(target), _index(golden), options)


def _index(folder: Path) -> Path:
    (found,) = folder.glob("step0/*/dump.json")
    return found


def forward_rows(comparison: Comparison, part: str) -> list[dict[str, Any]]:
    """The target's forward rows of one part: input, output or parameters; those without a partner too."""
    split = ((str(row["NPU Name"]).partition(".forward."), row) for row in comparison.table().to_dicts())
    return [row for (_, _, tail), row in split if part in tail.split(".")]


def assert_forward_agrees(comparison: Comparison, *, calls: int, parts: tuple[str, ...]) -> None:
    """Every forward call of the target has a partner, and these parts of it agree within float32 rounding."""
    assert len(forward_rows(comparison, "output")) == calls
    for part in parts:
        for row in forward_rows(comparison, part):
            assert row["Bench Name"] not in (None, "N/A"), row["NPU Name"]
            assert row["Result"] == "pass", (row["NPU Name"], row["Err_message"])


def assert_fault_found(comparison: Comparison, spoiled: str) -> None:
    """The first output that differs is the spoiled call's, and none of the calls that follow it is said to agree."""
    outputs = forward_rows(comparison, "output")
    differing = [at for at, row in enumerate(outputs) if row["Result"] != "pass"]
    assert differing, "no output differs"
    assert outputs[differing[0]]["NPU Name"].startswith(spoiled), outputs[differing[0]]
    assert differing == list(range(differing[0], len(outputs)))
