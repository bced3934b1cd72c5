"""The same training on other kernels: optimizers that take lists against those that loop, and small operands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import twinprobe
import twinprobe.torch


class Net(nn.Module):
    """A small network with a residual path."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(24, 48)
        self.norm = nn.LayerNorm(48)
        self.outer = nn.Linear(48, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(torch.tanh(self.norm(self.inner(x))))


def train(
    folder: Path,
    *,
    steps: int = 1,
    clear: bool = True,
    clip: float | None = None,
    dtype: torch.dtype = torch.float32,
    spoil: Callable[[nn.Module], Any] | None = None,
    between: Callable[[nn.Module], Any] | None = None,
    optimizer: type[torch.optim.Optimizer] = torch.optim.SGD,
    **settings: Any,
) -> Path:
    """Record a few steps. ``spoil`` changes the model before the first, ``between`` after each of them."""
    torch.manual_seed(3)
    model = Net().to(dtype)
    if spoil is not None:
        with torch.no_grad():
            spoil(model)
    batches = torch.randn(steps, 16, 24, dtype=dtype)
    stepper: Any = optimizer(model.parameters(), **({"lr": 0.05} | settings))
    with twinprobe.torch.record(model, str(folder), level="mix") as recording:
        for batch in batches:
            model(batch).square().mean().backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            stepper.step()
            if clear:
                stepper.zero_grad()
            recording.step()
            if between is not None:
                with torch.no_grad():
                    between(model)
    return folder


def compare(tmp_path: Path, target: dict[str, Any], golden: dict[str, Any]) -> twinprobe.Comparison:
    return twinprobe.compare(train(tmp_path / "target", **target), train(tmp_path / "golden", **golden))


def test_each_element_of_a_list_is_paired_with_its_call_in_the_loop(tmp_path: Path) -> None:
    result = compare(tmp_path, {"foreach": True, "clip": 1e-6}, {"foreach": False})
    (pair,) = result.pairs.values()
    pairs = dict(pair.evidence.pairs.select("t_name", "g_name").drop_nulls().iter_rows())
    for number in range(6):
        for row in ("input.0", "input.1", "output.0"):
            assert pairs[f"Torch._foreach_add_.0.forward.{row}.{number}"] == f"Tensor.add_.{number}.forward.{row}"
    assert result.first is not None
    assert "clip_grad" in str(result.first)


def test_a_gradient_that_was_not_cleared_is_named_across_lists_and_loops(tmp_path: Path) -> None:
    result = compare(tmp_path, {"foreach": True, "clear": False, "steps": 2}, {"foreach": False, "steps": 2})
    assert result.first is not None
    assert "zero_grad" in result.first.sentence


def test_lists_and_loops_that_do_the_same_agree(tmp_path: Path) -> None:
    assert compare(tmp_path, {"foreach": True, "steps": 2}, {"foreach": False, "steps": 2}).agrees


def test_a_setting_without_effect_is_noted(tmp_path: Path) -> None:
    coarse = {"dtype": torch.bfloat16, "lr": 1e-4, "optimizer": torch.optim.AdamW}
    result = compare(tmp_path, {**coarse, "weight_decay": 1e-3}, {**coarse, "weight_decay": 2e-3})
    assert result.agrees
    notes = [note for pair in result.pairs.values() for note in pair.summary.notes]
    assert any("weight_decay 0.001 against 0.002" in note for note in notes), notes
    assert not any("settings of the optimizers" in note for note in notes if "weight_decay" not in note)


def test_a_bias_that_was_not_loaded_is_named_where_it_is_read(tmp_path: Path) -> None:
    """It changes the result of its product by less than a hundredth: no sign of a transposed operand."""

    def shrink(model: nn.Module) -> None:
        model.inner.bias.mul_(0.05)

    def drop(model: nn.Module) -> None:
        model.inner.bias.zero_()

    result = compare(tmp_path, {"spoil": drop}, {"spoil": shrink})
    assert result.first is not None
    assert result.first.op == "Functional.linear.0.forward"
    assert "0 everywhere" in result.first.sentence


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda weight: weight.mul_(1.01), id="scaled"),
        pytest.param(lambda weight: weight.copy_(weight.roll(1, 0)), id="rows moved"),
        pytest.param(lambda weight: weight[:2].copy_(weight[:2].flip(0)), id="two rows exchanged"),
    ],
)
@pytest.mark.parametrize("foreach", [True, False])
def test_a_parameter_that_changes_between_two_steps_is_named(
    foreach: bool, change: Callable[[torch.Tensor], object], tmp_path: Path
) -> None:
    """It is not what the step before wrote, though that step agrees: also where the values are the same, elsewhere."""
    result = compare(
        tmp_path, {"steps": 2, "foreach": foreach, "between": lambda model: change(model.outer.weight)}, {"steps": 2}
    )
    assert result.first is not None
    assert result.first.op == "Functional.linear.1.forward"
    assert result.first.sentence.startswith(("input.1: the parameter differs", "input.1: the parameter holds golden's"))


def test_elements_of_a_list_are_as_large_as_each_of_them_is(tmp_path: Path) -> None:
    """A small parameter that differs is not hidden by large ones that the same call updates."""
    slow = {"foreach": True, "lr": 1e-12}
    result = compare(
        tmp_path, {**slow, "spoil": lambda model: model.inner.bias.zero_()},
        {**slow, "spoil": lambda model: model.inner.bias.mul_(1e-8)},
    )  # fmt: skip
    (pair,) = result.pairs.values()
    (updated,) = (one for one in pair.summary.results if one.name == "updated parameters")
    assert not updated.agrees


class Dealer(nn.Module):
    """Deals tokens out to experts, sorted by the number of the expert, and puts the results back."""

    def __init__(self, *, back: bool = True) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(24, 24) for _ in range(3))
        self.back = back

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        number = torch.arange(len(x)) % 3
        _, order = torch.sort(number)
        dealt = zip(self.experts, x[order].chunk(3), strict=True)
        results = torch.cat([torch.tanh(expert(tokens)) for expert, tokens in dealt])
        return results[torch.argsort(order)] if self.back else results


def deal(folder: Path, *, last_first: bool, back: bool = True) -> Path:
    """Record a step of it, with PyTorch's own sort or with one that puts the last of equal values first."""

    def sort(values: torch.Tensor, *, stable: Any = None, dim: int = -1, descending: bool = False) -> Any:
        order = len(values) - 1 - np.argsort(values.numpy()[::-1], kind="stable")
        return torch.from_numpy(values.numpy()[order].copy()), torch.from_numpy(order.copy())

    torch.manual_seed(3)
    model = Dealer(back=back)
    batch, wanted = torch.randn(2, 18, 24)
    library = torch.library.Library("aten", "IMPL")  # its kernels are there for as long as it is
    if last_first:
        library.impl("sort.stable", sort, "CPU")
    with twinprobe.torch.record(model, str(folder), level="mix") as recording:
        (model(batch) - wanted).square().mean().backward()
        recording.step()
    return folder


def test_equal_values_may_be_sorted_in_any_order(tmp_path: Path) -> None:
    result = twinprobe.compare(deal(tmp_path / "t", last_first=True), deal(tmp_path / "g", last_first=False))
    assert result.agrees, result.first
    notes = [note for pair in result.pairs.values() for note in pair.summary.notes]
    assert any("Torch.sort.0.forward.output.1" in note for note in notes), notes


def test_an_order_that_is_not_undone_changes_the_loss(tmp_path: Path) -> None:
    """What depends on the order of equal values is no noise."""
    result = twinprobe.compare(
        deal(tmp_path / "t", last_first=True, back=False), deal(tmp_path / "g", last_first=False, back=False)
    )
    assert not result.agrees


class Mixer(nn.Module):
    """Attention whose last projection is not called but read, as PyTorch's own module does it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(24, 2, batch_first=True), nn.Linear(24, 6)

    def forward(self, x: torch.Tensor, *, weights: bool) -> torch.Tensor:
        return self.head(self.attention(x, x, x, need_weights=weights)[0])


def mix(folder: Path, *, weights: bool, spoil: bool = False) -> Path:
    torch.manual_seed(3)
    model = Mixer()
    stepper = torch.optim.AdamW(model.parameters(), 1e-4, foreach=True)
    with twinprobe.torch.record(model, str(folder), level="mix") as recording:
        for batch in torch.randn(3, 8, 5, 24):
            model(batch, weights=weights).square().mean().backward()
            stepper.step()
            stepper.zero_grad()
            recording.step()
            if spoil:
                with torch.no_grad():
                    model.attention.out_proj.weight.mul_(1.3)
    return folder


@pytest.mark.parametrize("spoil", [False, True])
def test_parameters_in_a_list_are_parameters_wherever_they_are_read(spoil: bool, tmp_path: Path) -> None:
    result = twinprobe.compare(mix(tmp_path / "t", weights=False, spoil=spoil), mix(tmp_path / "g", weights=True))
    assert result.agrees is not spoil, result.first
    if spoil:
        assert "the parameter differs" in str(result.first)


class Router(nn.Module):
    """The best experts of each token, after a softmax that a kernel may round otherwise."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(24, 8), experts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gate(x).softmax(-1).topk(self.experts)[0].sum(-1)


def test_another_number_of_choices_is_named_where_scores_are_off_by_rounding(tmp_path: Path) -> None:
    folders = []
    for side, experts in (("target", 1), ("golden", 2)):
        torch.manual_seed(3)
        model = Router(experts)
        if side == "target":
            model.gate.register_forward_hook(lambda _module, _args, output: output * (1 + 1e-7))
        with twinprobe.torch.record(model, str(tmp_path / side), level="mix") as recording:
            model(torch.randn(16, 24)).square().mean().backward()
            recording.step()
        folders.append(tmp_path / side)
    first = twinprobe.compare(*folders).first
    assert first is not None
    assert first.op == "Tensor.topk.0.forward"
    assert "k: 1 against 2" in first.sentence


class Scaled(nn.Module):
    """A number of the model itself, which it reads between its modules."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(24, 24), nn.Linear(24, 6)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.tanh(self.inner(x)) * self.scale)


@pytest.mark.parametrize(("fault", "op"), [("scale", "Optimizer.scale.SGD.0.forward"), ("shift", "outer")])
def test_a_parameter_that_no_module_reads_is_named_at_level_L0(fault: str, op: str, tmp_path: Path) -> None:
    """It differs before the first step; where none does, the code between the modules is to blame."""
    folders = []
    for side in ("target", "golden"):
        torch.manual_seed(3)
        model = Scaled()
        if side == "target" and fault == "scale":
            model.scale.data.mul_(1.05)
        if side == "target" and fault == "shift":
            model.outer.register_forward_pre_hook(lambda _module, args: (args[0] + 0.05,))
        stepper = torch.optim.SGD(model.parameters(), 0.1)
        with twinprobe.torch.record(model, str(tmp_path / side), level="L0") as recording:
            model(torch.randn(16, 24)).square().mean().backward()
            stepper.step()
            recording.step()
        folders.append(tmp_path / side)
    first = twinprobe.compare(*folders).first
    assert first is not None
    assert op in first.op


class Kernel(nn.Module):
    """A Gaussian process: a point is as far from itself as rounding leaves it."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(4, 16), nn.Softplus(), nn.Linear(16, 3))
        self.noise = nn.Parameter(torch.tensor(-1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        points = self.features(x)
        near = torch.exp(-0.5 * torch.cdist(points, points).square())
        factor = torch.linalg.cholesky(near + self.noise.exp() * torch.eye(len(x)))
        return factor.diagonal().log().sum()


class Channels(nn.Module):
    """Channels that hardly vary around means of their own, which a normalisation takes off."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, 32, 3)
        self.norm = nn.BatchNorm1d(32)
        self.head = nn.Linear(32, 4)
        self.conv.weight.data *= 0.003

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(nn.functional.silu(self.norm(self.conv(x))).mean(-1)).square().sum()


class Pools(nn.Module):
    """Windows over all of a small map: where two of its values are nearly the same, all of them flip together."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 400, 1)
        self.pool = nn.MaxPool2d(3, 1, 1)
        self.next = nn.Conv2d(400, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        alike = x.mean((2, 3), keepdim=True) + 0.05 * x
        return self.next(self.pool((self.stem(alike) + 300) - 300)).square().mean()


_SHAPES = {Kernel: (40, 4), Channels: (4, 8, 16), Pools: (16, 3, 2, 2)}


def once(folder: Path, kind: type[nn.Module], spoil: Callable[[nn.Module], Any] | None = None, **options: Any) -> Path:
    """Record one step of a model; ``perturb`` changes every result by half a unit in the last place."""
    torch.manual_seed(3)
    model = kind()
    if spoil is not None:
        with torch.no_grad():
            spoil(model)
    stepper = torch.optim.SGD(model.parameters(), lr=0.01)
    with twinprobe.torch.record(model, str(folder), level="mix", **options):
        model(torch.randn(_SHAPES[kind])).backward()
        stepper.step()
    for dump in folder.rglob("dump.json"):  # what other kernels round stands in no header
        document = json.loads(dump.read_text())
        document["settings"].pop("perturb", None)
        dump.write_text(json.dumps(document))
    return folder


@pytest.mark.parametrize("kind", _SHAPES)
@pytest.mark.parametrize("seed", [3, 4, 5])
def test_rounding_that_a_step_enlarges_is_noise(kind: type[nn.Module], seed: int, tmp_path: Path) -> None:
    result = twinprobe.compare(once(tmp_path / "t", kind, perturb=1, perturb_seed=seed), once(tmp_path / "g", kind))
    assert result.agrees, result.first


@pytest.mark.parametrize(
    ("kind", "spoil", "named"),
    [
        (Kernel, lambda model: model.noise.fill_(-1.4), "the parameter differs: norm 1.4 against 1.5"),
        (Channels, lambda model: setattr(model.norm, "eps", 2e-5), "eps: 2e-05 against 1e-05"),
        (Pools, lambda model: setattr(model.pool, "kernel_size", 2), "kernel_size: 2 against 3"),
    ],
)
def test_beside_enlarged_rounding_a_fault_is_named(
    kind: type[nn.Module], spoil: Callable[[nn.Module], Any], named: str, tmp_path: Path
) -> None:
    result = twinprobe.compare(once(tmp_path / "t", kind, spoil, perturb=1), once(tmp_path / "g", kind))
    assert result.first is not None
    assert named in result.first.sentence


class _Biased(nn.Module):
    """Biases that began as zero, some before a norm and one of keys: nothing but rounding moves these."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(32, 32) for _ in "qkv")
        self.before, self.norm, self.out = nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 8)
        for layer in (self.q, self.k, self.v, self.before, self.out):
            nn.init.zeros_(layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        x = x + torch.softmax(q @ k.transpose(-1, -2) / 6, -1) @ v
        x = self.before(x)
        return self.out(self.norm(x - x.mean(1, keepdim=True)))


@pytest.mark.parametrize("lists", [False, True])
def test_rounding_moves_some_biases_as_far_as_a_step_goes(tmp_path: Path, lists: bool) -> None:
    for name, dtype in (("target", torch.bfloat16), ("golden", torch.float32)):
        torch.manual_seed(0)
        model = nn.Sequential(_Biased(), nn.Linear(8, 32), _Biased()).to(dtype)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3, foreach=lists)
        x, y = torch.randn(4, 6, 32).to(dtype), torch.randint(0, 8, (24,))
        with twinprobe.record(model, tmp_path / name, level="mix") as recording:
            for _ in range(3):
                functional.cross_entropy(model(x).float().flatten(0, 1), y).backward()
                optimizer.step()
                optimizer.zero_grad()
                recording.step()
    assert twinprobe.compare(tmp_path / "target", tmp_path / "golden").first is None


@pytest.mark.parametrize("spread", [0.02, 0.002])
def test_biases_that_rounding_moves_count_beside_small_products(tmp_path: Path, spread: float) -> None:
    """What a layer gives is hardly larger than what a step of Adam makes of a bias that began as zero."""
    for name, dtype in (("target", torch.bfloat16), ("golden", torch.float32)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 256), nn.Linear(256, 256), nn.LayerNorm(256), nn.Linear(256, 8))
        with torch.no_grad():
            for layer in (model[0], model[1]):
                layer.weight.normal_(std=spread)
                layer.bias.zero_()
        model = model.to(dtype)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        x, y = torch.randn(24, 32).to(dtype) / 100, torch.randint(0, 8, (24,))
        with twinprobe.record(model, tmp_path / name, level="mix") as recording:
            for _ in range(2):
                functional.cross_entropy(model(x).float(), y).backward()
                optimizer.step()
                optimizer.zero_grad()
                recording.step()
    assert twinprobe.compare(tmp_path / "target", tmp_path / "golden").first is None
