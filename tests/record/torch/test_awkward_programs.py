"""Programs that recorders like to break: each gives the same bits when it is watched."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import Residual, batch
from test_nothing_changes import assert_same_bits
from torch import nn

from twinprobe.torch import record

Watch = Callable[[nn.Module], Any]


def parameters_of(model: nn.Module) -> list[torch.Tensor]:
    return [one.detach().clone() for one in model.parameters()]


def scaled_and_accumulated(watch: Watch) -> list[torch.Tensor]:
    """A gradient scaler, several backward passes per step, and gradient clipping."""
    model = Residual()
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    if not hasattr(torch.amp, "GradScaler"):
        pytest.skip("this torch scales no gradients on the host")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with watch(model):
        for _ in range(2):
            for _ in range(3):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = model(batch()).float().square().mean()
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=False)
    return [*parameters_of(model), loss.detach()]


def second_derivatives(watch: Watch) -> list[torch.Tensor]:
    """Gradients of gradients, through torch.autograd.grad and through a retained graph."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    x = batch().requires_grad_()
    with watch(model):
        (first,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        penalty = (first.norm(dim=1) - 1).square().mean()
        penalty.backward(retain_graph=True)
        penalty.backward()
    return [first.detach(), x.grad, *(one.grad for one in model.parameters() if one.grad is not None)]


class Rounded(torch.autograd.Function):
    """A straight-through estimator that writes into its gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        gradient = gradient.clone()
        gradient[x < 0] = 0
        return gradient.mul_(2)


def custom_functions(watch: Watch) -> list[torch.Tensor]:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with watch(model):
        y = Rounded.apply(model[0](batch()) * 3)
        Rounded.apply(model[1](y)).square().sum().backward()
    return [y.detach(), *(one.grad for one in model.parameters())]


def hooks_of_the_user(watch: Watch) -> list[torch.Tensor]:
    """Hooks that change outputs and gradients, and one that removes itself."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    seen: list[torch.Tensor] = []
    model[0].register_forward_hook(lambda _m, _i, out: out * 2)
    model[2].register_full_backward_hook(lambda _m, grads, _o: (grads[0] * 0.5,))
    model[2].weight.register_hook(lambda gradient: gradient + 1)
    handle = model[1].register_forward_pre_hook(lambda _m, _i: handle.remove())
    with watch(model):
        x = batch().requires_grad_()
        y = model(x)
        y.register_hook(lambda gradient: gradient * 3)
        y.retain_grad()
        y.sum().backward()
        seen += [x.grad, y.grad]
    return [*seen, *(one.grad for one in model.parameters())]


def recurrent(watch: Watch) -> list[torch.Tensor]:
    model = nn.ModuleDict({"lstm": nn.LSTM(8, 4, 2, dropout=0.5, bidirectional=True), "cell": nn.GRUCell(8, 4)})
    with watch(model):
        out, (state, _) = model["lstm"](batch().unsqueeze(1))
        packed = nn.utils.rnn.pack_padded_sequence(batch().unsqueeze(1), torch.tensor([6]))
        other, _ = model["lstm"](packed)
        (out.sum() + state.sum() + other.data.sum() + model["cell"](batch()).sum()).backward()
    return [out.detach(), *(one.grad for one in model.parameters())]


def views_and_slices(watch: Watch) -> list[torch.Tensor]:
    """Assignment into slices, in-place arithmetic on views, index operations, outputs given by the caller."""
    model = nn.Sequential(nn.Linear(8, 8))
    with watch(model):
        h = model(batch()) * 1.0
        h[:, :2] = h[:, 2:4] * 2
        h[0].mul_(3)
        h.t()[1] += 1
        h[h > 1] = 0.5
        h.index_add_(0, torch.tensor([1, 1]), torch.ones(2, 8))
        box = torch.empty(6, 8)
        torch.add(h.detach(), 1, out=box)
        first, second = h.chunk(2, dim=1)
        (first.sum() - second.prod()).backward()
    return [h.detach(), box, *(one.grad for one in model.parameters())]


def functional_transforms(watch: Watch) -> list[torch.Tensor]:
    model = nn.Sequential(nn.Linear(8, 4), nn.Tanh())
    weights = dict(model.named_parameters())
    with watch(model):
        out = torch.func.functional_call(model, weights, (batch(),))
        rows = torch.func.vmap(lambda x: model(x).sum())(batch())
        gradients = torch.func.grad(lambda w: torch.func.functional_call(model, w, (batch(),)).sum())(weights)
    return [out.detach(), rows.detach(), *(one.detach() for one in gradients.values())]


def inference(watch: Watch) -> list[torch.Tensor]:
    model = Residual().eval()
    with watch(model), torch.inference_mode():
        first = model(batch().clone())
        second = model(first.add_(1))
    return [first, second]


def another_thread(watch: Watch) -> list[torch.Tensor]:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    found: list[torch.Tensor] = []
    with watch(model):
        thread = threading.Thread(target=lambda: found.append(model(batch()).sum().detach()))
        thread.start()
        found.append(model(batch()).detach())
        thread.join()
    return sorted(found, key=lambda one: one.dim())


PROGRAMS = [
    scaled_and_accumulated,
    second_derivatives,
    custom_functions,
    hooks_of_the_user,
    recurrent,
    views_and_slices,
    functional_transforms,
    inference,
    another_thread,
]


@pytest.mark.parametrize("options", [{"level": "mix", "risk_level": "ALL"}, {"level": "L0"}], ids=["mix", "L0"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_the_same_bits_come_out(
    tmp_path: Path, program: Callable[[Watch], list[torch.Tensor]], options: dict[str, Any]
) -> None:
    torch.manual_seed(1)
    plain = program(lambda model: nullcontext())
    state = torch.get_rng_state()
    torch.manual_seed(1)
    recorded = program(lambda model: record(model, tmp_path / "dump", **options))
    assert_same_bits(plain, recorded)
    assert torch.equal(state, torch.get_rng_state())
    assert not list(tmp_path.rglob("dump_error_info.log"))
    assert list(tmp_path.rglob("dump.json"))
