"""PyTorch, as live comparison sees it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch

from twinprobe._live.frameworks import layouts
from twinprobe._live.frameworks.adapter import Adapter, NewMask, OnGradient, Substitution, array_on_host, replaced
from twinprobe._live.frameworks.layouts import Array, Layout, Rules
from twinprobe._record.calls import ModuleInfo
from twinprobe._record.config import RecordConfig
from twinprobe._record.entries import Capturer
from twinprobe._record.memory.engine import RecorderPool
from twinprobe._record.memory.torch import KeepingRecorder, KeptTensors
from twinprobe._record.torch.optimizer import settings_in
from twinprobe._runs.dtypes import STORAGE, dtype_name
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe.errors import BadInput

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PLAIN = {getattr(torch, name): name for name in ("float32", "float64", "int64", "int32")}
_functional: Any = torch.nn.functional
# With the number of axes that an input without a batch has; dropout2d takes none.
_DROPOUTS = {"dropout": 0, "dropout1d": 2, "dropout2d": 0, "dropout3d": 4}
_accelerator: Any = getattr(torch, "accelerator", torch.cuda)
_Uninitialized: Any = torch.nn.parameter.UninitializedTensorMixin
_EXACT_IN_FLOAT32 = {
    getattr(torch, name, torch.bfloat16)
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
}


def _make_recorder(config: RecordConfig, make_engine: Any) -> KeepingRecorder:
    recorder = KeepingRecorder(config, make_engine)
    recorder.registry = registry = KeptTensors()
    kept = dict.fromkeys((torch.Tensor, torch.nn.Parameter), registry.keep)
    recorder.capture = Capturer(recorder.values, recorder.failed, kept)
    return recorder


class TorchAdapter(Adapter):
    """The verbs, for PyTorch."""

    name = "pytorch"
    title = "PyTorch"
    package = "torch"
    tensor_class = torch.Tensor
    optimizer_class = torch.optim.Optimizer
    forgets_by = "zero_grad"
    pool = RecorderPool(_make_recorder)

    def modules(self, model: Any) -> Iterator[tuple[str, Any]]:
        yield from model.named_modules()

    def prepare(self, recorder: Any, info: ModuleInfo, /) -> None:
        info.whole = self.is_whole(info.module)
        if isinstance(info.module, torch.jit.ScriptModule):
            recorder.registry.exposed = True  # its writes go unseen

    def float_mean(self, tensor: Any) -> Any:
        if not tensor.requires_grad:
            return None
        return (tensor.abs() if tensor.is_complex() else tensor).float().mean()

    def take_gradients(self, modules: Iterable[Any], /) -> list[tuple[Any, Any]]:
        held = [parameter for module in modules for parameter in module._parameters.values() if parameter is not None]
        gradients = [(parameter, parameter.grad) for parameter in held if parameter.grad is not None]
        for parameter, _ in gradients:
            parameter.grad = None
        return gradients

    def set_gradients(self, gradients: list[tuple[Any, Any]], /) -> None:
        for parameter, gradient in gradients:
            parameter.grad = gradient

    def settings(self, optimizer: Any, /) -> list[tuple[list[Any], dict[str, Any]]]:
        groups = getattr(optimizer, "param_groups", ())
        return [(group["params"], {key: _plain(value) for key, value in settings_in(group)}) for group in groups]

    def clear_gradients(self, _model: Any, modules: Iterable[Any], /) -> None:
        for module in modules:
            for parameter in module._parameters.values():
                if parameter is not None:
                    parameter.grad = None

    def to_host(self, value: Any) -> HostTensor:
        if isinstance(value, np.ndarray):
            return array_on_host(value)
        name = _PLAIN.get(value.dtype)
        is_plain = value.is_cpu and value.is_contiguous() and not (value.requires_grad or value.is_neg())
        if name is not None and type(value) is torch.Tensor and is_plain:
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

        with replaced([(_functional, name, masked(name)) for name in originals]):
            yield

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
        return _Substitute.apply(tensor, self.like(self.tensor(value), tensor), on_gradient, self)

    def like(self, tensor: Any, other: Any) -> Any:
        return tensor.to(other)

    def state(self, module: Any) -> dict[str, Any]:
        buffers = {}
        for name, value in module._buffers.items():
            if value is None or isinstance(value, _Uninitialized):
                continue
            if value.layout is torch.strided and not value.is_quantized and not value.is_meta:
                buffers[name] = value
        return buffers

    @cached_property
    def rules(self) -> Rules:
        decoder = layouts.transformer_layer("linear1", "linear2", "multihead_attn")
        return layouts.rules_for(
            torch.nn,
            {
                "Linear": layouts.linear(),
                "modules.conv._ConvTransposeNd": layouts.convolution(transposed=True),
                "modules.conv._ConvNd": layouts.convolution(),
                "Embedding EmbeddingBag": layouts.embedding(),
                "modules.batchnorm._NormBase": layouts.norm(mean="running_mean", variance="running_var"),
                "LayerNorm GroupNorm RMSNorm": layouts.norm(),
                "MultiheadAttention": layouts.packed_attention,
                "RNNBase": lambda layer: layouts.flat_recurrent(layer, layer.num_layers, both_ways=layer.bidirectional),
                "RNNCellBase": layouts.recurrent,
                "Bilinear": layouts.bilinear(),
                "PReLU": layouts.prelu(),
                "TransformerEncoderLayer": layouts.transformer_layer("linear1", "linear2"),
                "TransformerDecoderLayer": decoder,
                "TransformerEncoder TransformerDecoder": layouts.transformer_stack,
            },
        )

    def layout(self, module: Any) -> Layout | None:
        # GPT-2 and its kin call a linear layer with a transposed matrix a Conv1D.
        relatives = sys.modules.get("transformers.pytorch_utils")
        if relatives is not None and isinstance(module, relatives.Conv1D):
            return layouts.linear(transposed=True)
        return super().layout(module)

    def trainable(self, tensor: Any) -> bool:
        return bool(tensor.requires_grad)

    def key(self, tensor: Any) -> object:
        pointer = 0 if tensor.is_meta else tensor.data_ptr()
        return (pointer, tuple(tensor.shape), tensor.stride()) if pointer else id(tensor)

    def shape(self, tensor: Any) -> tuple[int, ...]:
        if isinstance(tensor, _Uninitialized):
            raise BadInput("a lazy module has no weights yet", hint="call both models once before copying")
        if tensor.is_meta:
            raise BadInput("a parameter on the meta device has no values", hint="materialise the model first")
        return tuple(tensor.shape)

    def dtype(self, tensor: Any) -> str:
        return dtype_name(tensor.dtype)

    def read(self, tensor: Any) -> Array:
        values = tensor.detach()
        if values.dtype in _EXACT_IN_FLOAT32:
            values = values.to(torch.float32)
        return cast("Array", (values if values.is_cpu else values.cpu()).numpy())

    def write(self, tensor: Any, values: Array) -> None:
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(values))


class _Substitute(Substitution, torch.autograd.Function):  # type: ignore[misc]  # torch is not followed by mypy
    pass


adapter = TorchAdapter()


def _plain(setting: Any) -> Any:
    if not isinstance(setting, torch.Tensor):
        return setting
    return setting.item() if setting.numel() == 1 else None
