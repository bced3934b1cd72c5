"""The two runs that come with TwinProbe: the planted fault is the first divergence, and nothing else is."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from twinprobe._compare.one import Comparison, compare_paths

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FAULT = "Module.layers.1.post_norm.Norm.forward.0"


def compare(target: Path, golden: Path) -> Comparison:
    return compare_paths(target / "step0/rank0/dump.json", golden / "step0/rank0/dump.json")


def test_the_planted_fault_is_the_first_divergence() -> None:
    found = compare(EXAMPLES / "demo/target", EXAMPLES / "demo/golden")
    first = found.summary.first
    assert first is not None
    assert (first.op, first.origin) == (FAULT, "injected")
    assert "examples/tiny_transformer.py" in first.stack_line
    assert "self.mlp(self.post_norm(x))" in first.stack_line
    assert (found.summary.target_only, found.summary.golden_only) == (0, 0)


def test_everything_before_the_fault_is_equal_to_the_bit() -> None:
    table = compare(EXAMPLES / "demo/target", EXAMPLES / "demo/golden").table()
    names = table["NPU Name"].to_list()
    at = names.index(f"{FAULT}.output.0")
    assert table["Result"].to_list()[:at] == ["pass"] * at
    assert table["Relative Error"].cast(float).fill_null(0).to_list()[:at] == [0.0] * at


def test_the_files_are_small_and_name_no_machine() -> None:
    files = [path for path in (EXAMPLES / "demo").rglob("*") if path.is_file()]
    assert sorted({path.name for path in files}) == ["construct.json", "dump.json", "stack.json"]
    assert sum(path.stat().st_size for path in files) < 400_000
    for path in files:
        if path.name == "stack.json":
            for _, frames in json.loads(path.read_text(encoding="utf-8")).values():
                assert all(frame.startswith(("File examples/", "File site-packages/torch/")) for frame in frames)


def test_the_demo_ends_with_the_first_divergence_and_the_file_to_open(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "demo", tmp_path / "examples" / "demo")
    shutil.copy(EXAMPLES.parent / "demo", tmp_path)
    tools = tmp_path / ".demo-env" / "bin"  # installed already: this Python's own environment
    tools.mkdir(parents=True)
    (tmp_path / ".demo-env" / "ready").touch()
    for name, program in (("python", ""), ("twinprobe", "-c 'import twinprobe._cli as c; exit(c.main())'")):
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {program} "$@"\n')
        (tools / name).chmod(0o755)
    done = subprocess.run([tmp_path / "demo"], capture_output=True, text=True, timeout=600, check=True)
    *_, divergence, file = done.stdout.splitlines()
    assert divergence == f"The two runs diverge at {FAULT}, examples/tiny_transformer.py, line 98."
    assert [tmp_path / file.split()[1]] == list((tmp_path / "demo_output").glob("compare_result*.html"))


@pytest.mark.slow
def test_the_runs_can_be_made_again(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, str(EXAMPLES / "make_demo.py"), str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    for side in ("golden", "target"):
        again = compare(tmp_path / side, EXAMPLES / "demo" / side)
        assert again.summary.first is None or again.summary.verdicts["error"] == 0
        assert (again.summary.target_only, again.summary.golden_only) == (0, 0)
