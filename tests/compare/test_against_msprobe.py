"""Cell by cell: our tables hold what the older tool computed for the same dumps."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from twinprobe._compare.one import compare_paths

# Verdicts are ours: the documented rules, applied to what the older tool leaves out or gets wrong.
OURS = {"Result", "Err_message"}
CASES = ["L0_stat", "L1_stat", "L0_md5", "L1_md5", "L0_tensor", "L1_tensor", "debug_stat", "debug_tensor"]


def our_table(dumps: Path, case: str) -> list[dict[str, object]]:
    target, golden = (next((dumps / f"{case}_{side}" / "step0").iterdir()) for side in "ba")
    return compare_paths(target, golden).table().to_dicts()


def their_table(results: Path, case: str) -> list[dict[str, str]]:
    with next((results / case).glob("*.csv")).open(newline="") as file:
        return list(csv.DictReader(file))


def same(ours: object, theirs: str) -> bool:
    if ours == theirs.strip():  # infinities stand behind a blank in their csv
        return True
    try:
        # Sums may be taken in another order; nothing else may differ.
        return abs(float(str(ours)) - float(theirs)) <= 1e-12 * max(1.0, abs(float(theirs)))
    except ValueError:
        return False


@pytest.mark.parametrize("case", CASES)
def test_every_old_column_holds_the_old_value(reference: Path, case: str) -> None:
    theirs = their_table(reference / "msprobe/results", case)
    ours = our_table(reference / "msprobe/dumps", case)
    old = list(theirs[0])
    assert list(ours[0])[: len(old)] == old
    assert len(ours) == len(theirs)
    wrong = [
        (row["NPU Name"], column, mine[column], row[column])
        for mine, row in zip(ours, theirs, strict=True)
        for column in old
        if column not in OURS and not same(mine[column], row[column])
    ]
    assert wrong == []


@pytest.mark.parametrize("case", CASES)
def test_new_columns_come_after_the_old_ones(reference: Path, case: str) -> None:
    old = list(their_table(reference / "msprobe/results", case)[0])
    ours = list(our_table(reference / "msprobe/dumps", case)[0])
    new = ["Reason", "Origin", "Matched By", "Relative Error", "Error (eps)", "Expected (eps)", "Times noise"]
    weighed = "md5" not in case
    assert ours[len(old) :] == (new if weighed else new[:4])


@pytest.mark.parametrize(
    ("case", "op"),
    [
        ("L0_stat", "Module.model.layers.1.mlp.up_proj.Linear.forward.0"),
        ("L0_tensor", "Module.model.layers.1.mlp.up_proj.Linear.forward.0"),
        ("L0_md5", "Module.model.layers.1.mlp.up_proj.Linear.forward.0"),
        ("L1_stat", "Functional.linear.12.forward"),
        ("L1_tensor", "Functional.linear.12.forward"),
        ("L1_md5", "Functional.linear.12.forward"),
        ("mix_stat", "Functional.linear.12.forward"),
    ],
)
def test_the_planted_fault_is_the_first_divergence(reference: Path, case: str, op: str) -> None:
    dumps = reference / "msprobe/dumps"
    target, golden = (next((dumps / f"{case}_{side}" / "step0").iterdir()) for side in "ba")
    first = compare_paths(target, golden).summary.first
    assert first is not None
    assert first.op == op
    assert first.origin == "injected"


@pytest.mark.parametrize("case", ["L0_stat", "L1_tensor", "mix_md5", "debug_tensor", "weird_all", "mix_xor"])
def test_a_run_against_itself_only_passes(reference: Path, case: str) -> None:
    folder = next(reference.glob(f"msprobe/dumps/{case}*/step0/*"))
    summary = compare_paths(folder, folder).summary
    assert summary.verdicts == {"pass": summary.rows, "warning": 0, "error": 0}
    assert summary.first is None
