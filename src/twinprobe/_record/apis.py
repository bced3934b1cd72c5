"""Functions that are recorded: what they are called in a dump, and how much their calls matter in any framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from twinprobe._record.config import RecordConfig

CORE, FOCUS, LOW, MINOR = 0, 1, 2, 3
Names = frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class Api:
    """A function that is recorded: ``Functional.linear.``, how much it matters, whether it writes to its arguments.

    What a ``collective`` gives is what its arguments hold afterwards.
    """

    prefix: str
    rank: int
    in_place: bool = False
    collective: bool = False


@dataclass(frozen=True, slots=True)
class Site:
    """Where a function is found: an attribute of a module or a class, and what it is called in a dump."""

    owner: Any
    attribute: str
    original: Any
    api: Api


def wanted_ranks(config: RecordConfig) -> tuple[int, int]:
    """Up to which rank calls are recorded, and up to which they are numbered and shown in the tree."""
    wanted = MINOR if config.scope or config.names else {"ALL": MINOR, "FOCUS": FOCUS, "CORE": CORE}[config.risk_level]
    return wanted, max(wanted, LOW)


def words(text: str) -> Names:
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


def rank_of(name: str, core: Names = CORE_NAMES, low: Names = LOW_NAMES, minor: Names = MINOR_NAMES) -> int:
    """How much calls of a function matter; ``linalg.norm`` counts as ``norm`` where it is not named itself."""
    bare = name.rpartition(".")[2]
    return CORE if name in core else LOW if bare in low else MINOR if bare in minor else FOCUS
