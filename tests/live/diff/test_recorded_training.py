"""Training loops, recorded twice and compared: some steps only, loaders, accumulation, recomputation, autocast."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from torch_pairs import Chain, numbers

from twinprobe import auto_diff
from twinprobe._live.checks import check_grads, check_report, check_weights
from twinprobe.errors import BadInput
from twinprobe.torch import record

X = numbers(4, 8)
Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def plain(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


def recomputed(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(model, x, use_reentrant=False).square().mean()


def autocast(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return model(x).float().square().mean()


def train(
    model: nn.Module,
    folder: Path,
    batches: list[torch.Tensor],
    *,
    every: int = 1,
    loss: Loss = plain,
    **options: object,
) -> Path:
    """One recorded step per batch; the optimizer steps after every so many of them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model, folder, level="L0", task="tensor", **options) as recording:
        for step, batch in enumerate(batches):
            loss(model, batch).backward()
            if (step + 1) % every == 0:
                optimizer.step()
                optimizer.zero_grad()
            if step + 1 < len(batches):
                recording.step()
    return folder


def twins(count: int = 2) -> list[Chain]:
    torch.manual_seed(4)
    first = Chain(3)
    made = [first, *(Chain(3) for _ in range(count - 1))]
    for one in made[1:]:
        one.load_state_dict(first.state_dict())
    return made


def test_every_second_step_is_recorded_and_compared_under_its_number(tmp_path: Path) -> None:
    batches = [numbers(4, 8, seed=step) for step in range(6)]
    base, raw, strange = twins(3)
    one = train(base, tmp_path / "one", batches, step=[0, 2, 4])
    assert sorted(path.name for path in one.iterdir()) == ["step0", "step2", "step4"]
    same = check_report(one, train(raw, tmp_path / "two", batches, step=[0, 2, 4]), quiet=True)
    assert same
    assert {finding.step for finding in same.findings} == {0, 2, 4}
    batches[3] = batches[3] + 1  # not recorded itself, but what comes after depends on it
    result = check_report(one, train(strange, tmp_path / "other", batches, step=[0, 2, 4]), quiet=True)
    assert not result
    assert result.first.step == 4


def test_recordings_of_other_steps_are_refused(tmp_path: Path) -> None:
    base, raw = twins()
    batches = [X] * 4
    one = train(base, tmp_path / "one", batches, step=[0, 2])
    other = train(raw, tmp_path / "other", batches, step=[0, 1])
    with pytest.raises(BadInput, match=r"holds step 1 where .* holds step 2"):
        check_report(one, other, quiet=True)


def test_a_live_model_runs_through_the_steps_that_were_not_recorded(tmp_path: Path) -> None:
    base, raw = twins()
    folder = train(base, tmp_path / "run", [X] * 5, step=[0, 2, 4])
    optimizer = torch.optim.SGD(raw.parameters(), lr=0.1)
    options = {"loss_fns": lambda output: output.square().mean(), "optimizers": [optimizer, optimizer]}
    result = auto_diff(raw, folder, X, steps=5, auto_weights=False, quiet=True, **options)
    assert result, result
    assert {finding.step for finding in result.findings} == {0, 2, 4}


def test_ten_batches_of_a_loader(tmp_path: Path) -> None:
    data = numbers(40, 8)
    loaders = [DataLoader(TensorDataset(values), batch_size=4) for values in (data, data, data.roll(1, 0))]
    folders = [
        train(model, tmp_path / str(at), [batch for (batch,) in loader])
        for at, (model, loader) in enumerate(zip(twins(3), loaders, strict=True))
    ]
    result = check_report(folders[0], folders[1], quiet=True)
    assert result
    assert {finding.step for finding in result.findings} == set(range(10))
    assert not check_report(folders[0], folders[2], quiet=True)


@pytest.mark.parametrize("loss", [plain, recomputed, autocast])
def test_accumulated_gradients(tmp_path: Path, loss: Loss) -> None:
    """The optimizer steps after every second batch on both sides, or on one side after each."""
    batches = [numbers(4, 8, seed=step).requires_grad_() for step in range(4)]
    base, raw, hasty = twins(3)
    one = train(base, tmp_path / "one", batches, every=2, loss=loss)
    assert check_report(one, train(raw, tmp_path / "two", batches, every=2, loss=loss), quiet=True)
    other = train(hasty, tmp_path / "hasty", batches, loss=loss)
    for check in (check_report, check_weights):
        result = check(one, other, quiet=True)
        assert not result
        assert result.first.step == 1
    assert not check_grads(one, other, quiet=True)


def test_only_some_classes_are_recorded_and_compared(tmp_path: Path) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.body = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x)

    folders = [train(Mixed(), tmp_path / name, [X], list=["LayerNorm", "Tanh"]) for name in ("one", "two")]
    result = check_report(*folders, quiet=True)
    assert result
    assert {finding.raw.split(".")[3] for finding in result.findings} == {"LayerNorm", "Tanh"}
