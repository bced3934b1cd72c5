"""MindSpore in PyNative mode, as live comparison sees it."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from operator import methodcaller
from typing import Any, cast

import mindspore as ms
from mindspore import nn, ops
from mindspore.common.api import _pynative_executor as executor

from twinprobe._live.frameworks import layouts
from twinprobe._live.frameworks.adapter import (
    Adapter,
    Call,
    Loss,
    NewMask,
    OnGradient,
    Substitution,
    calls_around,
    replaced,
)
from twinprobe._live.frameworks.layouts import Array, Layout, Rules
from twinprobe._record.memory.engine import RecorderPool
from twinprobe._record.mindspore.recorder import MindSporeRecorder, groups_of_a_step
from twinprobe._runs.tensors.elements import HostTensor


class MindSporeAdapter(Adapter):
    """The verbs, for MindSpore. Gradients are no part of its parameters, so the last ones are kept here."""

    name = "mindspore"
    title = "MindSpore"
    package = "mindspore"
    container = "Cell"
    tensor_class = ms.Tensor
    parameters_at = "_params"
    modules_at = "_cells"
    statistics = ("moving_mean", "moving_variance", "running_mean", "running_var")
    numpy = staticmethod(methodcaller("asnumpy"))
    from_numpy = ms.Tensor
    bfloat16 = ms.bfloat16

    def __init__(self) -> None:
        self._gradients: weakref.WeakKeyDictionary[Any, dict[int, Any]] = weakref.WeakKeyDictionary()

    def modules(self, model: Any) -> Iterator[tuple[str, Any]]:
        yield from model.cells_and_names()

    @property
    def pool(self) -> RecorderPool:
        return RecorderPool(MindSporeRecorder)  # a new one each time: a recorder here is quickly made

    def run(self, model: Any, call: Call, loss: Loss | None, *, backward: bool) -> Any:
        if not backward:
            model(*call.args, **call.kwargs)
            return None

        def forward() -> Any:
            return (loss or self.mean_of_means)(model(*call.args, **call.kwargs))

        weights = model.trainable_params()
        try:
            total, gradients = ms.value_and_grad(forward, None, weights)()
        except BaseException:
            executor.clear_res()  # otherwise the next backward pass of this process fails
            raise
        self._gradients[model] = {id(weight): gradient for weight, gradient in zip(weights, gradients, strict=True)}
        return total

    def float_mean(self, tensor: Any) -> Any:
        return tensor.astype(ms.float32).mean() if tensor.is_floating_point() else None

    def take_gradients(self, _modules: Iterable[Any], /) -> list[tuple[Any, Any]]:
        return []

    def set_gradients(self, _gradients: list[tuple[Any, Any]], /) -> None:
        pass

    def clear_gradients(self, model: Any, _modules: Iterable[Any], /) -> None:
        self._gradients.pop(model, None)

    def gradient(self, model: Any, parameter: Any, /) -> Any:
        return self._gradients.get(model, {}).get(id(parameter))

    def settings(self, optimizer: Any, /) -> list[tuple[list[Any], dict[str, Any]]]:
        if not isinstance(optimizer, nn.Optimizer | ms.experimental.optim.Optimizer):
            return []
        return [(group.parameters, group.settings) for group in groups_of_a_step(optimizer)]

    def step(self, model: Any, optimizer: Any, /) -> None:
        gradients = self._gradients.get(model, {})
        if isinstance(optimizer, nn.Optimizer | ms.experimental.optim.Optimizer):
            wanted = getattr(optimizer, "parameters", None) or model.trainable_params()
            optimizer(tuple(gradients[id(weight)] for weight in wanted))
        else:
            optimizer(*([tuple(gradients.values())] if _takes_one(optimizer) else []))
        self.clear_gradients(model, ())

    def copied(self, tensor: Any) -> Any:
        return tensor.copy()

    def seed(self, number: int) -> None:
        ms.set_seed(number)
        ms.manual_seed(number)

    def random_state(self) -> Any:
        return ms.get_rng_state(), ms.get_seed()

    def set_random_state(self, state: Any) -> None:
        if state[1] is not None:
            ms.set_seed(state[1])
        ms.set_rng_state(state[0])

    @contextmanager
    def dropouts(self, new_mask: NewMask) -> Iterator[None]:
        places = [(nn.Dropout, "construct", _construct_dropout), (ops, "dropout", _dropout)]
        mint = getattr(ms, "mint", None)
        if mint is not None:
            places += [(mint.nn.Dropout, "construct", _construct_dropout), (mint.nn.functional, "dropout", _dropout)]
        _masks.append(new_mask)
        try:
            with replaced(places):
                yield
        finally:
            _masks.pop()

    def around_calls(self, model: Any, before: Any, after: Any) -> AbstractContextManager[None]:
        return calls_around(nn.Cell, self.modules(model), before, after)

    def substitute(self, tensor: Any, value: HostTensor, on_gradient: OnGradient) -> Any:
        return _Substitute.apply(tensor, self.like(self.tensor(value), tensor), on_gradient, self)

    @cached_property
    def rules(self) -> Rules:
        moving = ("gamma", "beta", "moving_mean", "moving_variance")
        running = layouts.norm(mean="running_mean", variance="running_var")
        return layouts.rules_for(
            ms,
            {
                "nn.Dense mint.nn.Linear": layouts.linear(),
                "nn.Conv1dTranspose": layouts.convolution(transposed=True, drop=2),
                "nn.Conv2dTranspose nn.Conv3dTranspose mint.nn.ConvTranspose2d": layouts.convolution(transposed=True),
                "nn.Conv1d": layouts.convolution(drop=2),
                "nn.Conv2d nn.Conv3d mint.nn.Conv1d mint.nn.Conv2d mint.nn.Conv3d": layouts.convolution(),
                "nn.Embedding nn.EmbeddingLookup": layouts.embedding("embedding_table"),
                "mint.nn.Embedding": layouts.embedding(),
                "nn.BatchNorm3d": layouts.norm(*moving, inside="bn2d."),
                "nn.layer.normalization._BatchNorm nn.layer.normalization._InstanceNorm": layouts.norm(*moving),
                "mint.nn.BatchNorm1d mint.nn.BatchNorm2d mint.nn.BatchNorm3d mint.nn.SyncBatchNorm": running,
                "nn.LayerNorm nn.GroupNorm": layouts.norm("gamma", "beta"),
                "nn.RMSNorm": layouts.norm("gamma"),
                "mint.nn.LayerNorm mint.nn.GroupNorm mint.nn.RMSNorm": layouts.norm(),
                "nn.MultiheadAttention": layouts.packed_attention,
                "nn.LSTM nn.GRU nn.RNN": _recurrent,
                "nn.LSTMCell nn.GRUCell nn.RNNCell": layouts.recurrent,
                "nn.BiDense": layouts.bilinear(),
                "nn.PReLU": layouts.prelu("w"),
                "mint.nn.PReLU": layouts.prelu(),
                "nn.TransformerEncoderLayer": layouts.transformer_layer("dense1", "dense2"),
                "nn.TransformerDecoderLayer": layouts.transformer_layer("dense1", "dense2", "multihead_attn"),
                "nn.TransformerEncoder nn.TransformerDecoder": layouts.transformer_stack,
            },
        )

    def trainable(self, tensor: Any) -> bool:
        return bool(getattr(tensor, "requires_grad", False))

    def dtype(self, tensor: Any) -> str:
        return str(tensor.dtype).lower()

    def read(self, tensor: Any) -> Array:
        return cast("Array", (tensor.float() if self.dtype(tensor) == "bfloat16" else tensor).asnumpy())

    def write(self, tensor: Any, values: Array) -> None:
        given = ms.Tensor(values).astype(tensor.dtype)
        if isinstance(tensor, ms.Parameter):
            tensor.set_data(given)
        else:
            tensor.assign_value(given)


def _recurrent(cell: Any) -> Layout:
    layers = 1 + max(int(name.split("_")[2][1:]) for name in cell._params if name.startswith("weight_ih_l"))
    return layouts.flat_recurrent(cell, layers, both_ways="weight_ih_l0_reverse" in cell._params)


# The functions are the same for all runs: a recorder that finds others in their place starts from scratch.
_masks: list[NewMask] = []  # the innermost replacement last


def _masked(x: Any, p: float) -> Any:
    return x * ms.Tensor(_masks[-1](tuple(x.shape), float(p))).astype(x.dtype)


def _construct_dropout(cell: Any, x: Any) -> Any:
    p = cell.p if getattr(cell, "p", None) is not None else 1 - cell.keep_prob
    return _masked(x, p) if cell.training and p else x


def _dropout(input: Any, p: float = 0.5, training: bool = True, *_: Any, **__: Any) -> Any:
    return _masked(input, p) if training and p else input


class _Substitute(Substitution, ms._Function):  # type: ignore[misc]  # mindspore is not followed by mypy
    pass


def _takes_one(function: Any) -> bool:
    import inspect

    try:
        return len(inspect.signature(function).parameters) == 1
    except (TypeError, ValueError):
        return False


adapter = MindSporeAdapter()
