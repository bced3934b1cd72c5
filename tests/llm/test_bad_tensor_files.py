"""One bad tensor file is one row with a reason; the rest goes on, and nobody waits for ever."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from llm_command import Run, report
from llm_dumps import write_pth


def spoil_truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def spoil_dtype(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"dtype=1\n", b"dtype=77\n"))


def spoil_description(path: Path) -> None:
    path.write_bytes(path.read_bytes().partition(b"$End=1\n")[0] + b"$End=1\n")


def spoil_link_out(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/hostname")


def spoil_link_circle(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def spoil_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def spoil_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def spoil_empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(
    "spoil",
    [spoil_truncated, spoil_dtype, spoil_description, spoil_link_out, spoil_link_circle, spoil_fifo, spoil_folder,
     spoil_empty],
)  # fmt: skip
def test_one_bad_file_is_one_row_with_a_reason(
    llm: Run, dumps: tuple[Path, Path], tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    golden, mine = dumps
    spoil(mine / "2_CommonLayer" / "1_Attention" / "after" / "outtensor0.bin")
    said = llm("compare", "-gp", golden, "-mp", mine, "-o", tmp_path / "o")
    assert said.code == 0, said.err
    bad = [row for row in report(tmp_path / "o") if row["Result"] != "pass"]
    assert all("2_CommonLayer/1_Attention" in row["my_data_path"] or not row["my_data_path"] for row in bad)
    reasons = [row["cmp_fail_reason"] for row in bad if row["my_data_path"]]
    assert len(reasons) <= 1
    assert all(reasons)


def test_links_that_stay_inside_the_dump_are_tensors_like_any_other(
    llm: Run, dumps: tuple[Path, Path], tmp_path: Path
) -> None:
    golden, mine = dumps
    linked = mine / "2_CommonLayer" / "before" / "intensor0.bin"
    target = mine / "1_CommonLayer" / "after" / "outtensor0.bin"
    linked.unlink()
    linked.symlink_to(os.path.relpath(target, linked.parent))
    assert llm("compare", "-gp", golden, "-mp", mine, "-o", tmp_path / "o", "--workers", 2).code == 0
    assert {row["Result"] for row in report(tmp_path / "o")} == {"pass"}


def test_sizes_that_differ_stay_in_the_report(llm: Run, dumps: tuple[Path, Path], tmp_path: Path) -> None:
    golden, mine = dumps
    write_pth(golden / "root.lm_head" / "output.pth", np.ones((1, 4, 7), np.float32))
    assert llm("compare", "-gp", golden, "-mp", mine, "-o", tmp_path / "o").code == 0
    rows = [
        row for row in report(tmp_path / "o") if "LmHead" in row["my_data_path"] or "lm_head" in row["golden_data_path"]
    ]
    assert rows
    assert any(row["Result"] != "pass" and row["cmp_fail_reason"] for row in rows)
