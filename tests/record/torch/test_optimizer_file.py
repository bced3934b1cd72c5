"""optimizer.json: what an optimizer saw and did, once for each of its steps, beside dump.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from twinprobe._cli import main
from twinprobe._record.torch import device, tensors
from twinprobe.torch import record
from warm_python import run_warm


def train(dump: Path, *, level: str = "L0", rate: float = 0.1, clip: float | None = 0.5, **options: Any) -> Any:
    """One step; gives the gradients that the optimizer saw, the norm before clipping and the parameters after it."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.25)
    with record(model, dump, level=level, **options):
        model(torch.linspace(-1, 1, 12).reshape(3, 4)).pow(2).sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip) if clip else None
        seen = {name: one.grad.clone() for name, one in model.named_parameters()}
        optimizer.step()
    return seen, norm, {name: one.detach().clone() for name, one in model.named_parameters()}


def updates(dump: Path) -> dict[str, Any]:
    (file,) = dump.glob("step0/*/optimizer.json")
    return json.loads(file.read_text())["data"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_gradients_settings_and_parameters_are_those_of_the_step(tmp_path: Path, level: str) -> None:
    seen, before, after = train(tmp_path, level=level)
    data = updates(tmp_path)
    # Without a model (level L1 watches none by name here) parameters go by their places in the groups.
    for name, gradient in seen.items():
        entry = data[f"Optimizer.{name}.AdamW.0.forward"]
        assert entry["input_args"][0]["Norm"] == pytest.approx(gradient.norm().item(), rel=1e-6)
        assert entry["output"][0]["Max"] == after[name].max().item()
        assert entry["input_kwargs"]["lr"] == {"type": "float", "value": 0.1}
        assert entry["input_kwargs"]["weight_decay"]["value"] == 0.25
    total = data["Optimizer.total_norm.AdamW.0.forward"]
    assert total["input_args"][0]["Max"] == pytest.approx(before.item(), rel=1e-6)
    assert total["output"][0]["Norm"] == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("same_names", [True, False])
def test_models_that_share_names_are_told_apart(tmp_path: Path, same_names: bool) -> None:
    """Stages of a pipeline on one rank are given as a list: their parameters have the same names."""
    stages = [torch.nn.Sequential(torch.nn.Linear(4, 4)), torch.nn.ModuleDict({"last": torch.nn.Linear(4, 4)})]
    if same_names:
        stages[1] = torch.nn.Sequential(torch.nn.Linear(4, 4))
    parameters = [one for stage in stages for one in stage.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    with record(stages, tmp_path, level="L0"):
        sum(one.sum() for one in parameters).backward()
        optimizer.step()
    names = [name.removeprefix("Optimizer.").removesuffix(".SGD.0.forward") for name in updates(tmp_path)]
    expected = ["0.0.weight", "0.0.bias", "1.0.weight", "1.0.bias"]
    assert names == [*(expected if same_names else ["0.weight", "0.bias", "last.weight", "last.bias"]), "total_norm"]


def test_it_is_no_part_of_dump_json_and_can_be_switched_off(tmp_path: Path) -> None:
    train(tmp_path / "on")
    train(tmp_path / "off", optimizer=False)
    assert not [*(tmp_path / "off").rglob("optimizer.json")]
    (file,) = (tmp_path / "on").rglob("dump.json")
    assert "Optimizer." not in file.read_text()


def test_equal_gradients_and_another_rate_blame_the_optimizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "t", rate=0.2)
    train(tmp_path / "g")
    files = [str(next((tmp_path / side).rglob("optimizer.json"))) for side in "tg"]
    assert main(["compare", "-tp", files[0], "-gp", files[1], "-o", str(tmp_path / "out"), "--csv", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)["first"]
    assert first["op"] == "Optimizer.0.weight.AdamW.0.forward"
    assert first["row"].endswith("output.0")


def test_the_names_of_another_tool_write_only_its_files(tmp_path: Path) -> None:
    program = (
        "import torch\n"
        "from msprobe.pytorch import PrecisionDebugger\n"
        f"debugger = PrecisionDebugger(dump_path={str(tmp_path)!r}, level='L0')\n"
        "model = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "debugger.start(model)\n"
        "model(torch.ones(1, 2)).sum().backward()\n"
        "optimizer.step()\n"
        "debugger.stop()\n"
        "debugger.close()\n"
    )
    run_warm(program).check_returncode()
    assert sorted(file.name for file in tmp_path.rglob("*.json")) == ["construct.json", "dump.json", "stack.json"]


def test_parameters_after_a_step_are_measured_together_not_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each launch costs a training on a device more than the measuring."""
    sizes: list[int] = []

    class Rows(tensors.DeviceRows):
        def launch(self) -> None:
            sizes.append(len(self._held))
            self._held.clear()

        def collect(self) -> Callable[[], None]:
            return lambda: None

    monkeypatch.setattr(tensors, "DEVICE_TYPES", {"cpu"})
    monkeypatch.setattr(tensors, "DeviceRows", Rows)
    monkeypatch.setattr(device, "_device_measure", lambda *_: object())
    train(tmp_path)
    assert [size for size in sizes if size][-1] == 4, sizes  # weights and biases of two layers


def test_gradients_of_a_closure_are_those_that_it_made(tmp_path: Path) -> None:
    """Lightning steps with a closure: when the step begins, there are no gradients yet, or those of the step before."""
    torch.manual_seed(3)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[float] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.full((3, 4), 1.0 + len(seen))).pow(2).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        assert model.weight.grad is not None
        seen.append(float(model.weight.grad.norm()))
        return loss

    with record(model, tmp_path, level="mix") as recording:
        for step in range(2):
            optimizer.step(closure) if step else optimizer.step(closure=closure)  # type: ignore[func-returns-value]
            recording.step()
    for step, norm in enumerate(seen):
        (file,) = tmp_path.glob(f"step{step}/*/optimizer.json")
        entry = json.loads(file.read_text())["data"]["Optimizer.weight.SGD.0.forward"]
        assert entry["input_args"][0]["Norm"] == pytest.approx(norm)
        assert entry["output"][0]["Norm"] != entry["parameters"]["before"]["Norm"]
        (construct,) = tmp_path.glob(f"step{step}/*/construct.json")
        around = json.loads(construct.read_text())
        assert around["Tensor.pow.0.forward"] is None  # the program's own code, not the optimizer's
