"""Paddle's functions: where they are found, what they are called in a dump, how much they matter."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import paddle

from twinprobe._record.calls import CORE, CORE_NAMES, LOW_NAMES, MINOR_NAMES, NEVER_NAMES, Api, Site, rank_of, words
from twinprobe._record.eager.apis import functions_of

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
