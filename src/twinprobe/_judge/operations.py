"""What each kind of operation does to errors: how it passes them on, and what it may lose by itself."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache
from math import isqrt, log, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._runs.names import ADAM_EPS, LAYERS, LISTS, QUANTIZED, OpName
from twinprobe._runs.run import Run
from twinprobe._runs.table import PARAMETER

if TYPE_CHECKING:
    import polars as pl


class Family(IntEnum):
    """Operations that treat errors alike."""

    COPY = 0  # moves, selects, repeats values
    SUM = 1  # adds whole tensors: errors add up, results may cancel
    REDUCE = 2  # adds the elements of one tensor
    MEAN = 3
    PRODUCT = 4  # sums of products: matmul, convolution
    MULTIPLY = 5  # element by element
    RELATIVE = 6  # keeps relative errors, up to a factor
    SMOOTH = 7  # the output moves at most so many times as far as the input: Lipschitz
    EXPONENT = 8  # absolute errors become relative ones
    NORM = 9  # divides by a standard deviation
    ATTENTION = 10
    LOSS = 11  # a number from many
    CHOICE = 12  # a tiny difference may flip the result: top-k, argmax, comparisons, rounding
    RANDOM = 13
    EMPTY = 14  # memory that nobody has written yet
    OTHER = 15
    ROOT = 16  # near zero it loses many more digits than elsewhere
    DISTANCE = 17  # roots of sums that cancel where two points are near each other


@dataclass(frozen=True, slots=True)
class Operation:
    """How an operation passes errors on. ``factor``: by how much; ``roundings``: how often it rounds on the way.

    ``one``: a 1 is added or taken off on the way, exp(x) - 1 say, and results round as the 1 does.
    """

    family: Family
    factor: float = 1.0
    roundings: float = 1.0
    one: bool = False


def _named(
    family: Family, names: str, factor: float = 1.0, roundings: float = 1.0, *, one: bool = False
) -> dict[str, Operation]:
    return dict.fromkeys(names.split(), Operation(family, factor, roundings, one))


_BY_NAME: dict[str, Operation] = {
    **_named(Family.COPY, """
        view reshape transpose permute contiguous clone detach expand expand_as squeeze unsqueeze flatten unflatten to
        float half bfloat16 double type type_as cast astype getitem select narrow chunk split tensor_split unbind
        index_select gather take take_along_dim embedding cat concat concatenate stack hstack vstack roll flip repeat
        repeat_interleave tile pad masked_fill where masked_select copy setitem index_put index_copy scatter triu tril
        diagonal diag movedim swapaxes swapdims t mt h broadcast_to unfold fold pixel_shuffle pixel_unshuffle identity
        relu leaky_relu relu6 hardtanh abs neg maximum minimum clamp clip max min amax amin max_pool1d max_pool2d
        max_pool3d adaptive_max_pool2d view_as reshape_as data positive channel_shuffle real imag view_as_real
        view_as_complex block_diag kthvalue median fill_diagonal masked_scatter as_strided cpu cuda npu numpy
        requires_grad_ alias lift_fresh dequantize
        """),
    **_named(Family.SUM, """
        add sub rsub subtract radd addcmul addcdiv lerp index_add scatter_add scatter_reduce logaddexp interpolate
        upsample add_n diff axpy
        """, roundings=2),
    **_named(Family.REDUCE, "sum nansum cumsum logcumsumexp dot vdot trace embedding_bag", roundings=8),
    **_named(Family.MEAN, """
        mean nanmean avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
        """, roundings=8),
    **_named(Family.PRODUCT, """
        linear matmul mm bmm addmm baddbmm addbmm einsum conv1d conv2d conv3d conv_transpose1d conv_transpose2d
        conv_transpose3d bilinear tensordot outer ger mv addmv inner kron conv convolution batchmatmul rmatmul
        linear_fp8 fused_linear scaled_mm dense
        """),
    **_named(Family.MULTIPLY, "mul multiply rmul div divide truediv rtruediv true_divide square polar", 1.5, 2),
    **_named(Family.RELATIVE, """
        rsqrt reciprocal pow rpow norm vector_norm linalg_vector_norm std var var_mean prod cumprod hypot
        float_power
        """, 3.0, 4),
    **_named(Family.ROOT, "sqrt", 3.0, 4),
    **_named(Family.DISTANCE, "cdist", 4.0, 4),
    **_named(Family.SMOOTH, """
        sin cos tanh sigmoid softmax gelu silu swish mish hardswish hardsigmoid atan erf
        softsign tanhshrink log_sigmoid logsigmoid glu prelu quick_gelu fast_gelu sinh asinh masked_softmax
        gumbel_softmax
        """, 1.2, 4),
    **_named(Family.SMOOTH, "elu selu celu softplus", 1.2, 16, one=True),  # by an exp that kernels approximate
    **_named(Family.SMOOTH, "log_softmax logsumexp", 2.0, 4),
    **_named(Family.EXPONENT, "exp exp2 expm1 log log1p log2 log10 cosh tan acos asin logit", 3.0, 4),
    **_named(Family.NORM, """
        layer_norm rms_norm batch_norm group_norm instance_norm normalize local_response_norm native_layer_norm
        weight_norm spectral_norm rmsnorm layernorm fused_layer_norm npu_rms_norm
        """, 2.0, 6),
    **_named(Family.ATTENTION, """
        scaled_dot_product_attention multi_head_attention_forward flash_attention flash_attn_func npu_fusion_attention
        flash_attention_score flex_attention memory_efficient_attention flash_attn_varlen_func
        """, 2.0, 6),
    **_named(Family.LOSS, """
        cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy kl_div
        binary_cross_entropy_with_logits cosine_similarity cosine_embedding_loss margin_ranking_loss
        softmax_cross_entropy bce_loss softmax_with_cross_entropy
        """, 4.0, 8),
    **_named(Family.LOSS, "ctc_loss", 4.0, 64),  # and what whole paths lose
    # A hundred steps, each of which adds up a hundred products and goes on with what the step before has lost.
    **_named(Family.OTHER, "lstm gru rnn_tanh rnn_relu", 4.0, 1e4),
    **_named(Family.CHOICE, """
        topk argmax argmin argsort sort multinomial_greedy eq ne lt le gt ge nonzero unique bucketize searchsorted round
        floor ceil trunc sign isclose floor_divide floordiv mod fmod remainder logical_and logical_or logical_not
        one_hot bincount histc isnan isinf isfinite any all quantize_per_tensor fake_quantize
        """),
    **_named(Family.RANDOM, """
        dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout bernoulli multinomial rand randn
        randint rand_like randn_like randperm normal uniform random exponential geometric cauchy log_normal drop_path
        """),
    **_named(Family.EMPTY, """
        empty empty_like new_empty empty_strided new_empty_strided empty_with_format
        """),
}  # fmt: skip

# Modules by words in the name of their class, the more special ones first.
_BY_CLASS = tuple(
    (re.compile(words), _BY_NAME[name])
    for words, name in (
        (r"norm", "layer_norm"),
        (r"^(lstm|gru|rnn)$", "lstm"),
        (r"multihead|attention", "scaled_dot_product_attention"),
        (r"conv|linear|dense|proj$|lm_?head", "linear"),
        (r"embedding$|identity|pad|pool|flatten|shuffle", "view"),
        (r"dropout|drop_?path", "dropout"),
        (r"^[cs]?elu$|softplus", "elu"),
        (r"softmax|gelu|silu|swish|mish|elu|sigmoid|tanh|activation|softplus", "gelu"),
        (r"relu", "relu"),
        (r"loss|crossentropy", "cross_entropy"),
    )
)
_OTHER = Operation(Family.OTHER, 4.0, 4.0)
OTHER_MODULE = Operation(Family.OTHER, 6.0, 16.0)
# A module may do more than its class name says: twice the roundings of the API.
_AROUND = 2.0


def operation_of(op: OpName) -> Operation:
    """How a recorded call treats errors."""
    return _of_class(op.cls) if op.is_module or op.cls else _of_name(op.body)


# Calls whose result is memory nobody has written yet, or a plain copy of bytes: their values say nothing.
UNINITIALISED = frozenset({
    "empty", "empty_like", "numpy", "to", "__setitem__", "empty_with_format", "new_empty_strided", "new_empty",
    "empty_strided",
})  # fmt: skip
# Collectives whose recorded input is partly a receive buffer.
BUFFERED = frozenset({"_reduce_scatter_base", "_all_gather_base", "all_to_all_single", "batch_isend_irecv"})

# Functions that put values in order, or pick by their order, and give their places; whether they choose by scores, as
# tokens and boxes are chosen.
_ORDERS = dict.fromkeys(("sort", "argsort", "topk", "argmax"), True)
_ORDERS |= dict.fromkeys(("msort", "kthvalue", "median", "mode", "max", "min", "argmin", "cummax", "cummin"), False)


def orders(op: OpName) -> bool:
    """Whether a call puts values in order, or picks by their order, and gives their places."""
    return not op.is_module and op.body.rpartition(".")[2].strip("_").lower() in _ORDERS


def chooses(op: OpName) -> bool:
    """Whether a call chooses one or some of many by scores."""
    return orders(op) and _ORDERS[op.body.rpartition(".")[2].strip("_").lower()]


@lru_cache(maxsize=4096)
def _of_name(body: str) -> Operation:
    name = body.rpartition(".")[2]
    bare = name.removeprefix(LISTS).strip("_").lower()
    known = _BY_NAME.get(bare)
    if known is None and name.startswith("__") and bare[:1] in ("i", "r"):  # __iadd__, __rmul__
        known = _BY_NAME.get(bare[1:])
    return known or _OTHER


@lru_cache(maxsize=4096)
def _of_class(cls: str) -> Operation:
    lower = cls.lower()
    for words, operation in _BY_CLASS:
        if words.search(lower):
            return replace(operation, roundings=operation.roundings * _AROUND)
    return OTHER_MODULE


def is_smooth(name: str) -> bool:
    """Whether a function or a class of modules, by its bare name, is an activation or the like: gelu, GELU, sigmoid."""
    return Family.SMOOTH in (_of_name(name).family, _of_class(name).family)


def same_function(target: OpName, golden: OpName) -> bool:
    """Whether two calls may compute the same, by their names.

    A class of modules may have any name: only those of activations, and of known functions that are not the same, say
    that something else is computed.
    """
    names = [(op.cls or op.body).rpartition(".")[2].strip("_") for op in (target, golden)]
    if names[0] == names[1] or not (target.cls and golden.cls):
        return names[0] == names[1]
    known = [
        max((one for one in _BY_NAME if one.replace("_", "") in name.lower()), key=len, default="") for name in names
    ]
    return not all(map(is_smooth, names)) and ("" in known or known[0] == known[1])


def differing_settings(
    target: Mapping[str, Any], golden: Mapping[str, Any], *, without: Collection[str] = ()
) -> list[str]:
    """``eps: 0.001 against 1e-05`` for each setting that both have and that differs."""
    shared = [name for name in target if name in golden and name not in without and not name.startswith("__")]
    return [f"{name}: {_shown_setting(target[name])} against {_shown_setting(golden[name])}" for name in shared
            if not _same_setting(target[name], golden[name])]  # fmt: skip


def _same_setting(target: Any, golden: Any) -> bool:
    if isinstance(target, int | float) and isinstance(golden, int | float):
        return target == golden or abs(target - golden) <= 1e-12 * max(abs(target), abs(golden))
    return bool(target == golden)


def _shown_setting(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


HIDDEN_PRECISION = "hidden_precision"  # a setting: the coarser of both runs
# A product of values and weights in 7 and 8 bits, whose largest are some times the usual, is off by 1 to 2.5 %: as much
# as one rounding to three bits.
EIGHT_BITS = 2.0**-3
_BY_CUDNN = re.compile(r"conv|lstm|gru|rnn", re.IGNORECASE)


def other_formula(target: str, golden: str) -> str:
    """What two optimizers of one name compute otherwise in two frameworks, by the names of their classes."""
    if {target, golden} == {"RMSProp", "RMSprop"}:
        return "PyTorch's RMSprop adds eps to the root of the mean square, the other framework's RMSProp under the root"
    return ""


def hidden_precision(*runs: Run) -> float:
    """The epsilon of the coarsest type that products are computed in without its name in the dumps; 0 where there is
    none."""
    return max(map(_hidden_in, runs))


def _hidden_in(run: Run) -> float:
    settings = run.settings
    layers = settings.get(LAYERS)
    packed = [isinstance(one, dict) and QUANTIZED in one for one in layers.values()] if isinstance(layers, dict) else []
    if any(packed) or any(op.startswith(f"{QUANTIZED}.") for op in run.ops):
        return EIGHT_BITS
    if settings.get("matmul_precision") == "medium":
        return 2.0**-7
    hidden = bool(settings.get("tf32_matmul"))
    # cuDNN's switch is on by default. It means nothing on other devices, and without a convolution or a recurrence,
    # which modules alone may show by their weights only.
    if not hidden and settings.get("tf32_cudnn") and settings.get("device", "cpu") != "cpu":
        weights = run.table.filter(run.table["role"] == PARAMETER)["shape"]
        hidden = any(map(_BY_CUDNN.search, run.ops)) or bool(weights.str.contains(r",.*,").any())
    return 2.0**-10 if hidden else 0.0


ROUGH_EXP = "rough_exp"  # a setting: one run alone comes from MindSpore, whose exp is an approximation
_BY_EXP = (Family.SMOOTH, Family.EXPONENT, Family.ATTENTION, Family.LOSS)


def rough_roundings(op: OpName) -> float:
    """How often an operation rounds where MindSpore 2.10 computes it on a CPU: exp, softmax and log_softmax to 6 to 40
    epsilons, tanh to 200 where it saturates."""
    operation, times = operation_of(op), 1e4 if "tanh" in op.text.lower() else 64.0
    return operation.roundings * (times if operation.family in _BY_EXP else 1.0)


_KINKED = frozenset({
    "relu", "relu6", "leaky_relu", "leakyrelu", "prelu", "rrelu", "hardtanh", "hardswish", "hardsigmoid", "threshold",
    "abs", "clamp", "clip", "clamp_min", "clamp_max", "maximum", "minimum", "max", "min", "amax", "amin", "max_pool1d",
    "max_pool2d", "max_pool3d", "maxpool1d", "maxpool2d", "maxpool3d", "hardshrink", "softshrink", "l1_loss", "l1loss",
    "triplet_margin_loss", "tripletmarginloss", "margin_ranking_loss", "marginrankingloss",
})  # fmt: skip


def is_kinked(op: OpName) -> bool:
    """Whether the derivative of an operation jumps."""
    return (op.cls or op.body.rpartition(".")[2]).lower().strip("_") in _KINKED


_DIVISORS = dict.fromkeys(("rsqrt", "reciprocal", "rtruediv"), 1)
_DIVISORS |= dict.fromkeys(("div", "divide", "true_divide", "truediv", "itruediv"), 2)


def divisor_of(op: OpName) -> int:
    """Which operand an operation divides by, the first or the second: it makes large numbers of small ones. 0: none."""
    return _DIVISORS.get(op.body.rpartition(".")[2].removeprefix(LISTS).strip("_"), 0)


_OVER_BATCH = re.compile("batch_?norm|instance_?norm|group_?norm")


def is_over_batch(op: OpName) -> bool:
    """Whether a norm takes its mean and deviation over many places of many samples, not over a token's channels."""
    return _OVER_BATCH.search((op.cls or op.body).lower()) is not None


# How functions name what they are often given by position alone.
_ARGUMENTS = {
    function: names.split()
    for functions, names in {
        "layer_norm": "input normalized_shape weight bias eps",
        "rms_norm": "input normalized_shape weight eps",
        "group_norm": "input num_groups weight bias eps",
        "batch_norm": "input running_mean running_var weight bias training momentum eps",
        "instance_norm": "input running_mean running_var weight bias use_input_stats momentum eps",
        "dropout dropout1d dropout2d dropout3d alpha_dropout": "input p training inplace",
        "softmax log_softmax": "input dim",
        "linear": "input weight bias",
        "matmul bmm": "input other",
        "leaky_relu": "input negative_slope inplace",
        "elu": "input alpha inplace",
        "gelu": "input approximate",
        "softplus": "input beta threshold",
        "hardtanh": "input min_val max_val inplace",
        "clamp clip": "input min max",
        "embedding": "input weight padding_idx max_norm norm_type scale_grad_by_freq sparse",
        "conv1d conv2d conv3d": "input weight bias stride padding dilation groups",
        "scaled_dot_product_attention": "query key value attn_mask dropout_p is_causal scale",
        "cross_entropy": "input target weight size_average ignore_index reduce reduction label_smoothing",
        "nll_loss": "input target weight size_average ignore_index reduce reduction",
        "mse_loss l1_loss": "input target size_average reduce reduction",
        "max_pool1d max_pool2d max_pool3d": "input kernel_size stride padding dilation ceil_mode return_indices",
        "avg_pool2d avg_pool3d": "input kernel_size stride padding ceil_mode count_include_pad divisor_override",
        "pad": "input pad mode value",
        "normalize": "input p dim eps",
        "cosine_similarity": "x1 x2 dim eps",
        "one_hot": "tensor num_classes",
        "topk": "input k dim largest sorted",
        "roll": "input shifts dims",
        "transpose": "input dim0 dim1",
        "cumsum cumprod flip": "input dim",
        "sum mean amax amin prod logsumexp argmax argmin": "input dim keepdim",
        "cat stack": "tensors dim",
        "chunk": "input chunks dim",
        "masked_fill masked_fill_": "input mask value",
        "embedding_bag": "input weight offsets max_norm norm_type scale_grad_by_freq mode sparse per_sample_weights",
        "lerp lerp_": "input end weight",
        "fake_quantize_per_tensor_affine": "input scale zero_point quant_min quant_max",
        "conv_transpose1d conv_transpose2d": "input weight bias stride padding output_padding groups dilation",
        "interpolate upsample": "input size scale_factor mode align_corners recompute_scale_factor antialias",
        "ctc_loss": "log_probs targets input_lengths target_lengths blank reduction zero_infinity",
        "kl_div": "input target size_average reduce reduction log_target",
        "binary_cross_entropy": "input target weight size_average reduce reduction",
        "binary_cross_entropy_with_logits": "input target weight size_average reduce reduction pos_weight",
    }.items()
    for function in functions.split()
}


def argument_name(row: str) -> str:
    """What a function calls an argument: ``eps`` for ``...layer_norm.0.forward.input.4``, ``input.3.0`` is a stride."""
    call, _, argument = row.partition(".input.")
    place = argument.partition(".")[0]
    names = _ARGUMENTS.get(call.split(".")[1], []) if "." in call else []
    if not place.isdigit():
        return place or row.rpartition(".")[2]
    return names[int(place)] if int(place) < len(names) else f"argument {place}"


# Numbers as people read them.


def shown(number: float) -> str:
    """Four digits, and more of a number that is almost 1."""
    return f"{number:.4g}" if f"{number:.4g}" != "1" else f"{number:.8g}"


def percent(share: float) -> str:
    """``3.2 %``; small shares with an exponent."""
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.3g} %"


def factor_name(factor: float, sizes: Iterable[int], tolerance: float, counts: Mapping[str, int] | None = None) -> str:
    """Where a factor may come from: ``world size (8)``, ``1/sqrt(64)``, ``2``, ``1/16``. Empty where nothing fits."""
    names = {f"{name} ({count})": float(count) for name, count in (counts or {}).items() if count > 1}
    roots = sorted({*sizes, *(1 << power for power in range(3, 9))})
    names |= {f"sqrt({size})": sqrt(size) for size in roots if size > 2 and isqrt(size) ** 2 != size}
    names |= {str(whole): float(whole) for whole in (*range(2, 65), 128, 256, 512, 1024)}
    for name, value in names.items():
        if abs(factor / value - 1) <= tolerance:
            return name
        if abs(factor * value - 1) <= tolerance:
            return f"1/{name}"
    return ""


_SAME_STEPS, _MINDSPORE = 2e-3, "Float32"


def same_eps(pairs: pl.DataFrame) -> NDArray[np.bool_]:
    """Settings eps of Adam that two frameworks were given alike, though recorded otherwise.

    MindSpore's acts before the bias is corrected; recorded is what PyTorch needs for that: eps / sqrt(1 - beta2^t).
    """
    same: NDArray[np.bool_] = np.zeros(pairs.height, dtype=bool)
    if (pairs["t_dtype"] == _MINDSPORE).any() == (pairs["g_dtype"] == _MINDSPORE).any():
        return same
    numbers = dict(zip(pairs["t_name"].to_list(), pairs["t_max"].to_list(), strict=True))
    for row in pairs["t_name"].str.contains(ADAM_EPS).fill_null(value=False).arg_true().to_list():
        beta = numbers.get(pairs["t_name"][row].removesuffix("eps") + "betas.1")
        smaller, larger = sorted((pairs["t_max"][row] or 0.0, pairs["g_max"][row] or 0.0))
        if beta and 0 < smaller < larger:
            steps = log(1 - (smaller / larger) ** 2) / log(beta)
            same[row] = round(steps) > 0 and abs(steps - round(steps)) < _SAME_STEPS
    return same


def softened(pairs: pl.DataFrame, call_of_row: NDArray[np.int64], calls: int) -> NDArray[np.float64]:
    """Per call: by how much another formula of Adam adds another eps."""
    found, rows = np.zeros(calls), np.flatnonzero(same_eps(pairs))
    found[call_of_row[rows]] = np.abs(np.subtract(*(pairs[f"{side}_max"].gather(rows).to_numpy() for side in "tg")))
    return found
