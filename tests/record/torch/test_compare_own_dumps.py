"""What we record, our compare reads: equal runs pass in every mode, and a planted fault is found at its place."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from twinprobe._cli import main
from twinprobe._compare.one import Comparison, compare_paths
from twinprobe.torch import PrecisionDebugger, record
from warm_python import run_warm


class Hidden(torch.autograd.Function):
    """A kernel of somebody else's: the recorder sees the module around it, not the inside."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.scale = scale
        return torch.from_numpy(x.detach().numpy() * scale)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.from_numpy(gradient.contiguous().numpy() * ctx.scale), None


class Scaled(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Hidden.apply(x, self.scale)


class ResidualBlock(nn.Module):
    def __init__(self, width: int, scale: float = 1.0) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.scaled = Scaled(scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x
        return self.relu(self.scaled(out))


class SmallResNet(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2))
        self.layers = nn.Sequential(ResidualBlock(8), ResidualBlock(8, scale))
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers(self.stem(x))
        return self.head(torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1))


def train_resnet(model: nn.Module) -> None:
    pictures = torch.linspace(-1, 1, 2 * 3 * 16 * 16).reshape(2, 3, 16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    nn.functional.cross_entropy(model(pictures), torch.tensor([1, 3])).backward()
    optimizer.step()


def make_gpt2(scale: float) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=60, n_positions=16, n_embd=16, n_layer=2, n_head=2, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0
    )
    model = transformers.GPT2LMHeadModel(config)
    model.transformer.h[1].mlp.dropout = Scaled(scale)
    return model  # type: ignore[no-any-return]


def train_gpt2(model: nn.Module) -> None:
    tokens = torch.arange(12).reshape(2, 6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(input_ids=tokens, labels=tokens).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


Train = Callable[[nn.Module], None]
NETWORKS: dict[str, tuple[Callable[[float], nn.Module], Train, str]] = {
    "resnet": (SmallResNet, train_resnet, "Module.layers.1.scaled.Scaled.forward.0"),
    "gpt2": (make_gpt2, train_gpt2, "Module.transformer.h.1.mlp.dropout.Scaled.forward.0"),
}


def run(network: str, path: Path, scale: float = 1.0, **options: Any) -> Path:
    make, train, _ = NETWORKS[network]
    torch.manual_seed(0)
    model = make(scale)
    with record(model, path, **options):
        train(model)
    (file,) = path.rglob("dump.json")
    return file


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("network", NETWORKS)
def test_equal_runs_only_pass(tmp_path: Path, network: str, level: str) -> None:
    files = [run(network, tmp_path / side, level=level) for side in "ab"]
    assert_all_pass(compare_paths(files[0], files[1]))


@pytest.mark.parametrize("options", [{"task": "tensor"}, {"summary_mode": "md5"}, {"summary_mode": "xor"}])
def test_equal_runs_pass_in_every_mode(tmp_path: Path, options: dict[str, Any]) -> None:
    files = [run("resnet", tmp_path / side, level="mix", **options) for side in "ab"]
    assert_all_pass(compare_paths(files[0], files[1]))


def assert_all_pass(comparison: Comparison) -> None:
    summary = comparison.summary
    assert (summary.verdicts["warning"], summary.verdicts["error"]) == (0, 0)
    assert summary.verdicts["pass"] == summary.rows > 50
    assert (summary.target_only, summary.golden_only) == (0, 0)
    assert summary.first is None


@pytest.mark.parametrize("options", [{}, {"task": "tensor"}, {"summary_mode": "md5"}])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_planted_fault_is_found_at_its_place(tmp_path: Path, network: str, options: dict[str, Any]) -> None:
    golden = run(network, tmp_path / "golden", level="mix", **options)
    target = run(network, tmp_path / "target", 1.25, level="mix", **options)
    first = compare_paths(target, golden).summary.first
    assert first is not None
    assert (first.op, first.origin) == (NETWORKS[network][2], "injected")


def test_single_points_can_be_compared(tmp_path: Path) -> None:
    for side, factor in (("golden", 1.0), ("target", 1.5)):
        debugger = PrecisionDebugger(dump_path=tmp_path / side, level="debug")
        debugger.save([torch.ones(3), None], "same")
        debugger.save({"value": torch.full((2,), factor)}, "other")
        debugger.step()
        debugger.close()
    (target,), (golden,) = ((tmp_path / side).rglob("debug.json") for side in ("target", "golden"))
    first = compare_paths(target, golden).summary.first
    assert first is not None
    assert first.op == "other.0.debug"


KILLED = """
import os, signal, sys, torch
sys.path.insert(0, {tests!r})
from test_compare_own_dumps import SmallResNet, train_resnet
from twinprobe.torch import PrecisionDebugger
torch.manual_seed(0)
torch.set_num_threads(1)
model = SmallResNet(1.0)
debugger = PrecisionDebugger(dump_path={path!r}, level="mix", task={task!r})
debugger.start(model=model)
train_resnet(model)
train_resnet(model)
debugger.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("task", [pytest.param("statistics", marks=pytest.mark.slow), "tensor"])
def test_what_a_killed_process_left_can_be_compared(
    tmp_path: Path, task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    script = KILLED.format(tests=str(Path(__file__).parent), path=str(tmp_path / "killed"), task=task)
    killed = run_warm(script)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (part,) = (tmp_path / "killed").rglob("dump.json.part")
    whole = run("resnet", tmp_path / "whole", level="mix", task=task)
    summary = compare_paths(part, whole).summary
    assert summary.matched > 50
    assert summary.verdicts["error"] == 0
    assert any("did not finish" in note for note in summary.notes)
    assert compare_paths(part, part).summary.first is None
    sides = ["-tp", str(tmp_path / "killed"), "-gp", str(tmp_path / "whole")]
    assert main(["compare", *sides, "-o", str(tmp_path / "out"), "--csv"]) == 0
    assert "did not finish" in capsys.readouterr().out
