"""One row per distinct tensor: its measured values, and one note per place where it was seen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from secrets import token_hex
from typing import Any, Protocol

import numpy as np
from msgspec import Struct, field

from twinprobe._measure.elements import address_of
from twinprobe._measure.engine import KERNEL_BYTES, engine_for
from twinprobe._measure.sketch import sketch
from twinprobe._measure.statistics import Statistics, statistics
from twinprobe._runs.tensors.elements import HostTensor

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


# Gradients of parameters by module: one entry for each module and backward pass.


class GradientWatch(Protocol):
    """Collects the gradients of watched modules' parameters."""

    def attach(self, infos: Iterable[Any]) -> None:
        """Collect those of these modules."""

    def flush(self) -> None:
        """A pass is over."""

    def detach(self) -> None:
        """Hand over what has come, and collect no more."""


class Group:
    """The parameters of one module and the gradients of this pass that have come."""

    __slots__ = ("expected", "found", "module", "prefix")

    def __init__(self, module: Any, prefix: str, expected: int) -> None:
        self.module = module
        self.prefix = prefix
        self.expected = expected
        self.found: dict[str, Any] = {}


class ParameterGradients:
    """The groups that are watched, and the hooks on their parameters."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._handles: list[Any] = []
        self._groups: list[Group] = []

    def detach(self) -> None:
        """Emit what came and remove every hook."""
        self.flush()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._groups.clear()

    def flush(self) -> None:
        """The pass is over: emit what came, even where some gradients did not."""
        for group in self._groups:
            if group.found:
                self._emit(group)

    def attach(self, infos: Iterable[Any]) -> None:
        """Watch the parameters of every watched module. Each hook sees the gradient of one backward pass, summed over
        all uses."""
        work = self._recorder.work
        for info in infos:
            named = self._recorder.watched_parameters(info)
            if named:
                group = Group(info.module, info.prefix, len(named))
                self._groups.append(group)
                for name, parameter in named.items():
                    hook = partial(work, "recording a parameter's gradient", self._arrived, group, name)
                    self._watch(parameter, hook)

    def _watch(self, parameter: Any, hook: Callable[[Any], None]) -> None:
        self._handles.append(parameter.register_hook(hook))

    def _arrived(self, group: Group, name: str, gradient: Any) -> None:
        recorder = self._recorder
        if not recorder.active or recorder.muted:
            return
        if name in group.found:  # a second gradient of a parameter is of another pass
            self._emit(group)
        recorder.wants("" if recorder.takes_all else f"{group.prefix}parameters_grad.")
        group.found[name] = recorder.note_parameter_gradient(group.module, name, gradient)
        if len(group.found) == group.expected:
            self._emit(group)

    def _emit(self, group: Group) -> None:
        gradients, group.found = group.found, {}
        emit_gradients(self._recorder, group.prefix, gradients)


def emit_gradients(recorder: Any, prefix: str, gradients: dict[str, Any]) -> None:
    """Hand over the gradients of one module, as the next pass of it."""
    front = f"{prefix}parameters_grad"
    name = f"{front}.{recorder.engine.count(front)}"
    if recorder.wants(name):
        recorder.engine.emit(Entry(name, gradients, boxed=True))


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
