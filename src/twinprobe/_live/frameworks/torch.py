"""PyTorch, as live comparison sees it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from twinprobe._live.frameworks.adapter import (
    Adapter,
    NewMask,
    OnGradient,
    array_on_host,
    memory_config,
)
from twinprobe._live.frameworks.kept_torch import KeepingRecorder, KeptTensors
from twinprobe._live.live_run import MemoryEngine
from twinprobe._live.recorders import RecorderPool
from twinprobe._record.config import RecordConfig
from twinprobe._record.render import Capturer
from twinprobe._record.torch.host import dtype_name
from twinprobe._runs.dtypes import STORAGE
from twinprobe._runs.tensors.elements import HostTensor

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PLAIN = {getattr(torch, name): name for name in ("float32", "float64", "int64", "int32")}
_functional: Any = torch.nn.functional
# With the number of axes that an input without a batch has; dropout2d takes none.
_DROPOUTS = {"dropout": 0, "dropout1d": 2, "dropout2d": 0, "dropout3d": 4}
_accelerator: Any = getattr(torch, "accelerator", torch.cuda)


class TorchAdapter(Adapter):
    """The verbs, for PyTorch."""

    name = "pytorch"
    title = "PyTorch"
    tensor_class = torch.Tensor

    def modules(self, model: Any) -> Iterator[tuple[str, Any]]:
        yield from model.named_modules()

    @contextmanager
    def recording(self, model: Any, *, backward: bool, apis: bool) -> Iterator[MemoryEngine]:
        with _pool.borrow(memory_config(backward=backward, apis=apis)) as recorder:
            engine = recorder.engine
            recorder.modules.watch(model, f"Module.{type(model).__name__}.")
            try:
                recorder.start(model)
                for info in recorder.modules.infos.values():
                    module = info.module
                    # What PyTorch's own layers call inside says nothing that their output does not.
                    info.whole = not module._modules and type(module).__module__.startswith("torch.")
                    if isinstance(module, torch.jit.ScriptModule):
                        recorder.book.exposed = True  # nobody sees what it writes
                yield engine
            finally:
                recorder.stop()

    def float_mean(self, tensor: Any) -> Any:
        if not tensor.requires_grad:
            return None
        return (tensor.abs() if tensor.is_complex() else tensor).float().mean()

    def take_gradients(self, modules: Iterable[Any], /) -> list[tuple[Any, Any]]:
        held = [one for module in modules for one in module._parameters.values() if one is not None]
        found = [(one, one.grad) for one in held if one.grad is not None]
        for parameter, _ in found:
            parameter.grad = None
        return found

    def set_gradients(self, gradients: list[tuple[Any, Any]], /) -> None:
        for parameter, gradient in gradients:
            parameter.grad = gradient

    def clear_gradients(self, _model: Any, modules: Iterable[Any], /) -> None:
        for module in modules:
            for parameter in module._parameters.values():
                if parameter is not None:
                    parameter.grad = None

    def step(self, _model: Any, optimizer: Any, /) -> None:
        if isinstance(optimizer, torch.optim.Optimizer):
            optimizer.step()
            optimizer.zero_grad()
        else:
            optimizer()

    def to_host(self, value: Any) -> HostTensor:
        if isinstance(value, np.ndarray):
            return array_on_host(value)
        name = _PLAIN.get(value.dtype)
        if name is not None and type(value) is torch.Tensor and _is_kept_copy(value):
            return HostTensor(name, tuple(value.shape), value.numpy().reshape(-1))
        data = value.detach()
        if data.is_sparse or data.is_quantized:
            data = data.dequantize() if data.is_quantized else data.to_dense()
        data = data.resolve_conj().resolve_neg().to("cpu").contiguous()
        name = dtype_name(data.dtype)
        shape = tuple(data.shape)
        flat = data.reshape(-1)
        if np.dtype(STORAGE[name]).name != name:
            flat = flat.view(_BITS[data.element_size()])
        return HostTensor(name, shape, flat.numpy().view(STORAGE[name]))

    def tensor(self, host: HostTensor, model: Any = None, /) -> Any:
        storage = np.array(host.data).reshape(host.shape)
        if np.dtype(STORAGE[host.dtype]).name != host.dtype:
            bits = torch.from_numpy(storage.view(f"i{storage.itemsize}" if storage.itemsize > 1 else "u1"))
            made = bits.view(getattr(torch, host.dtype))
        else:
            made = torch.from_numpy(storage)
        first = next(iter(model.parameters()), None) if model is not None else None
        return made if first is None else made.to(first.device)

    def copied(self, tensor: Any) -> Any:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)

    def seed(self, number: int) -> None:
        if _accelerator.is_available():
            torch.manual_seed(number)
        else:  # the other way notes a stack trace for each kind of device, to be used when one turns up
            torch.default_generator.manual_seed(number)

    def random_state(self) -> Any:
        return torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None

    def set_random_state(self, state: Any) -> None:
        torch.set_rng_state(state[0])
        if state[1] is not None:
            torch.cuda.set_rng_state_all(state[1])

    @contextmanager
    def dropouts(self, new_mask: NewMask) -> Iterator[None]:
        originals = {name: getattr(_functional, name) for name in _DROPOUTS}

        def masked(name: str) -> Any:
            def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
                if not training or not 0 < p <= 1:
                    return originals[name](input, p, training, inplace)
                shape = tuple(input.shape)
                if name != "dropout":  # whole channels; without a batch the first axis has them
                    leading = 1 if input.dim() == _DROPOUTS[name] else 2
                    shape = shape[:leading] + (1,) * (input.dim() - leading)
                mask = torch.as_tensor(new_mask(shape, p), dtype=input.dtype, device=input.device)
                return input.mul_(mask) if inplace else input * mask

            return dropout

        for name in originals:
            setattr(_functional, name, masked(name))
        try:
            yield
        finally:
            for name, original in originals.items():
                setattr(_functional, name, original)

    @contextmanager
    def around_calls(self, model: Any, before: Any, after: Any) -> Iterator[None]:
        handles = []
        try:
            for _, module in self.modules(model):
                handles.append(module.register_forward_pre_hook(before, with_kwargs=True, prepend=True))
                handles.append(module.register_forward_hook(lambda module, _args, output: after(module, output)))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def substitute(self, tensor: Any, value: HostTensor, on_gradient: OnGradient) -> Any:
        return _Substitute.apply(tensor, self.tensor(value).to(tensor), on_gradient, self)


def _is_kept_copy(value: torch.Tensor) -> bool:
    return value.is_cpu and value.is_contiguous() and not (value.requires_grad or value.is_neg())


def _make_recorder(config: RecordConfig, make_engine: Any) -> KeepingRecorder:
    recorder = KeepingRecorder(config, make_engine)
    recorder.book = book = KeptTensors()
    kept = dict.fromkeys((torch.Tensor, torch.nn.Parameter), book.keep)
    recorder.capture = Capturer(recorder.values, recorder.failed, kept)
    return recorder


class _Substitute(torch.autograd.Function):  # type: ignore[misc]  # torch is not followed by mypy
    @staticmethod
    def forward(ctx: Any, _tensor: Any, value: Any, on_gradient: OnGradient, owner: TorchAdapter) -> Any:
        ctx.on_gradient, ctx.owner = on_gradient, owner
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        other = ctx.on_gradient(ctx.owner.to_host(gradient))
        if other is not None:
            gradient = ctx.owner.tensor(other).to(gradient)
        return gradient, None, None, None


_pool = RecorderPool(_make_recorder)
adapter = TorchAdapter()
