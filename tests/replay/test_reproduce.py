"""The folder that shows a call's fault to others: its script runs with PyTorch alone."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from operations import FEW, OPERATIONS, REST, All, tensors
from replay_tools import Faulty, record

import twinprobe
import twinprobe.torch
from support import slow
from twinprobe._cli import main


@pytest.fixture(scope="session")
def all_operations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("operations") / "run"
    model = All()
    with twinprobe.torch.record(model, folder, level="L1", task="tensor", risk_level="ALL"):
        model(tensors()).backward()
    return folder


def run_script(folder: Path, *words: str) -> int:
    """The exit code of the script."""
    before = sys.argv
    sys.argv = ["reproduce.py", *words]
    try:
        runpy.run_path(str(folder / "reproduce.py"), run_name="__main__")
    except SystemExit as stop:
        return int(stop.code or 0)
    finally:
        sys.argv = before
    raise AssertionError("the script has no exit code")


def break_kernel(operation: str, patch: pytest.MonkeyPatch) -> None:
    """Make a function of PyTorch wrong by 1 % in its own dtype; float64 stays right."""
    kind, *inner, name = operation.split(".")
    space: Any = {"Functional": torch.nn.functional, "Torch": torch, "Tensor": torch.Tensor}[kind]
    for part in inner:
        space = getattr(space, part)
    right = getattr(space, name)

    def wrong(*args: Any, **kwargs: Any) -> Any:
        result = right(*args, **kwargs)
        first = result[0] if isinstance(result, tuple) else result
        if first.dtype == torch.float64:
            return result
        off = torch.sub(first, first, alpha=0.01)
        return (off, *result[1:]) if isinstance(result, tuple) else off

    patch.setattr(space, name, wrong)


@pytest.mark.parametrize("operation", [*FEW, *slow(*REST)])
def test_the_script_exits_1_while_the_kernel_is_wrong(
    operation: str, all_operations: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = twinprobe.open(all_operations)
    call = next(name for name in run.ops if name.startswith(f"{operation}.") and name.endswith("forward"))
    found = twinprobe.reproduce(run, call=call, output_path=tmp_path / "out")
    assert found.replay.off == "neither", found.replay.summary
    assert "kind of difference" not in (tmp_path / "out/README.md").read_text()  # noise is none
    lines = (tmp_path / "out/reproduce.py").read_text().splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 140
    assert run_script(tmp_path / "out") == 0
    break_kernel(operation, monkeypatch)
    assert run_script(tmp_path / "out") == 1


def test_there_are_enough_operations() -> None:
    assert len(OPERATIONS) >= 40


def test_a_wrong_gradient_is_shown(golden: Path, two_faults: Path, tmp_path: Path) -> None:
    """The fault of the recording is in a fresh process no more; the recorded values still show it."""
    args = [str(two_faults), str(golden), "--call", "Functional.softmax.3.forward", "-o", str(tmp_path / "out")]
    assert main(["reproduce", *args, "--quiet"]) == 0
    assert run_script(tmp_path / "out") == 0
    assert run_script(tmp_path / "out", "recorded") == 1
    text = (tmp_path / "out/README.md").read_text()
    for word in (
        "torch.nn.functional.softmax",
        "float32",
        "[2, 12, 12]",
        torch.__version__,
        "cpu",
        "kind of difference",
    ):
        assert word in text


def test_shrinking_leaves_the_wrong_row_only(golden: Path, tmp_path: Path) -> None:
    def one_row(out: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros_like(out)
        mask[1, 5, 7] = 0.01
        return out + mask

    target = record(tmp_path / "run", {("linear", 6): one_row})
    found = twinprobe.reproduce(
        target, golden, call="Functional.linear.6.forward", output_path=tmp_path / "out", shrink=True
    )
    assert found.replay.off == "target"
    assert found.shapes == {"input.0": [1, 1, 16], "input.1": [1, 16], "input.2": [1]}
    assert run_script(tmp_path / "out", "recorded") == 1
    header = (tmp_path / "out/inputs.safetensors").read_bytes()
    size = int.from_bytes(header[:8], "little")
    assert json.loads(header[8 : 8 + size])["recorded"]["shape"] == [1, 1, 1]


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(32, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.reshape(2, 12, 4, 8).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).sum()


def test_shrinking_keeps_one_head_and_all_tokens_under_a_causal_mask(tmp_path: Path) -> None:
    """The mask counts places: a later slice of the tokens would be another call."""

    def one_token(out: torch.Tensor) -> torch.Tensor:
        wrong = torch.zeros_like(out)
        wrong[1, 2, 7] = 0.1
        return out + wrong

    torch.manual_seed(0)
    model = Attention()
    with (
        Faulty({("scaled_dot_product_attention", 0): one_token}),
        twinprobe.torch.record(model, tmp_path / "run", level="L1", task="tensor"),
    ):
        model(torch.randn(2, 12, 32)).backward()
    call = "Functional.scaled_dot_product_attention.0.forward"
    found = twinprobe.reproduce(tmp_path / "run", call=call, output_path=tmp_path / "out", shrink=True)
    assert [shape[:3] for shape in found.shapes.values()] == [[1, 1, 12]] * 3
    assert run_script(tmp_path / "out", "recorded") == 1
