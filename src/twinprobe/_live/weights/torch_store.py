"""Weights of PyTorch modules."""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch import nn

from twinprobe._live.weights import stores as layouts
from twinprobe._live.weights.stores import Array, Layout, Rules, Store, always
from twinprobe.errors import BadInput

_EXACT_IN_FLOAT32 = {
    getattr(torch, name)
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
    if hasattr(torch, name)
}


def _stacked(layer: Any) -> Layout:
    return layouts.flat_recurrent(layouts.recurrent_kind(layer), layer.num_layers, both_ways=layer.bidirectional)


@functools.cache
def _rules() -> Rules:
    norms = tuple(getattr(nn, name) for name in ("LayerNorm", "GroupNorm", "RMSNorm") if hasattr(nn, name))
    running = layouts.norm(mean="running_mean", variance="running_var")
    return [
        ((nn.Linear,), always(layouts.linear())),
        ((nn.modules.conv._ConvTransposeNd,), always(layouts.convolution(transposed=True))),
        ((nn.modules.conv._ConvNd,), always(layouts.convolution())),
        ((nn.Embedding, nn.EmbeddingBag), always(layouts.embedding())),
        ((nn.modules.batchnorm._NormBase,), always(running)),
        (norms, always(layouts.norm())),
        ((nn.MultiheadAttention,), layouts.packed_attention),
        ((nn.RNNBase,), _stacked),
        ((nn.RNNCellBase,), lambda layer: layouts.one_cell(layouts.recurrent_kind(layer))),
        ((nn.Bilinear,), always(layouts.bilinear())),
        ((nn.PReLU,), always(layouts.prelu())),
        ((nn.TransformerEncoderLayer,), always(layouts.transformer_layer("linear1", "linear2"))),
        ((nn.TransformerDecoderLayer,), always(layouts.transformer_layer("linear1", "linear2", "multihead_attn"))),
        ((nn.TransformerEncoder,), lambda layer: layouts.transformer_stack("encoder", len(layer.layers))),
        ((nn.TransformerDecoder,), lambda layer: layouts.transformer_stack("decoder", len(layer.layers))),
    ]


@functools.cache
def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


class TorchStore(Store):
    """Parameters and buffers of torch.nn.Module."""

    def rules(self) -> Rules:
        return _rules()

    def state(self, module: Any) -> dict[str, Any]:
        found = {}
        for name, value in module._buffers.items():
            if value is None or isinstance(value, nn.parameter.UninitializedTensorMixin):
                continue
            if value.layout is torch.strided and not value.is_quantized and not value.is_meta:
                found[name] = value
        return found

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
        if isinstance(tensor, nn.parameter.UninitializedTensorMixin):
            raise BadInput("a lazy module has no weights yet", hint="call both models once before copying")
        if tensor.is_meta:
            raise BadInput("a parameter on the meta device has no values", hint="materialise the model first")
        return tuple(tensor.shape)

    def dtype(self, tensor: Any) -> str:
        return _dtype_name(tensor.dtype)

    def read(self, tensor: Any) -> Array:
        values = tensor.detach()
        if values.dtype in _EXACT_IN_FLOAT32:
            values = values.to(torch.float32)
        array: Array = (values if values.is_cpu else values.cpu()).numpy()
        return array

    def write(self, tensor: Any, values: Array) -> None:
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(values))


STORE = TorchStore()
