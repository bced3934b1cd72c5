"""Where layers keep their weights, in words that all frameworks share.

A layout names each weight of a layer (`weight`, `q.bias`, `l0.weight_ih`), says under which attribute it lies, and how
that array is turned to the common form: [out, in] for a matrix, one vector for a norm, one part each for q, k and v.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class View:
    """How a stored array is seen in the common form; on a fresh array it is a view that can be written to."""

    transposed: bool = False
    third: int | None = None  # of three equal parts along the first axis of the common form
    rows: tuple[int, int] | None = None  # of the first axis of the common form, from one to before the other
    drop: int | None = None  # an axis of length one
    flat: bool = False
    pointwise: bool = False  # the matrix of a convolution of one point: all further axes are of length one

    def of(self, array: Array) -> Array:
        """The array in the common form."""
        if self.drop is not None:
            array = array[(slice(None),) * self.drop + (0,)]
        if self.flat or self.pointwise:
            array = array.reshape(-1 if self.flat else array.shape[:2])
        if self.transposed:
            array = array.T
        if self.third is not None:
            part = array.shape[0] // 3
            array = array[self.third * part : (self.third + 1) * part]
        return array if self.rows is None else array[slice(*self.rows)]

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """The shape in the common form, without an array."""
        if self.drop is not None:
            stored = stored[: self.drop] + stored[self.drop + 1 :]
        if self.flat:
            stored = (int(np.prod(stored, dtype=np.int64)),)
        stored = stored[:2] if self.pointwise else stored
        stored = stored[::-1] if self.transposed else stored
        if self.rows is not None:
            return self.rows[1] - self.rows[0], *stored[1:]
        return stored if self.third is None else (stored[0] // 3, *stored[1:])


AS_IS, TRANSPOSED, FLAT = View(), View(transposed=True), View(flat=True)


@dataclass(frozen=True)
class Part:
    """One weight: its common name, the attribute that holds it, and how to see it."""

    name: str
    place: str
    view: View = AS_IS
    neutral: float | None = None  # the value that a layer without this weight computes with


@dataclass(frozen=True)
class Layout:
    """All weights of one kind of layer; `nested` gives parts of it that are layers of their own."""

    family: str
    parts: tuple[Part, ...] = ()
    nested: Mapping[str, str] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether the layout covers everything below the layer."""
        return bool(self.nested) or any("." in part.place for part in self.parts)


Rule = Layout | Callable[[Any], Layout]
Rules = list[tuple[tuple[type, ...], Rule]]


def rules_for(package: Any, table: Mapping[str, Rule]) -> Rules:
    """The rules of a framework by its classes: dotted names under a package, some of which old versions lack."""

    def found(name: str) -> Any:
        return reduce(lambda owner, step: getattr(owner, step, None), name.split("."), package)

    return [(tuple(filter(None, map(found, names.split()))), rule) for names, rule in table.items()]


def linear(*, transposed: bool = False) -> Layout:
    """A matrix [out, in], or [in, out] when transposed, and a bias."""
    return Layout("linear", (Part("weight", "weight", View(transposed=transposed)), Part("bias", "bias")))


def convolution(*, transposed: bool = False, drop: int | None = None) -> Layout:
    """A kernel and a bias; one-dimensional kernels may be stored with an axis too many."""
    family = "transposed convolution" if transposed else "convolution"
    return Layout(family, (Part("weight", "weight", View(drop=drop)), Part("bias", "bias")))


def embedding(place: str = "weight") -> Layout:
    """A table [entries, width]."""
    return Layout("embedding", (Part("weight", place),))


def norm(weight: str = "weight", bias: str = "bias", mean: str = "", variance: str = "", inside: str = "") -> Layout:
    """Scale and shift, and running statistics where there are any."""
    parts = [Part("weight", inside + weight, FLAT, 1.0), Part("bias", inside + bias, FLAT, 0.0)]
    if mean:
        parts += [Part("running mean", inside + mean, FLAT), Part("running variance", inside + variance, FLAT)]
        parts += [Part("batches", inside + "num_batches_tracked")]
    return Layout("norm", tuple(parts))


def bilinear(*, row_bias: bool = False) -> Layout:
    """A block [out, in1, in2]; the bias may be stored as a row."""
    return Layout("bilinear", (Part("weight", "weight"), Part("bias", "bias", View(drop=0 if row_bias else None))))


def prelu(place: str = "weight") -> Layout:
    """One slope, or one per channel."""
    return Layout("prelu", (Part("weight", place),))


def packed_attention(layer: Any) -> Layout:
    """Projections of q, k and v in one array, or apart where their widths differ."""
    parts: list[Part] = [Part("bias_k", "bias_k"), Part("bias_v", "bias_v")]
    packed = getattr(layer, "in_proj_weight", None) is not None
    for index, name in enumerate("qkv"):
        third = View(third=index)
        apart = Part(f"{name}.weight", f"{name}_proj_weight")
        parts.append(Part(f"{name}.weight", "in_proj_weight", third) if packed else apart)
        parts.append(Part(f"{name}.bias", "in_proj_bias", third))
    return Layout("attention", tuple(parts), {"out": "out_proj"})


def separate_attention(q: str = "q_proj", k: str = "k_proj", v: str = "v_proj", out: str = "out_proj") -> Layout:
    """Four linear layers."""
    return Layout("attention", nested={"q": q, "k": k, "v": v, "out": out})


def recurrent(
    layer: Any, cells: Iterable[tuple[str, str, str]] = (("l0", "", ""),), projection: View = AS_IS
) -> Layout:
    """Gates of a recurrent layer: for each cell its common name, and what stands before and after an attribute."""
    # lstm, gru or rnn, by the class or the cell that all frameworks call alike.
    names = {kind.__name__.removesuffix("Cell") for kind in type(layer).__mro__}
    family = "lstm" if "LSTM" in names else "gru" if "GRU" in names else "rnn"
    parts = []
    for name, before, after in cells:
        for weight in ("weight_ih", "weight_hh"):
            parts.append(Part(f"{name}.{weight}", f"{before}{weight}{after}"))
        for bias in ("bias_ih", "bias_hh"):
            parts.append(Part(f"{name}.{bias}", f"{before}{bias}{after}", neutral=0.0))
        place = "weight_ho" if projection.transposed else "weight_hr"
        parts.append(Part(f"{name}.projection", f"{before}{place}{after}", projection))
    return Layout(family, tuple(parts))


def flat_recurrent(layer: Any, layers: int, *, both_ways: bool) -> Layout:
    """All cells side by side: weight_ih_l0, weight_ih_l0_reverse, weight_ih_l1, ..."""
    ends = [f"l{index}{suffix}" for index in range(layers) for suffix in (("", "_reverse") if both_ways else ("",))]
    return recurrent(layer, [(end, "", f"_{end}") for end in ends])


def transformer_layer(first: str, second: str, cross: str = "") -> Layout:
    """An encoder layer, or a decoder layer with the attention `cross`."""
    nested = {"self_attn": "self_attn", "linear1": first, "linear2": second, "norm1": "norm1", "norm2": "norm2"}
    if cross:
        nested |= {"cross_attn": cross, "norm3": "norm3"}
    return Layout("decoder layer" if cross else "encoder layer", nested=nested)


def transformer_stack(layer: Any) -> Layout:
    """Layers in a row and perhaps a norm after them."""
    family = "encoder" if any(kind.__name__ == "TransformerEncoder" for kind in type(layer).__mro__) else "decoder"
    places = [*(f"layers.{index}" for index in range(len(layer.layers))), "norm"]
    return Layout(family, nested=dict(zip(places, places, strict=True)))
