"""The pytest plugin: a fixture that fails when numbers move, with a stored baseline."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from twinprobe.testing import Twin, assert_models_agree, assert_runs_agree

TESTS = """
import numpy as np

def test_arrays(twin):
    twin.check({{"x": np.arange(4.0) * {scale}}}, "x")

def test_plain():
    pass
"""


def run(folder: Path, *words: str, scale: float = 1.0, **environment: str) -> str:
    (folder / "test_numbers.py").write_text(TESTS.format(scale=scale))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "twinprobe.testing", "-p", "no:cacheprovider", *words]
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    return done.stdout + done.stderr


def test_a_baseline_is_stored_and_guards_the_numbers(tmp_path: Path) -> None:
    assert "2 passed" in run(tmp_path, "--twin-update")
    assert [path.name for path in (tmp_path / "__twin__").rglob("*.json")] == ["debug.json"]
    fresh = "import numpy\ndef test_fresh(twin):\n    twin.check({'x': numpy.ones(2)})\n"
    (tmp_path / "test_fresh.py").write_text(fresh)
    page = tmp_path / "page.md"
    shown = run(tmp_path, scale=2.0, GITHUB_STEP_SUMMARY=str(page))
    assert "2 failed, 1 passed" in shown
    assert "store one with: pytest --twin-update" in shown  # test_fresh has no baseline
    assert "first divergence" in shown
    # with CI set, pytest's short summary shows the whole message once more
    (report,) = {line.split()[-1] for line in shown.splitlines() if line.startswith("report: ")}
    assert Path(report).read_text().startswith("<!")
    assert "### test_numbers.py::test_arrays" in page.read_text()
    assert "first divergence" in page.read_text()


def test_what_a_model_computes_is_guarded(tmp_path: Path) -> None:
    def step(scratch: str, scale: float, *, update: bool = False) -> None:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
        model[2].weight.data *= scale
        with Twin(tmp_path / "store", tmp_path / scratch, update=update).record(model):
            model(torch.ones(3, 4)).sum().backward()

    step("first", 1.0, update=True)
    stored = list((tmp_path / "store").rglob("*.json"))
    assert {path.name for path in stored} == {"dump.json", "construct.json"}
    assert sum(path.stat().st_size for path in stored) < 50_000
    step("second", 1.0)
    with pytest.raises(pytest.fail.Exception, match=r"first divergence(.|\n)*linear(.|\n)*report: .*\.html"):
        step("third", 1.5)


def test_nothing_is_loaded_when_nothing_is_used(tmp_path: Path) -> None:
    program = "import sys, twinprobe.testing\nprint({'numpy', 'polars', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "set()"


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\ntwinprobe = "twinprobe.testing"' in text


def test_runs_that_agree_and_runs_that_do_not(tmp_path: Path) -> None:
    golden = {"x": np.ones(4), "y": np.arange(3.0)}
    assert assert_runs_agree(golden, golden).agrees
    assert assert_runs_agree({**golden, "x": np.ones(4) * (1 + 1e-9)}, golden, noise=1e8)
    with pytest.raises(pytest.fail.Exception, match=r"first divergence(.|\n)*report: .*\.html"):
        assert_runs_agree({**golden, "y": np.arange(3.0) + 1}, golden, report=tmp_path)


def test_models_that_agree_and_models_that_do_not() -> None:
    def build(activation: nn.Module) -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 8), activation, nn.Linear(8, 2))

    inputs = torch.ones(3, 4)
    assert assert_models_agree(build(nn.GELU()), build(nn.GELU()), inputs)
    with pytest.raises(pytest.fail.Exception, match="GELU"):
        assert_models_agree(build(nn.GELU("tanh")), build(nn.GELU()), inputs)
