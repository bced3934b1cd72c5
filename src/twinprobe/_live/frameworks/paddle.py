"""PaddlePaddle in dynamic mode, as live comparison sees it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from inspect import signature
from typing import Any

import numpy as np
import paddle

from twinprobe._live.frameworks.adapter import (
    Adapter,
    NewMask,
    OnGradient,
    array_on_host,
    calls_around,
    memory_config,
    recorded_in_memory,
)
from twinprobe._live.frameworks.kept_paddle import KeepingRecorder
from twinprobe._live.live_run import MemoryEngine
from twinprobe._live.recorders import LeftGradients, RecorderPool, aliases
from twinprobe._record.config import RecordConfig
from twinprobe._runs.dtypes import STORAGE
from twinprobe._runs.tensors.elements import HostTensor

_functional: Any = paddle.nn.functional
_assign: Any = paddle._C_ops.assign  # held here, because operations are replaced while a model is recorded


class PaddleAdapter(Adapter):
    """The verbs, for Paddle."""

    name = "paddle"
    title = "Paddle"
    tensor_class = paddle.Tensor

    def modules(self, model: Any) -> Iterator[tuple[str, Any]]:
        yield from model.named_sublayers(include_self=True)

    def is_transposed(self, module: Any, name: str, /) -> bool:
        return name == "weight" and isinstance(module, paddle.nn.Linear)

    def recording(self, model: Any, *, backward: bool, apis: bool) -> AbstractContextManager[MemoryEngine]:
        return recorded_in_memory(_pool, memory_config(backward=backward, apis=apis), model, _is_whole)

    def float_mean(self, tensor: Any) -> Any:
        if tensor.stop_gradient:
            return None
        return (tensor.abs() if tensor.is_complex() else tensor).astype("float32").mean()

    def take_gradients(self, modules: Iterable[Any], /) -> list[tuple[Any, Any]]:
        held = [(one, one.grad) for module in modules for one in module._parameters.values() if one is not None]
        found = [(one, gradient) for one, gradient in held if gradient is not None and gradient.is_dense()]
        if found:
            other = paddle.zeros([1])
            for parameter, _ in found:
                # Clearing frees the memory of what a parameter has, whoever else has it too: let that be another one.
                parameter._copy_gradient_from(_assign(other))
                parameter.clear_gradient(False)
        return found

    def set_gradients(self, gradients: list[tuple[Any, Any]], /) -> None:
        for parameter, gradient in gradients:
            parameter._copy_gradient_from(gradient)  # takes it as it is; assigning to grad copies it

    def clear_gradients(self, _model: Any, modules: Iterable[Any], /) -> None:
        for module in modules:
            for parameter in module._parameters.values():
                gradient = None if parameter is None else parameter.grad
                if gradient is None:
                    continue
                if gradient._is_initialized():  # both models may have this parameter
                    aliases.settle_before_freeing(gradient.data_ptr())
                parameter.clear_gradient(False)

    def step(self, _model: Any, optimizer: Any, /) -> None:
        if isinstance(optimizer, paddle.optimizer.Optimizer):
            optimizer.step()
            optimizer.clear_grad()
        else:
            optimizer()

    def to_host(self, value: Any) -> HostTensor:
        if isinstance(value, np.ndarray):
            return array_on_host(value)
        name = str(value.dtype).rpartition(".")[2]
        array = value.detach().numpy()
        flat = np.ascontiguousarray(array).reshape(-1)
        shape = tuple(int(size) for size in value.shape)
        return HostTensor(name, shape, flat if flat.dtype == np.dtype(STORAGE[name]) else flat.view(STORAGE[name]))

    def tensor(self, host: HostTensor, _model: Any = None, /) -> Any:
        array = np.array(host.data).reshape(host.shape)
        if host.dtype == "bfloat16":
            wide = (array.astype(np.uint32) << 16).view(np.float32)
            return paddle.to_tensor(wide).astype("bfloat16")
        return paddle.to_tensor(array)

    def copied(self, tensor: Any) -> Any:
        made = tensor.detach().clone()
        made.stop_gradient = tensor.stop_gradient
        return made

    def seed(self, number: int) -> None:
        paddle.seed(number)

    def random_state(self) -> Any:
        return paddle.get_rng_state()

    def set_random_state(self, state: Any) -> None:
        paddle.set_rng_state(state)

    @contextmanager
    def dropouts(self, new_mask: NewMask) -> Iterator[None]:
        original = _functional.dropout
        places = [_functional, paddle.nn.functional.common, paddle.nn.layer.common.F]
        places = [place for place in dict.fromkeys(places) if getattr(place, "dropout", None) is original]
        _dropouts.append((new_mask, original))
        for place in places:
            place.dropout = _masked_dropout
        try:
            yield
        finally:
            _dropouts.pop()
            for place in places:
                place.dropout = original

    def around_calls(self, model: Any, before: Any, after: Any) -> AbstractContextManager[None]:
        return calls_around(paddle.nn.Layer, self.modules(model), before, after)

    def substitute(self, tensor: Any, value: HostTensor, on_gradient: OnGradient) -> Any:
        made = self.tensor(value).astype(tensor.dtype)
        if tensor.stop_gradient:
            return made
        # Hooks that a user puts on the result of a PyLayer change nothing; on that of an operation they do.
        return _assign(_Substitute.apply(tensor, made, on_gradient, self))


_signature = cache(signature)
_dropouts: list[tuple[NewMask, Any]] = []  # the innermost replacement last


def _masked_dropout(*args: Any, **named: Any) -> Any:
    # One function for all runs: a recorder that finds another one in this place starts from scratch.
    new_mask, original = _dropouts[-1]
    if "input" in named:  # the alias that newer versions take
        named["x"] = named.pop("input")
    given = _signature(original).bind(*args, **named)
    given.apply_defaults()
    asked = given.arguments
    x, p, axis = asked["x"], asked["p"], asked["axis"]
    if not asked["training"] or not isinstance(p, int | float) or not 0 < p <= 1:
        return original(*args, **named)
    axes = range(x.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    mask = new_mask(tuple(size if at in axes else 1 for at, size in enumerate(x.shape)), float(p))
    if asked["mode"] != "upscale_in_train":
        mask = mask != 0
    factor = paddle.to_tensor(mask).astype(x.dtype)
    return x.multiply_(factor) if asked.get("inplace") else x * factor


class _Substitute(paddle.autograd.PyLayer):  # type: ignore[misc]  # paddle is not followed by mypy
    @staticmethod
    def forward(ctx: Any, _tensor: Any, value: Any, on_gradient: OnGradient, owner: PaddleAdapter) -> Any:
        ctx.on_gradient, ctx.owner = on_gradient, owner
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        other = ctx.on_gradient(ctx.owner.to_host(gradient))
        if other is not None:
            gradient = ctx.owner.tensor(other).astype(gradient.dtype)
        return gradient


def _is_whole(module: Any) -> bool:
    return not module._sub_layers and type(module).__module__.startswith("paddle.")


def _make_recorder(config: RecordConfig, make_engine: Any) -> Any:
    recorder = KeepingRecorder(config, make_engine)
    parameters = recorder.own_parameters
    recorder.parameters = LeftGradients(
        recorder, lambda info: parameters(info.module, info.compiled), recorder.note_parameter_gradient
    )
    return recorder


_pool = RecorderPool(_make_recorder)
adapter = PaddleAdapter()
