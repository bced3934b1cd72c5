"""An unchanged script is recorded: the first model seen, steps by the optimizer, exit codes and errors as ever."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from twinprobe._record.run_script import run_script
from twinprobe.errors import BadInput
from warm_python import run_warm

# What `twinprobe run` does, without the choice of a command before it.
COMMAND = """
import argparse, sys
from twinprobe._cli import run
from twinprobe.errors import TwinProbeError
parser = argparse.ArgumentParser()
run.add_arguments(parser)
try:
    code = run.run(parser.parse_args())
except TwinProbeError as error:
    print("refused:", error, file=sys.stderr)
    code = 2
sys.exit(code)
"""

TRAIN = """
import sys
import torch
from helper import make_model
print("arguments", sys.argv[1:], __name__)
torch.manual_seed(0)
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss_function = torch.nn.MSELoss()
loss_function(torch.ones(2), torch.zeros(2))
for step in range(3):
    for part in range(2):
        loss_function(model(torch.ones(2, 4) + part), torch.zeros(2, 3)).backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.ones(3).exp()
print("sum", float(sum(one.sum() for one in model.parameters())))
"""
HELPER = """
import torch
def make_model():
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
"""


def write_files(folder: Path, script: str = TRAIN, **config: Any) -> None:
    (folder / "train.py").write_text(script, encoding="utf-8")
    (folder / "helper.py").write_text(HELPER, encoding="utf-8")
    document = {"dump_path": str(folder / "dump"), "level": "mix", **config}
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")


def start(folder: Path, *words: str, config: bool = True) -> subprocess.CompletedProcess[str]:
    variables = {key: value for key, value in os.environ.items() if key != "TWINPROBE_CONFIG"}
    if config:
        variables["TWINPROBE_CONFIG"] = str(folder / "config.json")
    return run_warm(COMMAND, *words, folder=folder, environment=variables)


def names(folder: Path, step: int) -> list[str]:
    (index,) = (folder / "dump" / f"step{step}").glob("*/dump.json")
    return list(json.loads(index.read_text(encoding="utf-8"))["data"])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("recorded")
    write_files(folder)
    return folder, start(folder, "train.py", "--lr", "0.1", "-x")


def test_a_script_is_recorded_step_by_step(recorded: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    tmp_path, done = recorded
    plain = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.returncode == 0, done.stderr
    assert "arguments ['--lr', '0.1', '-x'] __main__" in done.stdout
    assert done.stdout.splitlines()[-1] == plain.stdout.splitlines()[-1]
    assert sorted(one.name for one in (tmp_path / "dump").iterdir()) == ["step0", "step1", "step2"]
    first = names(tmp_path, 0)
    assert first == names(tmp_path, 2)
    assert {"Module.0.Linear.forward.1", "Module.2.Linear.backward.1", "Functional.mse_loss.1.forward"} <= {*first}
    assert any(name.startswith("Tensor.add_") or "_foreach" in name for name in first)
    assert not any("exp" in name for name in first)
    assert "the first model seen is Sequential" in done.stderr
    assert str(tmp_path / "dump") in done.stderr.splitlines()[-1]


def test_what_the_optimizer_saw_and_did_is_there(recorded: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """The step that the optimizer ends is recorded with what it did: its gradients, rate and new parameters."""
    (after,) = (recorded[0] / "dump" / "step0").glob("*/optimizer.json")
    (later,) = (recorded[0] / "dump" / "step1").glob("*/optimizer.json")
    name = "Optimizer.0.weight.SGD.0.forward"
    first, second = (json.loads(file.read_text(encoding="utf-8"))["data"][name] for file in (after, later))
    assert first["input_kwargs"]["lr"]["value"] == 0.1
    assert first["output"][0]["Norm"] == second["parameters"]["before"]["Norm"]
    assert first["output"][0]["Norm"] != first["parameters"]["before"]["Norm"]


def test_a_module_is_run_by_name_and_a_config_may_be_given(tmp_path: Path) -> None:
    write_files(tmp_path)
    done = start(tmp_path, "--config", "config.json", "-m", "train", "--flag", config=False)
    assert done.returncode == 0, done.stderr
    assert "arguments ['--flag'] __main__" in done.stdout
    assert len(names(tmp_path, 1)) > 10


def test_without_an_optimizer_everything_is_one_step(tmp_path: Path) -> None:
    write_files(
        tmp_path, "from helper import make_model\nimport torch\nm = make_model()\nfor i in range(3): m(torch.ones(4))\n"
    )
    assert start(tmp_path, "train.py").returncode == 0
    assert {"Module.0.Linear.forward.2"} <= {*names(tmp_path, 0)}
    assert not (tmp_path / "dump" / "step1").exists()


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        pytest.param("import sys; sys.exit(7)", 7, "", marks=pytest.mark.slow),
        pytest.param("raise SystemExit('enough')", 1, "enough", marks=pytest.mark.slow),
        ("def f():\n    raise KeyError('lost')\nf()", 1, "KeyError: 'lost'"),
    ],
)
def test_the_script_ends_as_it_would_alone(tmp_path: Path, ending: str, code: int, said: str) -> None:
    write_files(tmp_path, f"{TRAIN}\n{ending}\n")
    done = start(tmp_path, "train.py")
    assert done.returncode == code
    assert said in done.stderr
    assert "run_script" not in done.stderr
    assert len(names(tmp_path, 2)) > 10


def test_a_script_without_a_model_is_told_so(tmp_path: Path) -> None:
    write_files(tmp_path, "print(1 + 1)")
    done = start(tmp_path, "train.py")
    assert (done.returncode, done.stdout) == (0, "2\n")
    assert "nothing was recorded" in done.stderr


def test_what_cannot_be_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TWINPROBE_CONFIG", raising=False)

    def refused(script: str, words: str, level: str = "mix") -> None:
        write_files(tmp_path, level=level)
        with pytest.raises(BadInput, match=re.escape(words)):
            run_script([script])

    refused(
        "train.py",
        "there is no configuration that says what to record (--config config.json, or TWINPROBE_CONFIG=config.json",
    )
    monkeypatch.setenv("TWINPROBE_CONFIG", str(tmp_path / "config.json"))
    refused("missing.py", "missing.py: there is no such script")
    refused("train.py", "level debug", level="debug")
    refused("train.py", "key 'level' is 'L7' (allowed: L0, L1, mix, debug, watch)", level="L7")


def test_an_earlier_dump_is_refused_before_the_script_starts(
    recorded: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    done = start(recorded[0], "train.py")
    assert done.returncode == 2
    assert "holds an earlier dump" in done.stderr
    assert done.stdout == ""
