"""PyTorch's tensors, kept as they are noted: nothing is measured, and a tensor that comes again is recognised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from twinprobe._record.calls import ModuleInfo
from twinprobe._record.config import RecordConfig
from twinprobe._record.engine import Engine
from twinprobe._record.entries import Note, Row
from twinprobe._record.memory.engine import Holding, LeftGradients, aliases
from twinprobe._record.torch.recorder import TorchRecorder
from twinprobe._record.torch.tensors import TensorRegistry

_contiguous = torch.contiguous_format
_float32 = torch.float32
# What a tensor is, in one number: its device and layout; whether it is quantized, nested, negated, wrapped and so on.
_keys_of: Any = torch._C._dispatch_keys
_number_of: Any = getattr(torch._C.DispatchKeySet, "raw_repr", repr)  # older versions have no number
with torch.inference_mode(False):
    _PLAIN = _number_of(_keys_of(torch.empty(1, device="cpu")))


class _Watching(TorchFunctionMode):  # type: ignore[misc]  # torch is not followed by mypy
    """Notes whether anything was called."""

    seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = True
        return func(*args, **(kwargs or {}))


def _sees_elements_written() -> bool:
    """Whether ``tensor[:] = other`` can be watched. With PyTorch 2.2 it cannot, so tensors are copied at once there."""
    tensor, values = torch.zeros(2), torch.ones(2)
    with _Watching() as watching:
        tensor[:] = values
    return bool(watching.seen)


_MAY_HOLD = _sees_elements_written()


class KeptTensors(TensorRegistry):
    """Every tensor once for each version of it, held until something is written, then copied.

    All are held until the run is over, so that nothing else can get the identity of one that is gone.
    """

    def __init__(self) -> None:
        super().__init__(values=False, digest=None)
        self._held: dict[int, Holding] = {}
        self._names: dict[torch.dtype, str] = {}
        self.exposed = False  # memory was exposed: writes to it cannot be observed

    def keep(self, tensor: torch.Tensor) -> Note:
        """Note a plain tensor or parameter and keep its content."""
        held = self._held.get(id(tensor))
        if held is not None and held[2] == tensor._version and held[0].requires_grad is tensor.requires_grad:
            return held[0]
        if _number_of(_keys_of(tensor)) != _PLAIN:
            return self.note(tensor, save=True)
        held = self._held[id(tensor)] = self._kept(tensor, tensor)
        return held[0]

    def keep_passing(self, tensor: torch.Tensor) -> Note:
        """The same for a tensor that autograd takes over, which it does only where it has no other owner."""
        if type(tensor) is not torch.Tensor or _number_of(_keys_of(tensor)) != _PLAIN:
            return self.note(tensor, save=True)
        return self._kept(tensor, tensor.detach())[0]

    def _kept(self, tensor: torch.Tensor, alias: torch.Tensor) -> Holding:
        dtype, shape = tensor.dtype, tensor.shape
        name = self._names.get(dtype)
        if name is None:
            name = self._names[dtype] = str(dtype)
        row = Row(None, None, alias, tensor.data_ptr() if dtype is _float32 else 0)
        held = Note("torch.Tensor", name, shape, row, tensor.requires_grad, True), alias, tensor._version, self
        may_hold = _MAY_HOLD and not self.exposed and 0 not in shape and tensor.is_contiguous()
        if not (may_hold and aliases.hold(held)):
            row.address = 0
            row.payload = self.copy_of(tensor) if 0 not in shape else None
        return held

    version_of: Any = attrgetter("_version")

    def copy_of(self, tensor: Any) -> Any:
        return tensor.detach().clone(memory_format=_contiguous)

    def settle(self) -> None:
        aliases.settle()
        super().settle()

    def forget(self) -> None:
        self._held.clear()
        super().forget()

    def forget_storage(self, tensor: torch.Tensor) -> None:
        self.exposed = True
        self._held.clear()
        super().forget_storage(tensor)

    def collect(self) -> Callable[[], None] | None:
        self.exposed = False
        if aliases.allowed:  # the next run settles what it writes to
            self._held.clear()
            self._numbers.clear()
            self._notes = {}
            return None
        return super().collect()


class KeepingRecorder(TorchRecorder):
    """The recorder as live comparison uses it."""

    registry: KeptTensors

    def __init__(self, config: RecordConfig, make_engine: Callable[[RecordConfig, Any], Engine]) -> None:
        super().__init__(config, make_engine)
        self._hooked = self.parameters
        self._left = LeftGradients(self, _own_parameters, lambda _module, _name, gradient: self.capture(gradient))

    def watch_parameters(self) -> None:
        hooked = self.rank() is not None or any(_gives_away(info.module) for info in self.modules.infos.values())
        self.parameters = self._hooked if hooked else self._left
        super().watch_parameters()

    def pass_begins(self) -> None:
        # A second pass adds to the gradients of the first where they lie.
        if self.passes:
            self.registry.settle()
        self.passes += 1

    def pass_ended(self) -> None:
        if self.graph.in_pass:  # inside another one, which has not reached all parameters yet
            return
        try:
            self.parameters.flush()
        except Exception as error:
            self.trouble("recording gradients of parameters", error)

    def note_parameter_gradient(self, _module: Any, _name: str, gradient: torch.Tensor) -> Any:
        note = self.registry.keep_passing(gradient)
        if self.distributed:
            self.registry.settle()
        return note

    passes = 0

    def stop(self) -> None:
        self.passes = 0
        super().stop()


def _own_parameters(info: ModuleInfo) -> Mapping[str, torch.nn.Parameter | None]:
    return {} if info.compiled else info.module._parameters


def _gives_away(module: torch.nn.Module) -> bool:
    """Whether gradients may be gone when the pass is over: some train while it runs, and only leaves keep theirs."""
    for parameter in module._parameters.values():
        if parameter is not None and (not parameter.is_leaf or getattr(parameter, "_post_accumulate_grad_hooks", None)):
            return True
    return False
