"""Observing changes nothing: outputs, gradients, optimizer state and random numbers stay bit-identical."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import Checkpointed, Convolutional, Residual, batch
from torch.overrides import TorchFunctionMode

from twinprobe.torch import record

MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "in-place and dropout": Residual,
    "checkpoint": lambda: Checkpointed(reentrant=False),
    "reentrant checkpoint": lambda: Checkpointed(reentrant=True),
    "convolution": Convolutional,
}


def trained(make: Callable[[], torch.nn.Module], observe: Any, *, amp: bool = False) -> list[torch.Tensor]:
    """Two training steps; everything that could differ, as tensors."""
    torch.manual_seed(5)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    seen: list[torch.Tensor] = []
    with observe(model):
        for _ in range(2):
            inputs = batch().requires_grad_()
            with torch.autocast("cpu", dtype=torch.bfloat16) if amp else nullcontext():
                output = model(inputs)
                loss = output.float().pow(2).mean()
            loss.backward()
            seen += [output.detach().clone(), loss.detach().clone(), inputs.grad.clone()]
            seen += [one.grad.clone() for one in model.parameters() if one.grad is not None]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    seen += [one.detach().clone() for one in model.state_dict().values()]
    seen += [one for state in optimizer.state.values() for one in state.values() if isinstance(one, torch.Tensor)]
    return [*seen, torch.get_rng_state()]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def assert_same_bits(first: list[torch.Tensor], second: list[torch.Tensor]) -> None:
    assert len(first) == len(second)
    for at, (one, other) in enumerate(zip(first, second, strict=True)):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert torch.equal(bits(one), bits(other)), at


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("kind", MODELS)
def test_training_is_bit_identical_when_recorded(tmp_path: Path, kind: str, level: str) -> None:
    plain = trained(MODELS[kind], lambda model: nullcontext())
    recorded = trained(MODELS[kind], lambda model: record(model, tmp_path / "dump", level=level))
    assert_same_bits(plain, recorded)


@pytest.mark.parametrize(
    "options", [{"task": "tensor"}, {"summary_mode": "md5"}, {"summary_mode": "xor"}, {"risk_level": "ALL"}]
)
def test_every_task_leaves_training_alone(tmp_path: Path, options: dict[str, Any]) -> None:
    plain = trained(Residual, lambda model: nullcontext())
    recorded = trained(Residual, lambda model: record(model, tmp_path / "dump", level="mix", **options))
    assert_same_bits(plain, recorded)


def test_mixed_precision_training_is_bit_identical(tmp_path: Path) -> None:
    plain = trained(Residual, lambda model: nullcontext(), amp=True)
    recorded = trained(Residual, lambda model: record(model, tmp_path / "dump", level="mix"), amp=True)
    assert_same_bits(plain, recorded)


class _Counting(TorchFunctionMode):
    calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_program_that_begins_after_a_step_ends_as_itself(tmp_path: Path) -> None:
    """Recording modules looks away between an optimizer's step and the next call of a module, inside of this mode."""
    model = Residual()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outer, inner = _Counting(), _Counting()
    with outer, record(model, tmp_path / "dump", level="L0"):
        for _ in range(2):
            before = inner.calls
            with inner:
                result = model(batch())
                result.relu_()
                assert inner.calls > before
            before = inner.calls
            result.square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            assert inner.calls == before
        assert torch._C._len_torch_function_stack() == 1  # nobody need look now
        before = outer.calls
        with torch.no_grad():
            model(batch())
        assert outer.calls > before
        assert torch._C._len_torch_function_stack() == 2
    assert torch._C._len_torch_function_stack() == 0


def test_nothing_stays_behind_after_an_exception(tmp_path: Path) -> None:
    model = Residual()
    with pytest.raises(RuntimeError), record(model, tmp_path / "dump", level="mix"):
        model(torch.randn(2, 5))
    assert torch._C._len_torch_function_stack() == 0
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    assert all(not one._backward_hooks for one in model.parameters())
    assert torch.distributed.all_reduce.__module__ == "torch.distributed.distributed_c10d"


@pytest.mark.parametrize("level", ["watch", "L0", "mix"])
def test_a_model_can_be_copied_and_saved_while_it_is_recorded(tmp_path: Path, level: str) -> None:
    """A copy has the user's hooks, as ever, and none of ours; recording the model goes on."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[0].register_forward_hook(double)
    file = io.BytesIO()
    with record(model, tmp_path, level=level):
        result = model(torch.ones(1, 2))
        torch.save(model, file)
        copies = [copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    assert "__reduce_ex__" not in vars(torch.nn.Module)
    copies.append(torch.load(io.BytesIO(file.getvalue()), weights_only=False))
    for one in copies:
        assert torch.equal(one(torch.ones(1, 2)), result)
        kept = [hook for module in one.modules() for hook in module._forward_hooks.values()]
        assert kept == [double]
        flags = [module._forward_hooks_with_kwargs | module._forward_hooks_always_called for module in one.modules()]
        assert not any(flags)
        assert not any(module._forward_pre_hooks for module in one.modules())
    assert b"twinprobe" not in file.getvalue()


def double(_module: Any, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
    return 2 * output


def test_the_garbage_collector_is_not_set_to_work_by_what_is_recorded(tmp_path: Path) -> None:
    model, usual = torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(60)]), gc.get_threshold()
    runs: list[int] = []

    def count(phase: str, about: dict[str, int]) -> None:
        if phase == "start" and about["generation"]:
            runs.append(about["generation"])

    try:
        with record(model, tmp_path / "dump", level="mix") as recording:
            for step in range(5):
                model(torch.ones(1, 2)).sum().backward()
                recording.step()
                if step == 1:  # by then everything is loaded, or about to be
                    for thread in threading.enumerate():
                        if thread.name == "twinprobe-kernels":
                            thread.join()
                    gc.collect()
                    gc.callbacks.append(count)
    finally:
        gc.callbacks.remove(count)
    assert runs == []  # without patience, each step would have made it look at older objects
    assert gc.get_threshold() == usual


def test_a_program_that_sets_its_garbage_collector_keeps_what_it_set(tmp_path: Path) -> None:
    usual = gc.get_threshold()
    try:
        with record(None, tmp_path / "dump", level="L1"):
            torch.ones(2) + 1
            gc.set_threshold(1234, 5, 6)
        assert gc.get_threshold() == (1234, 5, 6)
    finally:
        gc.set_threshold(*usual)


class Hooking(torch.nn.Module):
    """A program that puts hooks of its own on nodes which the recorder watches too, before and after it does."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self.layer, self._seen = torch.nn.Linear(4, 4), seen

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        z: torch.Tensor = torch.tanh(y)
        self._hook(y, "after a call is recorded")
        self._hook(z, "before a call is recorded")
        self._hook(z, "removed").remove()
        return z

    def _hook(self, tensor: torch.Tensor, name: str) -> Any:
        assert tensor.grad_fn is not None
        tensor.grad_fn.register_prehook(lambda grads: self._seen.append(f"arrives, {name}"))
        return tensor.grad_fn.register_hook(lambda grads, arrived: self._seen.append(f"leaves, {name}"))


def test_hooks_of_the_program_on_nodes_run_beside_ours_and_can_be_removed(tmp_path: Path) -> None:
    def run(observe: Any) -> list[str]:
        torch.manual_seed(0)
        seen: list[str] = []
        model = torch.nn.Sequential(Hooking(seen))
        with observe(model):
            loss = model(batch()[:, :4]).sum()
            loss.backward(retain_graph=True)
        loss.backward()  # nothing of ours is on the nodes any more
        return seen

    plain = run(lambda _: nullcontext())
    before = dict(vars(torch.autograd.Function))
    assert run(lambda model: record(dump_path=str(tmp_path / "d"), model=model, level="mix")) == plain
    assert "leaves, removed" not in plain
    assert dict(vars(torch.autograd.Function)) == before
    (dump,) = tmp_path.rglob("dump.json")
    assert "Module.0.layer.Linear.backward.0" in dump.read_text()


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_mode_entered_while_recording_is_left_when_the_program_leaves_it(tmp_path: Path, level: str) -> None:
    """From one step to the next the recorder leaves and comes back: not above a mode that the program has entered."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model, str(tmp_path / "run"), level=level) as recording:
        with torch.device("meta"):
            for _ in range(2):
                model(torch.ones(2, 4, device="cpu")).sum().backward()
                optimizer.step()
                recording.step()
        assert torch.zeros(1).device.type == "cpu"
        model(torch.ones(2, 4)).sum().backward()
    assert torch.zeros(1).device.type == "cpu"
    assert not torch._C._len_torch_function_stack()
    assert len(list((tmp_path / "run").rglob("dump.json"))) == 3
