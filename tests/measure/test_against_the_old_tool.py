"""The six metrics equal those that msprobe printed for real dumps, cell by cell."""

from __future__ import annotations

import ast
import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from twinprobe._measure.loops.sums import Engine
from twinprobe._measure.pair import measure_pair
from twinprobe._measure.statistics import crc32, xor64
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe._runs.tensors.tensor_files import open_tensor

COLUMNS = {
    "Cosine": "cosine",
    "EucDist": "euclid",
    "MaxAbsErr": "max_abs",
    "MaxRelativeErr": "max_rel",
    "One Thousandth Err Ratio": "one_thousandth",
    "Five Thousandths Err Ratio": "five_thousandths",
}


@pytest.mark.parametrize("case", ["L0_tensor", "L1_tensor", "debug_tensor"])
def test_metrics_of_real_dumps_are_those_of_msprobe(reference: Path, engine: Engine, case: str) -> None:
    target, golden = [min((reference / "msprobe/dumps" / f"{case}_{side}").rglob("dump_tensor_data")) for side in "ba"]
    (table,) = (reference / "msprobe/results" / case).glob("*.csv")
    compared = 0
    with table.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            names = ast.literal_eval(row["Data_name"])
            if "-1" in names:
                continue
            found = measure_pair(open_tensor(target / names[0]), open_tensor(golden / names[1]), engine=engine)
            for column, field in COLUMNS.items():
                ours = getattr(found, field)
                if ours is None:
                    assert row[column] == "unsupported", (row["NPU Name"], column)
                else:
                    assert ours == pytest.approx(float(row[column]), rel=1e-9), (row["NPU Name"], column)
            compared += 1
    assert compared >= 5


@pytest.mark.parametrize(
    ("tensors", "checksums", "digest", "at_least"),
    [("L0_tensor_a", "L0_md5_a", crc32, 150), ("L1_tensor_a", "mix_xor_a", xor64, 200)],
)
def test_checksums_of_real_tensors_are_those_of_msprobe(
    reference: Path, tensors: str, checksums: str, digest: Callable[[HostTensor], str | float], at_least: int
) -> None:
    saved, summed = [min((reference / "msprobe/dumps" / name).rglob("dump.json")) for name in (tensors, checksums)]
    wanted = json.loads(summed.read_text())["data"]
    compared = 0
    for name, entry in json.loads(saved.read_text())["data"].items():
        # Tensor.add_ changed its input before it was saved; backward calls are numbered differently in the two levels.
        if name.startswith("Tensor.add_.") or (checksums == "mix_xor_a" and "backward" in name):
            continue
        for ours, theirs in zip(leaves(entry), leaves(wanted[name]), strict=True):
            if "data_name" in ours:
                tensor = open_tensor(saved.parent / "dump_tensor_data" / ours["data_name"])
                assert digest(tensor) == theirs["md5"], ours["data_name"]
                compared += 1
    assert compared >= at_least


def leaves(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        yield value
    elif isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from leaves(inner)
