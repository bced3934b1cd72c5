"""Weights of Paddle layers."""

from __future__ import annotations

import ctypes
import functools
from math import prod
from typing import Any

import numpy as np
import paddle
from paddle import nn

from twinprobe._live.weights import stores as layouts
from twinprobe._live.weights.stores import TRANSPOSED, Array, Layout, Rules, Store, always

_IN_MEMORY = {name: np.dtype(name) for name in ("float32", "float64", "float16", "int64", "int32")}
_float32 = paddle.float32
_STATISTICS = ("_mean", "_variance", "weight_u", "weight_v")  # kept among the parameters
_ONLY_HOST = not (
    paddle.is_compiled_with_cuda() or paddle.is_compiled_with_xpu() or paddle.device.get_all_custom_device_type()
)


def _cells_of(wrapper: Any, index: int, before: str = "") -> list[tuple[str, str, str]]:
    if isinstance(wrapper, nn.BiRNN):
        return [(f"l{index}", f"{before}cell_fw.", ""), (f"l{index}_reverse", f"{before}cell_bw.", "")]
    name = f"l{index}_reverse" if wrapper.is_reverse else f"l{index}"
    return [(name, f"{before}cell.", "")]


def _stacked(layer: Any) -> Layout:
    # The layer's own attributes repeat the cells' parameters, under wrong names when one bias is switched off.
    cells = [cell for index, wrapper in enumerate(layer) for cell in _cells_of(wrapper, index, f"{index}.")]
    return layouts.recurrent(layouts.recurrent_kind(layer), cells, TRANSPOSED)


def _wrapper(layer: Any) -> Layout:
    cell = layer.cell_fw if isinstance(layer, nn.BiRNN) else layer.cell
    return layouts.recurrent(layouts.recurrent_kind(cell), _cells_of(layer, 0), TRANSPOSED)


@functools.cache
def _rules() -> Rules:
    layers = nn.layer
    backwards = (nn.Conv1DTranspose, nn.Conv2DTranspose, nn.Conv3DTranspose)
    batch_norms = (layers.norm._BatchNormBase, nn.BatchNorm)
    cells = (nn.LSTMCell, nn.GRUCell, nn.SimpleRNNCell)
    split = paddle.distributed.fleet.meta_parallel
    return [
        ((nn.Linear, split.ColumnParallelLinear, split.RowParallelLinear), always(layouts.linear(transposed=True))),
        (backwards, always(layouts.convolution(transposed=True))),
        ((layers.conv._ConvNd,), always(layouts.convolution())),
        ((nn.Embedding, split.VocabParallelEmbedding), always(layouts.embedding())),
        (batch_norms, always(layouts.norm(mean="_mean", variance="_variance"))),
        ((layers.norm._InstanceNormBase,), always(layouts.norm(weight="scale"))),
        ((nn.LayerNorm, nn.GroupNorm), always(layouts.norm())),
        ((nn.MultiHeadAttention,), always(layouts.separate_attention())),
        ((layers.rnn.RNNBase,), _stacked),
        ((nn.RNN, nn.BiRNN), _wrapper),
        (cells, lambda cell: layouts.recurrent(layouts.recurrent_kind(cell), [("l0", "", "")], TRANSPOSED)),
        ((nn.Bilinear,), always(layouts.bilinear(row_bias=True))),
        ((nn.PReLU,), always(layouts.prelu("_weight"))),
        ((nn.TransformerEncoderLayer,), always(layouts.transformer_layer("linear1", "linear2"))),
        ((nn.TransformerDecoderLayer,), always(layouts.transformer_layer("linear1", "linear2", "cross_attn"))),
        ((nn.TransformerEncoder,), lambda layer: layouts.transformer_stack("encoder", len(layer.layers))),
        ((nn.TransformerDecoder,), lambda layer: layouts.transformer_stack("decoder", len(layer.layers))),
    ]


@functools.cache
def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("paddle.")


@functools.cache
def _numpy_name(dtype: Any) -> str:
    return str(dtype.name)  # numpy makes a name anew each time it is asked


@functools.cache
def _bytes(count: int) -> Any:
    return ctypes.c_char * count


class PaddleStore(Store):
    """Parameters and buffers of paddle.nn.Layer."""

    passing = "_non_persistable_buffer_names_set"
    modules = "_sub_layers"

    def rules(self) -> Rules:
        return _rules()

    def state(self, module: Any) -> dict[str, Any]:
        own = module._parameters
        if not module._buffers and own.keys().isdisjoint(_STATISTICS):
            return {}
        found = {name: value for name, value in module._buffers.items() if value is not None}
        return found | {
            name: own[name] for name in _STATISTICS if own.get(name) is not None and own[name].stop_gradient
        }

    def trainable(self, tensor: Any) -> bool:
        return not tensor.stop_gradient

    def dtype(self, tensor: Any) -> str:
        dtype = tensor.dtype
        return "float32" if dtype is _float32 else _dtype_name(dtype)  # hashing one takes long

    def read(self, tensor: Any) -> Array:
        # NumPy has no bfloat16; Paddle would hand out its bits as integers.
        narrow = self.dtype(tensor) in ("bfloat16", "float8_e4m3fn", "float8_e5m2")
        array: Array = (tensor.detach().astype("float32") if narrow else tensor.detach()).numpy()
        return array

    def memory(self, tensor: Any, /) -> Array | None:
        # What set_value does for a tensor on the host, without a copy in between.
        dtype = _IN_MEMORY.get(self.dtype(tensor))
        plain = dtype is not None and tensor.is_dense() and tensor.is_contiguous() and tensor._is_initialized()
        shape = tensor.shape
        if dtype is None or not plain or not (_ONLY_HOST or tensor.place.is_cpu_place()) or 0 in shape:
            return None
        memory = _bytes(prod(shape) * dtype.itemsize).from_address(tensor.data_ptr())
        array: Array = np.ndarray(shape, dtype, memory)
        return array

    def write(self, tensor: Any, values: Array) -> None:
        if _numpy_name(values.dtype) == self.dtype(tensor) and not tensor.is_dist():
            tensor.set_value(values)
            return
        with paddle.no_grad():
            tensor.set_value(paddle.to_tensor(values, place=tensor.place).astype(tensor.dtype))


STORE = PaddleStore()
