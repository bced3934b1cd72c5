"""Paddle as the recorder sees it: its tensors as notes, its functions and what they are called in a dump."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from math import prod
from types import FunctionType
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

from twinprobe._record.calls import CORE, CORE_NAMES, LOW_NAMES, MINOR_NAMES, NEVER_NAMES, Api, Site, rank_of, words
from twinprobe._record.eager.apis import functions_of
from twinprobe._record.eager.host_rows import RowCache
from twinprobe._record.entries import Note
from twinprobe._runs.dtypes import NATIVE, STORAGE, dtype_name

# Paddle's tensors as notes: read from host memory without a copy where it allows that, measured once per content.

_ZERO_COPY = 1 << 14  # elements; below, a copy is cheaper than the exchange protocol
# Held here, because the methods on the class are replaced while a program is recorded.
_numpy = paddle.Tensor.numpy
_detach = paddle.Tensor.detach
_data_ptr = paddle.Tensor.data_ptr
_dlpack = getattr(paddle.Tensor, "__dlpack__", None)  # younger than the rest
_dlpack_device = getattr(paddle.Tensor, "__dlpack_device__", None)


class _Exchange:
    """What numpy.from_dlpack asks for, answered by the original methods."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack__(self, **_: Any) -> Any:
        assert _dlpack is not None
        return _dlpack(self._tensor)

    def __dlpack_device__(self) -> Any:
        assert _dlpack_device is not None
        return _dlpack_device(self._tensor)


class PaddleTensors(RowCache):
    """Notes tensors. One that is as it was gets the same row again."""

    def note(self, tensor: Any, *, save: bool) -> Note:
        """Note one tensor as it is now."""
        name = dtype_name(tensor.dtype)
        content, extra = _dense(tensor)
        row = None
        if content is not None:
            stamp = (tensor.inplace_version, _data_ptr(content) if content._is_initialized() else 0)
            row = self.row_of(tensor, content, name, stamp, save)
        shape = tuple(int(size) for size in tensor.shape)
        return Note("paddle.Tensor", f"paddle.{name}", shape, row, not tensor.stop_gradient, save, None, extra)

    def read(self, content: Any, name: str) -> NDArray[Any] | None:
        if not content._is_initialized() or name not in STORAGE:
            return None
        big = _dlpack is not None and prod(content.shape) >= _ZERO_COPY
        if big and name in NATIVE and name != "bool" and content.place.is_cpu_place():
            return np.from_dlpack(_Exchange(_detach(content)))
        array: NDArray[Any] = _numpy(content)
        return array if array.dtype == np.dtype(STORAGE[name]) else array.view(STORAGE[name])


def _dense(tensor: Any) -> tuple[Any, dict[str, Any] | None]:
    """The dense tensor that holds the values: the local part of a distributed one, the values of a sparse one."""
    if tensor.is_dense():
        return tensor, None
    if tensor.is_dist():
        local = tensor._local_value()
        return local, {"placements": str(tensor.placements)}
    if tensor.is_sparse():
        return tensor.values(), {"sparse": True}
    return None, {"selected_rows": True}


# Functions: where they are found, what they are called in a dump, how much they matter.

_HOMES = (
    "paddle.tensor.", "paddle.nn.functional", "paddle.base.dygraph.generated_tensor_methods_patch",
    "paddle.base.dygraph.math_op_patch", "paddle.base.dygraph.tensor_patch_methods", "paddle.fft", "paddle.signal",
)  # fmt: skip
_CORE = CORE_NAMES | words(
    "conv1d_transpose conv2d_transpose conv3d_transpose flash_attention scaled_dot_product_attention"
)
_LOW = LOW_NAMES | words("concat cast astype slice strided_slice gather gather_nd scatter flip roll unstack crop pad")
_MINOR = MINOR_NAMES | words("to_tensor assign create_parameter create_tensor shape fill_constant uniform")
_NEVER = (NEVER_NAMES - {"equal", "allclose"}) | words(
    """
    rank is_tensor is_empty is_integer numel numpy gradient clear_grad clear_gradient set_value register_hook backward
    apply apply_ cpu cuda pin_memory get_device to_dense to_sparse_coo coalesce value values tolist create_parameter
    set_printoptions sdp_kernel save load broadcast_shape is_same_shape ndimension dim requires_grad_ retain_grads
    """
)
_SLOTS = words(
    """
    __add__ __sub__ __mul__ __truediv__ __div__ __floordiv__ __mod__ __pow__ __matmul__ __radd__ __rsub__ __rmul__
    __rtruediv__ __rpow__ __rmatmul__ __rmod__ __rfloordiv__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __neg__ __abs__
    __and__ __or__ __xor__ __invert__ __getitem__ __setitem__
    """
)
_WRITING_METHODS = words(
    """
    set_value set_ _inplace_assign _copy_gradient_from _clear_data _share_buffer_to _share_underline_tensor_to _set_impl
    _zero_grads clear_grad clear_gradient
    """
)
_FOREIGN_CODE = ("run_program", "_run_custom_op")  # traced programs, operations that users compile
_METHODS = words("clone contiguous detach copy_")
_COLLECTIVES = words(
    """
    all_reduce all_gather all_gather_object alltoall alltoall_single broadcast reduce reduce_scatter scatter gather
    send recv isend irecv batch_isend_irecv
    """
)


def make_api(kind: str, name: str) -> Api:
    """An Api by type and name."""
    bare = name.rpartition(".")[2]
    collective = kind == "Distributed"
    rank = CORE if collective else rank_of(bare, _CORE, _LOW, _MINOR)
    return Api(f"{kind}.{name}.", rank, collective or writes_in_place(bare), collective)


def unrecorded_writes() -> Iterator[Site]:
    """What changes a tensor without being an API that is recorded."""
    for name in sorted(_WRITING_METHODS):
        method = vars(paddle.Tensor).get(name)
        if callable(method):
            yield Site(paddle.Tensor, name, method, make_api("Tensor", name))
    for space in (paddle._C_ops, paddle._legacy_C_ops):
        for name in _FOREIGN_CODE:
            function = getattr(space, name, None)
            if function is not None:
                yield Site(space, name, function, make_api("Tensor", name))
    yield from _collectives(paddle.distributed.communication.stream)


def writes_in_place(bare: str) -> bool:
    """Whether a function changes its first argument: ``add_``, ``__setitem__``."""
    return (bare.endswith("_") and not bare.endswith("__")) or bare == "__setitem__"


def all_sites() -> Iterator[Site]:
    """Every function to watch."""
    yield from _functions("Functional", paddle.nn.functional)
    yield from _functions("Paddle", paddle)
    for part in ("linalg", "fft", "signal"):
        yield from _functions(f"Paddle.{part}", getattr(paddle, part))
    yield from _methods()
    yield from _collectives(paddle.distributed)


def _functions(kind: str, space: Any) -> Iterator[Site]:
    return functions_of(space, vars(space).keys() - _NEVER, functools.partial(make_api, kind), _HOMES)


def _collectives(space: Any) -> Iterator[Site]:
    return functions_of(space, _COLLECTIVES, functools.partial(make_api, "Distributed"))


def _methods() -> Iterator[Site]:
    owner = paddle.Tensor
    for name in sorted(vars(owner)):
        if name.startswith("_") and name not in _SLOTS:
            continue
        function = inspect.getattr_static(owner, name)
        plain = isinstance(function, FunctionType) and str(function.__module__).startswith(_HOMES)
        if name not in _NEVER and (plain or name in _SLOTS or name in _METHODS) and callable(function):
            yield Site(owner, name, function, make_api("Tensor", name))
