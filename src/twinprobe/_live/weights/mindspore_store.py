"""Weights of MindSpore cells."""

from __future__ import annotations

import functools
from typing import Any

import mindspore
from mindspore import mint, nn

from twinprobe._live.weights import stores as layouts
from twinprobe._live.weights.stores import Array, Layout, Rules, Store, always

_STATISTICS = ("moving_mean", "moving_variance", "running_mean", "running_var")  # kept among the parameters


def _recurrent(cell: Any) -> Layout:
    layers = 1 + max(int(name.split("_")[2][1:]) for name in cell._params if name.startswith("weight_ih_l"))
    return layouts.flat_recurrent(
        layouts.recurrent_kind(cell), layers, both_ways="weight_ih_l0_reverse" in cell._params
    )


def _from(package: Any, *names: str) -> tuple[type, ...]:
    """The classes of these names that this version of MindSpore has."""
    return tuple(getattr(package, name) for name in names if hasattr(package, name))


@functools.cache
def _rules() -> Rules:
    new = mint.nn
    layers = nn.layer
    moving = ("gamma", "beta", "moving_mean", "moving_variance")
    running = layouts.norm(mean="running_mean", variance="running_var")
    plain_norms = _from(new, "LayerNorm", "GroupNorm", "RMSNorm")
    one_axis = _from(nn, "Conv1d")
    return [
        (_from(nn, "Dense") + _from(new, "Linear"), always(layouts.linear())),
        (_from(nn, "Conv1dTranspose"), always(layouts.convolution(transposed=True, drop=2))),
        (_from(nn, "Conv2dTranspose", "Conv3dTranspose"), always(layouts.convolution(transposed=True))),
        (_from(new, "ConvTranspose2d"), always(layouts.convolution(transposed=True))),
        (one_axis, always(layouts.convolution(drop=2))),
        (_from(nn, "Conv2d", "Conv3d") + _from(new, "Conv1d", "Conv2d", "Conv3d"), always(layouts.convolution())),
        (_from(nn, "Embedding", "EmbeddingLookup"), always(layouts.embedding("embedding_table"))),
        (_from(new, "Embedding"), always(layouts.embedding())),
        (_from(nn, "BatchNorm3d"), always(layouts.norm(*moving, inside="bn2d."))),
        ((layers.normalization._BatchNorm, layers.normalization._InstanceNorm), always(layouts.norm(*moving))),
        (_from(new, "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"), always(running)),
        (_from(nn, "LayerNorm", "GroupNorm"), always(layouts.norm("gamma", "beta"))),
        (_from(nn, "RMSNorm"), always(layouts.norm("gamma"))),
        (plain_norms, always(layouts.norm())),
        (_from(nn, "MultiheadAttention"), layouts.packed_attention),
        (_from(nn, "LSTM", "GRU", "RNN"), _recurrent),
        (_from(nn, "LSTMCell", "GRUCell", "RNNCell"), lambda cell: layouts.one_cell(layouts.recurrent_kind(cell))),
        (_from(nn, "BiDense"), always(layouts.bilinear())),
        (_from(nn, "PReLU"), always(layouts.prelu("w"))),
        (_from(new, "PReLU"), always(layouts.prelu())),
        (_from(nn, "TransformerEncoderLayer"), always(layouts.transformer_layer("dense1", "dense2"))),
        (_from(nn, "TransformerDecoderLayer"), always(layouts.transformer_layer("dense1", "dense2", "multihead_attn"))),
        (_from(nn, "TransformerEncoder"), lambda cell: layouts.transformer_stack("encoder", len(cell.layers))),
        (_from(nn, "TransformerDecoder"), lambda cell: layouts.transformer_stack("decoder", len(cell.layers))),
    ]


class MindSporeStore(Store):
    """Parameters and buffers of mindspore.nn.Cell."""

    parameters = "_params"
    modules = "_cells"

    def rules(self) -> Rules:
        return _rules()

    def state(self, module: Any) -> dict[str, Any]:
        found = {name: value for name, value in (getattr(module, "_buffers", None) or {}).items() if value is not None}
        own = module._params
        return found | {name: own[name] for name in _STATISTICS if own.get(name) is not None}

    def trainable(self, tensor: Any) -> bool:
        return bool(getattr(tensor, "requires_grad", False))

    def dtype(self, tensor: Any) -> str:
        return str(tensor.dtype).lower()

    def read(self, tensor: Any) -> Array:
        array: Array = (tensor.float() if self.dtype(tensor) == "bfloat16" else tensor).asnumpy()
        return array

    def write(self, tensor: Any, values: Array) -> None:
        given = mindspore.Tensor(values).astype(tensor.dtype)
        if isinstance(tensor, mindspore.Parameter):
            tensor.set_data(given)
        else:
            tensor.assign_value(given)


STORE = MindSporeStore()
