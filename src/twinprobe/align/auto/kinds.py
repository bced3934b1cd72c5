"""What a layer does, by its parameters and values first and by its class's name where those are not known."""

from __future__ import annotations

from functools import lru_cache

from twinprobe.align.auto.prints import NONE, Prints
from twinprobe.align.auto.words import words_of
from twinprobe.align.shapes import Shape

LINEAR, NORM, EMBEDDING, CONV, OTHER = "linear", "norm", "embedding", "conv", ""
POINTWISE = "pointwise"  # a convolution of one point: a linear layer on channels

# The first piece that a class's name contains decides.
_PIECES = (
    ("rotary", ("rotary", "rope")), ("dropout", ("dropout", "droppath")),
    (NORM, ("norm", "layernorm", "rmsnorm", "batchnorm")),
    (EMBEDDING, ("embedding", "embed")), ("softmax", ("softmax",)), ("loss", ("loss", "entropy", "criterion")),
    ("pool", ("pool",)),
    ("activation", ("gelu", "relu", "silu", "swish", "tanh", "sigmoid", "activation", "swiglu", "glu", "elu", "mish")),
    ("attention", ("attention", "attn", "mha")), ("mlp", ("mlp", "feedforward", "ffn")),
    (CONV, ("conv",)), (LINEAR, ("linear", "dense", "projection", "conv1d")), ("identity", ("identity", "nop")),
    ("flatten", ("flatten",)),
)  # fmt: skip
ACTIVATIONS = frozenset({
    "relu", "gelu", "silu", "swish", "tanh", "sigmoid", "elu", "mish", "leaky_relu", "hardswish", "relu6", "softplus",
    "hardtanh", "hardsigmoid", "celu", "selu", "glu", "quick_gelu", "logsigmoid",
})  # fmt: skip
# API calls that are a layer of their own when they stand in a module that is none: their kind, and the place of the
# weight among the tensors they take.
LAYER_CALLS = {
    "linear": LINEAR, "layer_norm": NORM, "rms_norm": NORM, "group_norm": NORM, "batch_norm": NORM,
    "instance_norm": NORM, "embedding": EMBEDDING, "conv1d": CONV, "conv2d": CONV, "conv3d": CONV, "bilinear": LINEAR,
    "conv_transpose1d": CONV, "conv_transpose2d": CONV, "conv_transpose3d": CONV, "addmm": LINEAR, "dense": LINEAR,
}  # fmt: skip


@lru_cache(maxsize=16384)
def class_kind(cls: str) -> str:
    """What a class's name says it does; empty where it says nothing."""
    if cls == "Conv1D":
        return LINEAR  # GPT-2's transposed linear layer
    text = cls.lower()
    for kind, pieces in _PIECES:
        if any(piece in text for piece in pieces):
            return kind
    return OTHER


@lru_cache(maxsize=16384)
def function_of(cls: str) -> str:
    """The function that a class without parameters stands for: ReLU -> relu, SiLUActivation -> silu."""
    text = "".join(words_of(cls)) or cls.lower()
    plain = text.removesuffix("activation").removesuffix("module").removeprefix("new").removeprefix("fast")
    for known in (*ACTIVATIONS, "dropout", "softmax", "flatten", "identity"):
        if plain == known.replace("_", ""):
            return "silu" if known == "swish" else known
    for known in ("gelu", "silu", "relu"):
        if plain.endswith(known):
            return known
    return "softmax" if "softmax" in plain else "dropout" if "dropout" in plain else ""


def behaviour(weights: list[Shape], taken: Shape | None, given: Shape | None, takes_integers: bool) -> str:
    """What parameters and shapes prove: a linear map, a norm, an embedding, a convolution; else nothing."""
    wide = [shape for shape in weights if len(shape) >= 2]
    if len(wide) == 1 and len(wide[0]) >= 3 and given is not None:
        return convolution(wide[0])
    if len(wide) == 1 and len(wide[0]) == 2 and given:
        if takes_integers and given[-1] == wide[0][1]:
            return EMBEDDING
        if taken and {given[-1], taken[-1]} == set(wide[0]):
            return LINEAR
    if weights and not wide and taken is not None and given is not None and len(weights) <= 4:
        same = sorted(taken) == sorted(given)
        if same and len(set(weights)) == 1 and len(weights[0]) == 1 and weights[0][0] in given:
            return NORM
    return OTHER


def convolution(weight: Shape) -> str:
    """What kind of convolution has this weight."""
    return POINTWISE if len(weight) >= 3 and weight[1] > 1 and set(weight[2:]) == {1} else CONV


def layer_kind(prints: Prints, op: int, cls: str, weights: list[Shape]) -> str:
    """The kind of a module call: what its shapes prove, else what its class says."""
    if op == NONE:
        return class_kind(cls)
    taken, given = int(prints.first_input[op]), int(prints.first_output[op])
    proven = behaviour(weights, prints.shape(taken), prints.shape(given), prints.is_integer(taken))
    return proven or class_kind(cls)
