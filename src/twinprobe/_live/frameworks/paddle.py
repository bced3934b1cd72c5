"""PaddlePaddle in dynamic mode, as live comparison sees it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, cached_property
from inspect import signature
from math import prod
from typing import Any, cast

import numpy as np
import paddle

from twinprobe._live.frameworks import layouts
from twinprobe._live.frameworks.adapter import (
    Adapter,
    NewMask,
    OnGradient,
    calls_around,
    numpy_name,
    passed_on,
    replaced,
)
from twinprobe._live.frameworks.layouts import TRANSPOSED, Array, Layout, Rules
from twinprobe._record.config import RecordConfig
from twinprobe._record.memory.engine import LeftGradients, RecorderPool, aliases
from twinprobe._record.memory.paddle import ONLY_HOST, KeepingRecorder
from twinprobe._record.paddle.recorder import groups_of
from twinprobe._runs.dtypes import dtype_name
from twinprobe._runs.tensors.elements import HostTensor

_functional: Any = paddle.nn.functional
_assign: Any = paddle._C_ops.assign  # held here, because operations are replaced while a model is recorded
_float32 = paddle.float32
_IN_MEMORY = {name: np.dtype(name) for name in ("float32", "float64", "float16", "int64", "int32")}
_SPLIT = "distributed.fleet.meta_parallel"  # layers cut over several devices


def _make_recorder(config: RecordConfig, make_engine: Any) -> Any:
    recorder = KeepingRecorder(config, make_engine)
    parameters = recorder.own_parameters
    recorder.parameters = LeftGradients(
        recorder, lambda info: parameters(info.module, info.compiled), recorder.note_parameter_gradient
    )
    return recorder


class PaddleAdapter(Adapter):
    """The verbs, for Paddle."""

    name = "paddle"
    title = "Paddle"
    package = "paddle"
    tensor_class = paddle.Tensor
    optimizer_class = paddle.optimizer.Optimizer
    forgets_by = "clear_grad"
    pool = RecorderPool(_make_recorder)
    modules_at = "_sub_layers"
    unsaved_at = "_non_persistable_buffer_names_set"
    statistics = ("_mean", "_variance", "weight_u", "weight_v")
    numpy = staticmethod(lambda tensor: tensor.detach().numpy())
    from_numpy = staticmethod(paddle.to_tensor)
    bfloat16 = paddle.bfloat16

    def modules(self, model: Any) -> Iterator[tuple[str, Any]]:
        yield from model.named_sublayers(include_self=True)

    def is_transposed(self, module: Any, name: str, /) -> bool:
        return name == "weight" and isinstance(module, paddle.nn.Linear)

    def float_mean(self, tensor: Any) -> Any:
        if tensor.stop_gradient:
            return None
        return (tensor.abs() if tensor.is_complex() else tensor).astype("float32").mean()

    def take_gradients(self, modules: Iterable[Any], /) -> list[tuple[Any, Any]]:
        held = [(p, p.grad) for module in modules for p in module._parameters.values() if p is not None]
        dense = [(parameter, gradient) for parameter, gradient in held if gradient is not None and gradient.is_dense()]
        if dense:
            placeholder = paddle.zeros([1])
            for parameter, _ in dense:
                # Clearing frees the memory of a parameter's gradient, even if others hold it: free a placeholder.
                parameter._copy_gradient_from(_assign(placeholder))
                parameter.clear_gradient(False)
        return dense

    def gradient(self, _model: Any, parameter: Any, /) -> Any:
        gradient = parameter.grad
        return gradient if gradient is not None and gradient.is_dense() else None

    def settings(self, optimizer: Any, /) -> list[tuple[list[Any], dict[str, Any]]]:
        if not isinstance(optimizer, paddle.optimizer.Optimizer):
            return []
        return [(group.parameters, group.settings) for group in groups_of(optimizer)]

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
        try:
            with replaced([(place, "dropout", _masked_dropout) for place in places]):
                yield
        finally:
            _dropouts.pop()

    def around_calls(self, model: Any, before: Any, after: Any) -> AbstractContextManager[None]:
        return calls_around(paddle.nn.Layer, self.modules(model), before, after)

    def substitute(self, tensor: Any, value: HostTensor, on_gradient: OnGradient) -> Any:
        made = self.like(self.tensor(value), tensor)
        if tensor.stop_gradient:
            return made
        # Hooks that a user puts on the result of a PyLayer change nothing; on that of an operation they do.
        return _assign(_Substitute.apply(tensor, made, on_gradient, self))

    @cached_property
    def rules(self) -> Rules:
        return layouts.rules_for(
            paddle,
            {
                "nn.Linear": layouts.linear(transposed=True),
                f"{_SPLIT}.ColumnParallelLinear {_SPLIT}.RowParallelLinear": layouts.linear(transposed=True),
                "nn.Conv1DTranspose nn.Conv2DTranspose nn.Conv3DTranspose": layouts.convolution(transposed=True),
                "nn.layer.conv._ConvNd": layouts.convolution(),
                f"nn.Embedding {_SPLIT}.VocabParallelEmbedding": layouts.embedding(),
                "nn.layer.norm._BatchNormBase nn.BatchNorm": layouts.norm(mean="_mean", variance="_variance"),
                "nn.layer.norm._InstanceNormBase": layouts.norm(weight="scale"),
                "nn.LayerNorm nn.GroupNorm": layouts.norm(),
                "nn.MultiHeadAttention": layouts.separate_attention(),
                "nn.layer.rnn.RNNBase": _stacked,
                "nn.RNN nn.BiRNN": _wrapper,
                "nn.LSTMCell nn.GRUCell nn.SimpleRNNCell": lambda cell: layouts.recurrent(cell, projection=TRANSPOSED),
                "nn.Bilinear": layouts.bilinear(row_bias=True),
                "nn.PReLU": layouts.prelu("_weight"),
                "nn.TransformerEncoderLayer": layouts.transformer_layer("linear1", "linear2"),
                "nn.TransformerDecoderLayer": layouts.transformer_layer("linear1", "linear2", "cross_attn"),
                "nn.TransformerEncoder nn.TransformerDecoder": layouts.transformer_stack,
            },
        )

    def trainable(self, tensor: Any) -> bool:
        return not tensor.stop_gradient

    def dtype(self, tensor: Any) -> str:
        dtype = tensor.dtype
        return "float32" if dtype is _float32 else dtype_name(dtype)  # hashing one takes long

    def read(self, tensor: Any) -> Array:
        # NumPy has no bfloat16; Paddle would return its bits as integers.
        narrow = self.dtype(tensor) in ("bfloat16", "float8_e4m3fn", "float8_e5m2")
        return cast("Array", (tensor.detach().astype("float32") if narrow else tensor.detach()).numpy())

    def memory(self, tensor: Any, /) -> Array | None:
        # What set_value does for a tensor on the host, without a copy in between.
        dtype = _IN_MEMORY.get(self.dtype(tensor))
        plain = dtype is not None and tensor.is_dense() and tensor.is_contiguous() and tensor._is_initialized()
        shape = tensor.shape
        if dtype is None or not plain or not (ONLY_HOST or tensor.place.is_cpu_place()) or 0 in shape:
            return None
        memory = _bytes(prod(shape) * dtype.itemsize).from_address(tensor.data_ptr())
        return cast("Array", np.ndarray(shape, dtype, memory))

    def write(self, tensor: Any, values: Array) -> None:
        if numpy_name(values.dtype) == self.dtype(tensor) and not tensor.is_dist():
            tensor.set_value(values)
            return
        with paddle.no_grad():
            tensor.set_value(paddle.to_tensor(values, place=tensor.place).astype(tensor.dtype))


@cache
def _bytes(count: int) -> Any:
    return ctypes.c_char * count


def _cells_of(wrapper: Any, index: int, before: str = "") -> list[tuple[str, str, str]]:
    if isinstance(wrapper, paddle.nn.BiRNN):
        return [(f"l{index}", f"{before}cell_fw.", ""), (f"l{index}_reverse", f"{before}cell_bw.", "")]
    name = f"l{index}_reverse" if wrapper.is_reverse else f"l{index}"
    return [(name, f"{before}cell.", "")]


def _stacked(layer: Any) -> Layout:
    # The layer's own attributes repeat the cells' parameters, under wrong names when one bias is switched off.
    cells = [cell for index, wrapper in enumerate(layer) for cell in _cells_of(wrapper, index, f"{index}.")]
    return layouts.recurrent(layer, cells, TRANSPOSED)


def _wrapper(layer: Any) -> Layout:
    cell = layer.cell_fw if isinstance(layer, paddle.nn.BiRNN) else layer.cell
    return layouts.recurrent(cell, _cells_of(layer, 0), TRANSPOSED)


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
    mask = new_mask(tuple(size if index in axes else 1 for index, size in enumerate(x.shape)), float(p))
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
        return passed_on(ctx, gradient)


adapter = PaddleAdapter()
