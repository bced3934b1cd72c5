"""Captured entries to JSON text, on the writer thread.

Text is put together by hand: a large step holds ten thousand leaves, most of them the same few thousand tensors seen
again, and every microsecond here is taken from the training through the interpreter lock.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from json.encoder import encode_basestring
from math import copysign, inf, isfinite, prod
from struct import Struct
from typing import Any

import numpy as np

from twinprobe._measure.statistics import Statistics
from twinprobe._record.rows import Entry, Leaf, Note, Row

# The four statistics as dumps have always carried them, and the fuller ones that stand beside them.

Four = tuple[Any, Any, Any, Any, dict[str, Any]]
_NOTHING: Four = (None, None, None, None, {})
_NARROW = frozenset({"float32", "float16", "bfloat16"})
_FLOAT32_MAX = (2 - 2**-23) * 2.0**127
_SQUARES_OVERFLOW = _FLOAT32_MAX**0.5
_half, _single, _bits = Struct("e"), Struct("f"), Struct("I")  # numpy's scalars are slow to make


def legacy_statistics(  # noqa: PLR0911  one return per kind of number
    dtype: str, shape: tuple[int, ...], values: Statistics | None, *, high: bool = False
) -> Four:
    """Max, Min, Mean and Norm in their old meaning, and the extra fields.

    Old meaning: in the tensor's own dtype; no Mean and Norm for integers, bool and float64 (``Mean_full`` and
    ``Norm_full`` give them); a single number stands for all four; ``high`` keeps float32 instead of rounding further.
    """
    if values is None or values.max is None:
        return _NOTHING
    kind = dtype.rpartition(".")[2]
    extra: dict[str, Any] = {}
    if values.nan:
        extra["NaN_count"] = values.nan
    if values.inf:
        extra["Inf_count"] = values.inf
    if kind[:1].isupper():  # Float32: MindSpore's spelling
        return _mindspore(kind, shape, values, extra)
    if not shape:
        only = values.max
        return (only, only, None, None, extra) if kind == "bool" else (only, only, only, only, extra)
    if kind in _NARROW:
        count = prod(shape)
        own = "float32" if high else kind
        mean, norm = _mean(values.mean, count, own), _norm(values.norm, own)
        return values.max, values.min, mean, norm, extra
    if kind.startswith("complex"):
        return values.max, values.min, values.mean, None, {**extra, "Norm_full": values.norm}
    extra |= {"Mean_full": values.mean, "Norm_full": values.norm}
    if kind.startswith("float8") or kind.startswith("float4"):
        return None, None, None, None, {"Max_full": values.max, "Min_full": values.min, **extra}
    return values.max, values.min, None, None, extra


def _mindspore(kind: str, shape: tuple[int, ...], values: Statistics, extra: dict[str, Any]) -> Four:
    """There everything is cast to float32 first, integers and float64 too; only bool has no Mean and Norm."""
    if kind == "Bool":
        return values.max, values.min, None, None, extra
    assert values.max is not None
    assert values.min is not None
    high, low = float(values.max), float(values.min)
    if not shape:
        return high, high, high, high, extra
    return high, low, _mean(values.mean, prod(shape), "float32"), _norm(values.norm, "float32"), extra


def _mean(mean: float | None, count: int, kind: str) -> float | None:
    if mean is None:
        return None
    if isfinite(mean) and abs(mean) * count > _FLOAT32_MAX:
        return copysign(inf, mean)  # the float32 sum that frameworks take overflows
    return round_to(kind, mean)


def _norm(norm: float | None, kind: str) -> float | None:
    if norm is None:
        return None
    return inf if norm > _SQUARES_OVERFLOW else round_to(kind, norm)


def round_to(kind: str, value: float) -> float:
    """The nearest number of that dtype, as Python's float."""
    try:
        if kind == "float16":
            return float(_half.unpack(_half.pack(value))[0])
        packed = _single.pack(value)
    except OverflowError:
        return copysign(inf, value)
    if kind != "bfloat16" or not isfinite(value):
        return float(_single.unpack(packed)[0])
    (bits,) = _bits.unpack(packed)
    return float(_single.unpack(_bits.pack((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000))[0])


dumps = json.JSONEncoder(ensure_ascii=False, default=str).encode
_quoted: Any = encode_basestring
_number_text = float.__repr__  # the encoder's own


class Renderer:
    """Knows the summary mode, and so which fields a tensor's leaf has."""

    def __init__(self, *, summary_mode: str, precision: str) -> None:
        self.summary_mode = summary_mode
        self.precision = precision
        self._high = precision == "high"

    def entry(self, entry: Entry) -> str:
        """The JSON text of one op entry's value."""
        if entry.bare:
            return self._tree(entry.parts[""])
        before, after = ("[", "]") if entry.boxed else ("", "")
        parts = [f"{_quoted(key)}: {before}{self._tree(value)}{after}" for key, value in entry.ordered().items()]
        return "{" + ", ".join(parts) + "}"

    def _tree(self, value: Any) -> str:
        kind = type(value)
        if kind is Note:
            return self.tensor(value)
        if kind is list:
            return "[" + ", ".join([self._tree(item) for item in value]) + "]"
        if value is None:
            return "null"
        if kind is dict:
            return "{" + ", ".join([f"{_quoted(key)}: {self._tree(item)}" for key, item in value.items()]) + "}"
        if kind is Leaf:
            fields = [
                f"{dumps(key)}: {self.tensor(item) if type(item) is Note else dumps(item)}"
                for key, item in value.json.items()
            ]
            return "{" + ", ".join(fields) + "}"
        return f'{{"type": "{kind.__name__}", "value": {_plain(value)}}}'

    def tensor(self, note: Note) -> str:
        """The leaf of one tensor, its fields in the order in which readers have always met them."""
        row = note.row
        if row is None or note.extra or note.file:
            return self._fields(note, row, note.file)
        key = (note.requires_grad, note.dtype, note.shape, note.type)
        if row.text is None or row.text_key != key:
            row.text, row.text_key = self._fields(note, row, None), key
        return row.text

    def _fields(self, note: Note, row: Row | None, file: str | None) -> str:
        text = f'{{"type": "{note.type}", "dtype": "{note.dtype}", "shape": {list(note.shape)}'
        grad = "" if note.requires_grad is None else f', "requires_grad": {"true" if note.requires_grad else "false"}'
        digest = _plain(row.digest if row else None)
        if self.summary_mode == "xor":
            text += f', "md5": {digest}{grad}'
        else:
            four = legacy_statistics(note.dtype, note.shape, row.values if row else None, high=self._high)
            high, low, mean, norm, extra = four
            text += (
                f', "Max": {_plain(high)}, "Min": {_plain(low)}, "Mean": {_plain(mean)}, "Norm": {_plain(norm)}{grad}'
            )
            for key, value in extra.items():
                text += f', "{key}": {_plain(value)}'
        if note.extra:
            for key, value in note.extra.items():
                text += f', "{key}": {dumps(value)}'
        if self.summary_mode == "md5":
            text += f', "md5": {digest}'
        if file is not None:
            text += f', "data_name": {_quoted(file)}'
        return text + "}"


def _plain(value: Any) -> str:
    """As the encoder writes it; for the commonest types without its detours."""
    kind = type(value)
    if kind is float:
        return _number_text(value) if isfinite(value) else dumps(value)
    if kind is str:
        return str(_quoted(value))
    return repr(value) if kind is int else dumps(value)


# Inputs and outputs of a call, captured on the training thread as a tree that nothing can change later.

_DEPTH_LIMIT = 400
_PLAIN = frozenset({int, float, bool, str, type(None)})

Foreign = Callable[[Any, str | None], Any]
Failed = Callable[[Any, Exception], Any]
NOT_MINE = object()


def remark_of(error: BaseException) -> str:
    """The remark in a dump where the recorder failed."""
    return f"not recorded ({type(error).__name__}; see dump_error_info.log)"


def unrecorded(value: Any, error: BaseException) -> Leaf:
    """The placeholder in a dump for a value that could not be captured."""
    return Leaf({"type": type(value).__name__, "value": None, "remark": remark_of(error)})


class Capturer:
    """Turns live values into a tree of plain containers, scalars, Notes and Leaves that nothing can change later.

    ``foreign`` knows the framework's own types (tensors first of all) and answers NOT_MINE for the rest. ``direct`` is
    the short way for the commonest types. ``failed`` is called with a value that cannot be captured and returns its
    placeholder; the rest of the call is recorded.
    """

    def __init__(
        self, foreign: Foreign, failed: Failed, direct: Mapping[type, Callable[[Any], Any]] | None = None
    ) -> None:
        self._foreign = foreign
        self._failed = failed
        self._direct = direct or {}

    def __call__(self, value: Any, key: str | None = None, depth: int = 0) -> Any:
        kind = type(value)
        try:
            direct = self._direct.get(kind)
            if direct is not None:
                return direct(value)
            if kind in _PLAIN and not (key == "device" and kind is str):
                return value
            if kind is list or kind is tuple:
                return [self(item, None, depth + 1) for item in value] if depth < _DEPTH_LIMIT else None
            if kind is dict:
                return self.mapping(value, depth)
            leaf = self._foreign(value, key)
            return self._rest(value, depth) if leaf is NOT_MINE else leaf
        except Exception as error:
            return self._failed(value, error)

    def items(self, values: Iterable[Any]) -> list[Any]:
        """Several values, such as the arguments of a call; each that fails is marked."""
        direct = self._direct
        captured = []
        for value in values:
            short = direct.get(type(value))
            try:
                captured.append(self(value) if short is None else short(value))
            except Exception as error:
                captured.append(self._failed(value, error))
        return captured

    def mapping(self, value: Mapping[Any, Any], depth: int = 0) -> dict[str, Any] | None:
        """A mapping with every key as text; a key such as ``dtype`` tells what its value means."""
        if depth >= _DEPTH_LIMIT:
            return None
        return {str(key): self(item, str(key), depth + 1) for key, item in value.items()}

    def _rest(self, value: Any, depth: int) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):  # a Hugging Face ModelOutput is one
            pairs = ((item.name, getattr(value, item.name, None)) for item in dataclasses.fields(value))
            return {name: self(item, name, depth + 1) for name, item in pairs}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return {str(name): self(getattr(value, name), str(name), depth + 1) for name in value._fields}
        if isinstance(value, list | tuple):
            return [self(item, None, depth + 1) for item in value]
        if isinstance(value, Mapping):
            return self.mapping(value, depth)
        return _python_leaf(value)


def _python_leaf(value: Any) -> Any:
    if isinstance(value, np.generic):
        plain = value.item()
        return Leaf({"type": type(value).__name__, "value": plain if type(plain) in _PLAIN else str(plain)})
    if isinstance(value, slice):
        bounds = [item if isinstance(item, int) else None for item in (value.start, value.stop, value.step)]
        return Leaf({"type": "slice", "value": bounds})
    if value is Ellipsis:
        return Leaf({"type": "ellipsis", "value": "..."})
    if isinstance(value, bool | int | float | str):  # subclasses: an IntEnum, a str Enum
        return next(kind for kind in (bool, int, float, str) if isinstance(value, kind))(value)
    return None
