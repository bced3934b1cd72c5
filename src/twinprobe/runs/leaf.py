"""One recorded value of a call, as dump.json spells it and as the tables show it."""

from __future__ import annotations

import zlib
from math import prod
from typing import Annotated, Any

import msgspec

# What a leaf is. NULL is a recorded None; VALUE is a scalar or another plain Python value.
TENSOR, VALUE, NULL = 0, 1, 2

_SHOWN_AS_TEXT = frozenset({"src", "dst", "group_src", "group_dst"})
_MAX_ELEMENTS = 1 << 62
_SPECIAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}

Stat = float | int | bool | str | None
Dim = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]


class Leaf(msgspec.Struct, gc=False):
    """A leaf of an op entry.

    Fields of the file first. The last three are ours, under names that no recorder writes: ``settle`` fills the
    kind and the shown shape; ``peer`` names the operation and the other rank of a point-to-point call.
    """

    type: str
    dtype: str | None = None
    shape: list[Dim] | None = None
    Max: Stat = None
    Min: Stat = None
    Mean: Stat = None
    Norm: Stat = None
    requires_grad: bool | None = None
    md5: Stat = None  # a 0-d tensor's own value in xor runs
    data_name: str | None = None
    value: Any = None
    format: str | None = None
    group_ranks: list[int] | None = None
    layout: str | None = None  # how a weight is stored, where that is not [out, in]
    kind: int = msgspec.field(default=TENSOR, name="(kind)")
    shown_shape: str | None = msgspec.field(default=None, name="(shown shape)")
    peer: str | None = msgspec.field(default=None, name="(peer)")


NOTHING = Leaf("None", kind=NULL, Max="None", Min="None", Mean="None", Norm="None")

_shape_texts: dict[tuple[int, ...], str] = {}


def settle(leaf: Leaf | None, argument: str) -> Leaf:
    """Give a decoded leaf its final form: what the tables show as dtype, shape and statistics.

    Raises ValueError for a shape that no memory could hold.
    """
    if leaf is None:
        return NOTHING
    leaf.kind = TENSOR
    if leaf.dtype is not None and leaf.shape is not None:
        key = tuple(leaf.shape)
        text = _shape_texts.get(key)
        if text is None:
            text = _shape_text(key)
        leaf.shown_shape = text
        return leaf
    _show_value(leaf, argument)
    return leaf


def _shape_text(shape: tuple[int, ...]) -> str:
    if prod(shape) > _MAX_ELEMENTS:
        raise ValueError(f"shape {list(shape)} has more elements than any memory holds")
    if len(_shape_texts) > 10_000:
        _shape_texts.clear()
    text = _shape_texts[shape] = str(list(shape))
    return text


def _show_value(leaf: Leaf, argument: str) -> None:
    leaf.kind = VALUE
    leaf.shown_shape = "[]"
    if leaf.type != "str" and isinstance(leaf.value, str):
        leaf.value = _SPECIAL.get(leaf.value, leaf.value)  # it was put in quotes to be read
    of_type = f"<class '{type(leaf.value).__name__}'>"
    if isinstance(leaf.value, list | dict):
        leaf.value = str(leaf.value)  # no more of it is needed, and its items take much more room than their text
    value = leaf.value
    if argument in _SHOWN_AS_TEXT and value is not None:
        leaf.dtype, value = leaf.type, str(value)
    elif leaf.type == "torch.Size":
        leaf.dtype, leaf.shown_shape, value = "torch.Size", str(value), None
    elif leaf.type == "slice":
        leaf.dtype, leaf.shown_shape, value = "slice", "(3,)", None
    elif leaf.type == "ellipsis":
        leaf.dtype = "ellipsis"
    elif leaf.group_ranks is not None:
        leaf.dtype, value = leaf.type, str(leaf.group_ranks)
    elif leaf.format is not None:
        leaf.dtype, value = "<class 'NoneType'>", None
    else:
        leaf.dtype = of_type
    leaf.Max = leaf.Min = leaf.Mean = leaf.Norm = "None" if value is None else value


def value_digest(leaf: Leaf) -> str | None:
    """The checksum that stands for a value that is no tensor, so that checksum runs compare values too."""
    if leaf.kind == NULL:
        return None
    if leaf.group_ranks is not None:
        return str(leaf.group_ranks)
    text = "" if leaf.value is None else str(leaf.value)
    return f"{zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x}"


def meaning(leaf: Leaf) -> str | None:
    """What a value says beyond its shown statistics (slice bounds, sizes, memory format), for equality."""
    if leaf.kind != VALUE:
        return None
    if leaf.format is not None:
        return leaf.format
    return str(leaf.value) if leaf.type in {"torch.Size", "slice"} else None


def special_number(text: str) -> float | None:
    """NaN and the infinities, which JSON proper lacks and recorders write all the same."""
    return _SPECIAL.get(text)
