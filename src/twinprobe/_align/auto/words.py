"""What names say: words, and the one meaning behind q_proj, query and wq."""

from __future__ import annotations

import re
from functools import lru_cache
from operator import mul

from twinprobe._align.auto.fingerprints import Fingerprints
from twinprobe._align.calls import Shape
from twinprobe._align.links import NONE

_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")

# The parts of a model that code bases name differently. A name is looked up whole, without underscores.
_PARTS = """
q: q query wq qproj queryproj toq lqq qlin qlinear linearq queries queryprojection
k: k key wk kproj keyproj tok klin klinear lineark keys keyprojection
v: v value wv vproj valueproj tov vlin vlinear linearv values valueprojection
qkv: qkv qkvproj querykeyvalue wqkv cattn inproj wpack linearqkv attnqkv toqkv qkvlinear qkvprojection
kv: kv kvproj keyvalue linearkv wkv tokv
out: o oproj outproj wo outlin toout projout linearproj attnout oprojection outprojection
gate: gate gateproj w1gate gatelinear wi0
up: up upproj uplinear wi1
gateup: gateup gateupproj gateandup w13 fc1gate packedgateup
fc1: fc1 fc linearfc1 denseht4h densehto4h cfc lin1 wi linear1 intermediatedense wfc1 expand
down: down downproj fc2 linearfc2 dense4htoh lin2 linear2 downlinear wfc2 contract
norm1: inputlayernorm inputnorm ln1 layernorm1 norm1 attentionnorm attnnorm preattentionnorm layernormbefore
norm1: preattnnorm lnattn
norm2: postattentionlayernorm postattentionnorm premlplayernorm ln2 layernorm2 norm2 ffnnorm mlpnorm
norm2: layernormafter premlpnorm lnmlp
normf: finallayernorm finalnorm lnf normf outputnorm postnorm normfinal lnfinal
words: wte embedtokens wordembeddings tokembeddings tokenembedding tokenembeddings wordembedding embedin tokemb
words: wordemb tokembed tokenembed vocabembedding
places: wpe positionembeddings positionembedding posemb posembed embedpositions positionalembedding posembedding
types: tokentypeembeddings tokentypeembedding segmentembeddings segmentembedding typeembedding
head: lmhead outputlayer embedout unembed
pooler: pooler
classify: classifier score
rotary: rotaryemb rotaryposemb rotary rotaryembedding rope ropeemb
act: act actfn activation activationfunc nonlinearity
drop: dropout drop
"""
# Names whose meaning hangs on where they stand.
_IN_ATTENTION = {"dense": "out", "proj": "out", "cproj": "out", "output": "out", "linear": "out", "out": "out"}
_IN_MLP = {
    "cproj": "down", "wo": "down", "output": "down", "out": "down", "w1": "w1", "w2": "down", "w3": "w3",
    "proj": "down",
}  # fmt: skip
_ATTENTION = frozenset({"attention", "attn", "selfattention", "selfattn", "mha", "encdecattention", "crossattention"})
_CROSS = frozenset({"cross", "crossattn", "crossattention", "encdecattention", "encoderattn", "interattention"})
_MLP = frozenset({"mlp", "ffn", "feedforward", "ff", "densereludense", "intermediate", "feed", "experts", "ffwd"})
# Words that nearly every name has; they say nothing.
_EMPTY = frozenset({"module", "model", "layer", "layers", "block", "blocks", "cell", "net", "the", "parallel", "base"})

_MEANING = {
    name: line.partition(":")[0] for line in _PARTS.splitlines() if line for name in line.partition(":")[2].split()
}


@lru_cache(maxsize=65536)
def words_of(text: str) -> tuple[str, ...]:
    """The lower-case words of an attribute's or a class's name; digits and empty words left out."""
    words = (word.lower() for word in _WORD.findall(text))
    return tuple(word for word in words if word not in _EMPTY)


def own_name(path: str) -> str:
    """The attribute's name: the last part of a path that is not a number."""
    return next((part for part in reversed(path.split(".")) if not part.isdecimal()), "")


def above(path: str) -> str:
    """The path around an attribute, numbers at its end left out."""
    parts = path.split(".")
    while parts and parts[-1].isdecimal():
        parts.pop()
    return ".".join(parts[:-1])


@lru_cache(maxsize=65536)
def unnumbered(path: str) -> str:
    """A path without its numbers: equal for the layers of a stack."""
    return ".".join(part for part in path.split(".") if not part.isdecimal())


def numbers_of(path: str) -> tuple[int, ...]:
    """The numbers in a path: which layer of which stack."""
    return tuple(int(part) for part in path.split(".") if part.isdecimal() and len(part) < 10)


@lru_cache(maxsize=65536)
def surroundings(path: str) -> str:
    """In which part of a layer a path lies: attention, cross attention, mlp, or nowhere that is known."""
    for part in reversed(path.split(".")):
        plain = part.replace("_", "").lower()
        words = set(words_of(part))
        if plain in _CROSS or "cross" in words:
            return "cross"
        if plain in _ATTENTION or words & {"attention", "attn", "mha"}:
            return "attention" if not _is_norm(words) else ""
        if plain in _MLP or words & {"mlp", "ffn", "ff"}:
            return "mlp" if not _is_norm(words) else ""
    return ""


@lru_cache(maxsize=65536)
def meaning(path: str) -> str:
    """What the last part of a path stands for, in one spelling; empty where no table knows it."""
    name = own_name(path)
    plain = name.replace("_", "").lower()
    around = surroundings(above(path))
    if around in ("attention", "cross") and plain in _IN_ATTENTION:
        return _IN_ATTENTION[plain]
    if around == "mlp" and plain in _IN_MLP:
        return _IN_MLP[plain]
    return _MEANING.get(plain) or ("attention" if plain in _ATTENTION else "mlp" if plain in _MLP else "")


def _is_norm(words: set[str]) -> bool:
    return bool(words & {"norm", "layernorm", "ln", "rmsnorm"})


# Meanings that cannot be one another; two different ones from different groups may.
_GROUPS = (
    {"q", "k", "v", "qkv", "kv", "out"}, {"gate", "up", "down", "fc1", "gateup", "w1", "w3"},
    {"words", "places", "types", "rotary"}, {"head", "pooler", "classify"},
    {"attention", "mlp"},
)  # fmt: skip
# w1 and w3 are gate and up in one code base and not in the next.
_LOOSE = frozenset({"w1", "w3", "fc1", "gate", "up", "gateup"})
_NEARLY = {
    frozenset({"w1", "gate"}): 0.4, frozenset({"w3", "up"}): 0.4, frozenset({"gate", "fc1"}): 0.4,
    frozenset({"fc1", "gateup"}): 0.5,
}  # fmt: skip


@lru_cache(maxsize=65536)
def agreement(one: str, other: str) -> float:
    """How far two meanings agree: 1 the same, 0 unknown, below 0 where they exclude each other."""
    if not one or not other:
        return 0.0
    if one == other:
        return 1.0
    if one in _LOOSE and other in _LOOSE:
        return _NEARLY.get(frozenset({one, other}), 0.0)
    if one.startswith("norm") and other.startswith("norm"):
        return -0.3  # what one code base calls the final norm of a layer is the second norm of the next
    return -1.0 if any(one in group and other in group for group in _GROUPS) else -0.5


@lru_cache(maxsize=262144)
def likeness(one: str, other: str) -> float:
    """How many words two names share, between 0 and 1; one word that begins another counts half."""
    mine, theirs = set(words_of(one)), set(words_of(other))
    if not mine or not theirs:
        return 0.0
    shared = float(len(mine & theirs))
    for word in mine - theirs:
        if len(word) > 3 and any(word in known or (len(known) > 3 and known in word) for known in theirs - mine):
            shared += 0.5
    return min(1.0, shared / min(len(mine), len(theirs)) * 0.6 + shared / max(len(mine), len(theirs)) * 0.4)


# What a layer does, by its parameters and values first and by its class's name where those are not known.

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
    return next((kind for kind, pieces in _PIECES if any(piece in text for piece in pieces)), OTHER)


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
        return convolution(wide[0], taken, given)
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


def convolution(weight: Shape, taken: Shape | None, given: Shape | None) -> str:
    """What kind of convolution has this weight. One that cuts its input into patches is a linear layer on these."""
    if len(weight) < 3 or weight[1] <= 1:
        return CONV
    axes = len(weight) - 2
    tiles = taken and given and taken[-axes:] == tuple(map(mul, weight[2:], given[-axes:]))
    return POINTWISE if tiles or set(weight[2:]) == {1} else CONV


def layer_kind(fingerprints: Fingerprints, op: int, cls: str, weights: list[Shape]) -> str:
    """The kind of a module call: what its shapes prove, else what its class says."""
    if op == NONE:
        return class_kind(cls)
    taken, given = int(fingerprints.first_input[op]), int(fingerprints.first_output[op])
    proven = behaviour(weights, fingerprints.shape(taken), fingerprints.shape(given), fingerprints.is_integer(taken))
    return proven or class_kind(cls)
