"""Entries of a dump: what was seen at each place of a call, captured on the training thread as a tree that nothing can
change later, and turned into JSON text on the writer thread."""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from json.encoder import encode_basestring
from math import copysign, inf, isfinite, prod
from pathlib import Path
from secrets import token_hex
from struct import Struct as Packed
from typing import Any

import numpy as np
from msgspec import Struct, field

from twinprobe._measure.elements import address_of
from twinprobe._measure.engine import KERNEL_BYTES, engine_for
from twinprobe._measure.sketch import sketch
from twinprobe._measure.statistics import Statistics, statistics
from twinprobe._runs.tensors.elements import HostTensor

# One row per distinct tensor: its measured values, and one note per place where it was seen.

# What an entry may have, in the order in which it is written, and what stands for it in names of files.
_SEGMENTS = {
    "input_args": "input", "input_kwargs": "kwargs", "input": "input", "output": "output", "parameters": "parameters",
    "remark": "remark",
}  # fmt: skip


# Tags that mark notes and leaves in entries packed for the writer process; random, so that no value can look like one.
NOTE_TAG, LEAF_TAG = (f"{kind} {token_hex(8)}" for kind in ("note", "leaf"))

# Made by the thousand while a model runs: structs are made by compiled code, and the garbage collector need not look at
# them, because nothing in them leads back to them.


class Row(Struct, eq=False, gc=False, array_like=True):
    """The measurement of one distinct tensor. Filled at once on the host, at the step's end on a device."""

    values: Statistics | None = None
    digest: str | float | None = None
    payload: Any = None
    address: int = 0  # where a float32 payload lies in host memory, dense and in C order, if that is known
    file: str | None = None
    text: str | None = None
    text_key: Any = None
    summary: str | None = None  # the name under which its summary was written
    sketch: bytes | None = None  # the last two are what the writer process reads
    number: int = field(default_factory=count().__next__)  # tells rows apart, in the writer process too


class Note(Struct, eq=False, gc=False, array_like=True, tag_field="tag", tag=NOTE_TAG):
    """One tensor seen at one place of one call."""

    type: str
    dtype: str
    shape: tuple[int, ...]
    row: Row | None
    requires_grad: bool | None = None
    save: bool = False
    file: str | None = None
    extra: dict[str, Any] | None = None
    shard: Row | None = None  # its sketch, where the elements are counted by their place in a larger tensor


class Leaf(Struct, eq=False, gc=False, array_like=True, tag_field="tag", tag=LEAF_TAG):
    """A value whose JSON form is known already."""

    json: dict[str, Any] = field(default_factory=dict)


class Entry(Struct, eq=False, gc=False, array_like=True):
    """One op entry before it becomes text: what was captured, by the key that it has in JSON.

    ``bare``: the single part is the entry itself. ``boxed``: every part stands in a list of its own.
    """

    name: str
    parts: dict[str, Any]
    bare: bool = False
    boxed: bool = False

    def ordered(self) -> dict[str, Any]:
        """The parts in the order in which they are written."""
        parts = self.parts
        return parts if self.boxed or self.bare else {key: parts[key] for key in _SEGMENTS if key in parts}


def notes_of(entry: Entry) -> Iterator[tuple[Note, str]]:
    """Every tensor of an entry with the name that its file gets."""
    for key, value in entry.ordered().items():
        segment = key if entry.boxed else _SEGMENTS.get(key, key)
        yield from _walk(value, f"{entry.name}.{segment}" if segment else entry.name)


def _walk(value: Any, name: str) -> Iterator[tuple[Note, str]]:
    kind = type(value)
    if kind is Note:
        yield value, name
    elif kind is list:
        for index, item in enumerate(value):
            yield from _walk(item, f"{name}.{index}")
    elif kind is dict:
        for key, item in value.items():
            yield from _walk(item, f"{name}.{key}")
    elif kind is Leaf:
        yield from _walk({key: item for key, item in value.json.items() if type(item) is Note}, name)


# The order in which dump.json is read, which is that of its sketches.
_READ = ("input_args", "input_kwargs", "input", "parameters", "output")


def sketches_of(entry: Entry) -> list[tuple[int, bytes | None]]:
    """The number and the sketch of every tensor, in the order in which readers of dump.json count them."""
    keys = entry.parts if entry.boxed or entry.bare else [key for key in _READ if key in entry.parts]
    rows = [note.shard or note.row for key in keys for note, _ in _walk(entry.parts[key], "")]
    return [(-1, None) if row is None else (row.number, row.sketch) for row in rows]


# Collectives that are still running: their tensors have a shape, but no values that could be read yet.


def is_pending(result: Any) -> bool:
    """Whether a collective returned a handle to wait for. Waiting here would change the order of the run."""
    if isinstance(result, list | tuple):
        return any(map(is_pending, result))
    if not callable(getattr(result, "wait", None)):
        return False
    completed = getattr(result, "is_completed", None)
    return not (callable(completed) and completed())


def without_values(value: Any) -> Any:
    """The same tree, its notes without measurements and files."""
    if isinstance(value, Note):
        return Note(value.type, value.dtype, value.shape, None, value.requires_grad, False, None, value.extra)
    if isinstance(value, list):
        return [without_values(item) for item in value]
    if isinstance(value, Leaf):
        return Leaf({key: without_values(item) for key, item in value.json.items()})
    return value


# Compiled kernels pay by the number of tensors too, not only by bytes: from then on they are loaded.

KERNELS_AFTER = 256


def load_kernels_beside() -> None:
    """Load the compiled kernels on a thread of their own, beside the training."""

    def load() -> None:
        tensor = HostTensor("float32", (64,), np.ones(64, dtype=np.float32))
        statistics(tensor, engine=engine_for(KERNEL_BYTES))
        sketch(tensor)
        octets = np.zeros(1 << 14, np.uint8)
        engine_for(KERNEL_BYTES).crc32_at(address_of(octets), octets.size)

    with suppress(RuntimeError):  # the system may allow no more threads
        threading.Thread(target=load, name="twinprobe-kernels", daemon=True).start()


def with_total_norm(entry: Entry) -> Entry:
    """The entry of a step's total norm: its gradients, measured by now, give way to the norm they have together.

    Without parts of tensors that other ranks hold the rest of, it is that of all gradients; else only this rank's.
    """
    notes = entry.parts["output"]
    if not isinstance(notes, list) or not all(isinstance(note, Note) for note in notes):
        return entry
    norms = [note.row.values.norm for note in notes if note.row is not None and note.row.values is not None]
    total = sum(norm * norm for norm in norms if norm is not None) ** 0.5
    kind, dtype = (notes[0].type, notes[0].dtype) if notes else ("torch.Tensor", "torch.float32")

    def leaf(norm: float) -> Leaf:  # as exact as the gradients are
        four = dict.fromkeys(("Max", "Min", "Mean", "Norm"), norm)
        return Leaf({"type": kind, "dtype": dtype, "shape": [], **four})

    before = [leaf(norm) if isinstance(norm, float) else norm for norm in entry.parts["input_args"]]
    return Entry(entry.name, {"input_args": before, "output": [leaf(total)]})


# The four statistics as dumps have always carried them, and the fuller ones that stand beside them.

Four = tuple[Any, Any, Any, Any, dict[str, Any]]
_NOTHING: Four = (None, None, None, None, {})
_NARROW = frozenset({"float32", "float16", "bfloat16"})
_FLOAT32_MAX = (2 - 2**-23) * 2.0**127
_SQUARES_OVERFLOW = _FLOAT32_MAX**0.5
_half, _single, _bits = Packed("e"), Packed("f"), Packed("I")  # numpy's scalars are slow to make


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


# Text is put together by hand: a large step holds ten thousand leaves, most of them the same few thousand tensors seen
# again, and every microsecond here is taken from the training through the interpreter lock.

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


# Errors inside the recorder: logged once per cause, kept in dump_error_info.log, never raised into the training.

logger = logging.getLogger("twinprobe.record")
LOG_NAME = "dump_error_info.log"


def speak() -> None:
    """Show the recorder's own lines even where the program has not set up logging."""
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("twinprobe: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False


class Problems:
    """Counts causes. A cause is the kind of error and the line it came from."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def note(self, doing: str, error: BaseException) -> None:
        """Log the first error of each cause in full; count the rest."""
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "unknown place"
        cause = f"{type(error).__name__} at {place}"
        with self._lock:
            count = self.counts[cause] = self.counts.get(cause, 0) + 1
        if count > 1:
            return
        try:
            text, details = str(error), "".join(traceback.format_exception(error))
        except Exception:  # an error class of the program may fail to describe itself
            text, details = "an error that cannot be shown", cause
        logger.warning("error while %s (%s: %s); recording continues", doing, type(error).__name__, text)
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / LOG_NAME).open("a", encoding="utf-8", errors="replace") as log:
                log.write(f"while {doing}: {details}\n")
        except OSError:
            self.folder = None  # the disk itself is the problem; the console has had the message
