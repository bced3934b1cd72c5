"""What a function is called in a dump, and how much its calls matter; looked up once per function object."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

# Which functions matter how much, by name.


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


# Matrix products, convolutions, normalisation, embedding, attention: risk level CORE keeps only these.
CORE_NAMES = words(
    """
    matmul __matmul__ bmm addmm addmm_ addbmm addbmm_ baddbmm baddbmm_ mm mv addmv addmv_ addr addr_ chain_matmul
    einsum conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc convolution
    _convolution linear bilinear linalg.matmul linalg.multi_dot linalg.vecdot batch_norm instance_norm
    layer_norm rms_norm group_norm local_response_norm embedding embedding_bag multi_head_attention_forward
    scaled_dot_product_attention _fused_adam_ _fused_adamw_ lstm gru rnn_tanh rnn_relu
    """
)
# Calls that move, cast or create values without computing: numbered and shown in the tree, recorded under ALL only.
LOW_NAMES = words(
    """
    squeeze unsqueeze reshape reshape_as view_as flatten unflatten expand expand_as repeat repeat_interleave tile
    transpose permute moveaxis movedim swapaxes swapdims chunk unsafe_chunk split split_with_sizes unsafe_split
    unsafe_split_with_sizes tensor_split hsplit vsplit dsplit unbind stack cat concat concatenate hstack vstack
    dstack column_stack row_stack align_as align_to atleast_1d atleast_2d atleast_3d ravel clamp unfold type_as
    to float double int long half bfloat16 byte char bool cfloat numpy full full_like arange linspace logspace
    eye diag diagflat diag_embed triu tril triu_indices tril_indices __bool__
    """
)
# The same, met so often that even the tree leaves them out unless ALL is asked for.
MINOR_NAMES = words(
    """
    view contiguous __getitem__ detach detach_ clone select narrow squeeze_ unsqueeze_ transpose_ t_ t adjoint mT
    view_as_real view_as_complex as_strided as_strided_ as_tensor tensor from_numpy empty empty_like
    empty_strided zeros zeros_like ones ones_like new_tensor new_empty new_zeros new_ones new_full rand randn
    randint randperm rand_like randn_like randint_like diagonal broadcast_to broadcast_tensors meshgrid cpu cuda
    pin_memory alias lift_fresh resolve_conj resolve_neg positive real imag hsplit scalar_tensor zero_
    _foreach_zero_
    """
)
# Questions about a tensor and bookkeeping of the framework: no call at all, as far as a dump is concerned.
NEVER_NAMES = words(
    """
    __get__ __set__ __delete__ __len__ __repr__ __str__ __format__ __hash__ __deepcopy__ __reduce_ex__ __iter__
    __contains__ __array__ __setstate__ __dir__ __index__ __int__ __float__ __complex__ __sizeof__ __dlpack__
    __dlpack_device__ size dim ndimension numel nelement stride storage_offset element_size is_contiguous
    is_complex is_floating_point is_signed is_same_size is_coalesced is_inference is_conj is_neg is_pinned
    is_shared is_set_to get_device data_ptr storage untyped_storage type item tolist has_names names_
    requires_grad_ register_hook register_post_accumulate_grad_hook retain_grad backward grad is_tensor
    is_storage is_nonzero equal allclose broadcast_shapes result_type can_cast promote_types typename
    get_default_dtype set_default_dtype is_grad_enabled set_grad_enabled _set_grad_enabled
    is_inference_mode_enabled is_autocast_enabled manual_seed get_rng_state set_rng_state initial_seed seed set_
    resize_ resize_as_ share_memory_ record_stream compile _is_view _assert _assert_async sym_int sym_float
    sym_max sym_min iinfo finfo uniform_ normal_ constant_ kaiming_uniform_ kaiming_normal_ xavier_uniform_
    xavier_normal_ trunc_normal_ _to_functional_tensor _has_compatible_shallow_copy_type _make_subclass
    _reduce_ex_internal dim_order __subclasscheck__ __instancecheck__ _amp_update_scale_
    _group_tensors_by_device_and_dtype
    """
)
# Calls that may change an argument although their name does not say so: running statistics, renormalised weights.
IMPURE_NAMES = words("batch_norm instance_norm native_batch_norm embedding embedding_bag set_")


CORE, FOCUS, LOW, MINOR = 0, 1, 2, 3

_RANDOM_FILL = frozenset({"uniform_", "normal_"})
_HIDDEN_SPACES = frozenset({"profiler", "prim", "prims", "debugprims"})
_VF_NAMES = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell"})


@dataclass(frozen=True, slots=True, eq=False)
class Api:
    """A function that is recorded: ``Functional`` and ``linear``, how much it matters, what it does to memory."""

    type: str
    name: str
    rank: int
    in_place: bool
    prefix: str


def _namespaces() -> Iterator[tuple[str, str, Any]]:
    yield "Functional", "", functional
    yield "Tensor", "", torch.Tensor
    yield "Torch", "", torch
    for part in ("linalg", "fft", "special", "nested", "sparse"):
        yield "Torch", f"{part}.", getattr(torch, part)


class ApiTable:
    """Function object to Api, or None for what is not recorded. Answers are kept."""

    def __init__(self) -> None:
        self._known: dict[Any, Api | None] = {}
        self._homes = _homes()

    def __call__(self, func: Any) -> Api | None:
        try:
            return self._known[func]
        except KeyError:
            found = self._known[func] = self._find(func)
            return found

    def add(self, func: Any, api: Api) -> None:
        """Record a function that the table would not know by itself."""
        self._known[func] = api

    def knows(self, func: Any) -> bool:
        return self._known.get(func) is not None

    def _find(self, func: Any) -> Api | None:
        if isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            space, _, name = _qualified(func).partition("::")
            return None if space in _HIDDEN_SPACES else make_api(_space_name(space), name.partition(".")[0])
        own = getattr(func, "__name__", "")
        home = self._homes.get(func)
        if home is None or own in ("__get__", "__set__", "__delete__"):
            return None
        kind, name = home
        if name in NEVER_NAMES or name.rpartition(".")[2] in NEVER_NAMES:
            is_random = kind == "Tensor" and name in _RANDOM_FILL
            return make_api(kind, name) if is_random else None
        return make_api("VF" if kind == "Torch" and name in _VF_NAMES else kind, name)


def make_api(kind: str, name: str) -> Api:
    """An Api by type and name."""
    bare = name.rpartition(".")[2]
    if name in CORE_NAMES or kind == "Distributed":
        rank = CORE
    elif bare in LOW_NAMES:
        rank = LOW
    elif bare in MINOR_NAMES:
        rank = MINOR
    else:
        rank = FOCUS
    in_place = (bare.endswith("_") and not bare.endswith("__")) or bare == "__setitem__" or bare.startswith("__i")
    in_place = (in_place and bare not in {"__invert__", "__index__"}) or bare in IMPURE_NAMES
    return Api(kind, name, rank, in_place, f"{kind}.{name}.")


def _homes() -> dict[Any, tuple[str, str]]:
    homes: dict[Any, tuple[str, str]] = {}
    for kind, prefix, space in _namespaces():
        for name in dir(space):
            if (prefix and name.startswith("_")) or (kind == "Functional" and name.startswith("_")):
                continue
            func = getattr(space, name, None)
            if not callable(func) or isinstance(func, type):
                continue
            try:
                known = homes.get(func)
            except TypeError:
                continue
            if known is None or (known[0] == kind and getattr(func, "__name__", "") == name):
                homes[func] = (kind, prefix + name)
    return homes


def _space_name(space: str) -> str:
    return {"aten": "Aten", "npu": "NPU"}.get(space, space)


def _qualified(func: Any) -> str:
    if isinstance(func, torch._ops.OpOverloadPacket):
        return str(func._qualified_op_name)
    return str(func.name())


# What a function does to memory, told by the function object: decided once for each, then looked up.

# WRITES: an argument may change, with a new version. REACHES: hands out the memory itself, to be written unseen.
# UNSEEN: arguments may change without a new version. BACKWARD: runs the gradient engine.
PLAIN, WRITES, REACHES, UNSEEN, BACKWARD = range(5)

_REACHING = frozenset({"data_ptr", "untyped_storage", "storage", "numpy", "__array__", "__dlpack__"})
_REACHING_GETTERS = frozenset(
    getattr(torch.Tensor, name).__get__
    for name in ("data", "__cuda_array_interface__")
    if hasattr(getattr(torch.Tensor, name, None), "__get__")
)
_NOT_IN_PLACE = frozenset(
    {"__invert__", "__index__", "__int__", "__iter__", "__init__", "requires_grad_", "retain_grad"}
)


def effect_of(func: Any) -> int:
    """What calling this function means for tensors that wait to be measured."""
    if func is torch.Tensor.backward or func is torch.autograd.backward:
        return BACKWARD
    if isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return _effect_of_operator(func)
    if getattr(func, "__module__", None) == "torch.distributed.distributed_c10d":
        return UNSEEN
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return REACHES if func in _REACHING_GETTERS else PLAIN
    if name in _REACHING:
        return REACHES
    return WRITES if writes_by_name(name) else PLAIN


def writes_by_name(name: str) -> bool:
    """Whether a function of this name changes an argument: ``add_``, ``__iadd__``, ``__setitem__``, ``batch_norm``."""
    if name in IMPURE_NAMES:
        return True
    if name in _NOT_IN_PLACE:
        return False
    if name.endswith("__"):
        return name.startswith("__i") or name == "__setitem__"
    return name.endswith("_")


def _effect_of_operator(func: Any) -> int:
    if isinstance(func, torch._ops.OpOverload):
        overloads = [func]
    else:
        overloads = [getattr(func, name) for name in func.overloads()]
    if not any(one._schema.is_mutable for one in overloads):
        return PLAIN
    return WRITES if all(one.namespace == "aten" for one in overloads) else UNSEEN


def writes_by_keyword(kwargs: Any) -> bool:
    """``out=`` and ``inplace=True``."""
    return bool(kwargs) and (kwargs.get("out") is not None or bool(kwargs.get("inplace")))
