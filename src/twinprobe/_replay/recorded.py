"""A recorded call read back: its arguments, results and gradients, from an untrusted dump.

A plain value counts only if it is of one of the types that recorders write. A tensor is read by the reader that never
runs pickled code, and only once its declared shape, and that of all others, fits into the room that is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from twinprobe._runs.dtypes import STORAGE
from twinprobe._runs.dump_json import read_entries
from twinprobe._runs.names import BACKWARD, FORWARD, OpName, parse_op
from twinprobe._runs.run import DEBUG, DEBUG_PART, DUMP, PART, Run
from twinprobe._runs.table import SPECIAL, decode_entry
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe._runs.tensors.tensor_files import open_named
from twinprobe.errors import BadInput, TwinProbeError, did_you_mean

ROOM = 2 << 30  # bytes of memory that replaying one call may take, unless the user gives another number
_COPIES = 6  # of each tensor: as recorded, in float64, as a result, and what a call holds on its way
_DEEPEST = 40  # containers in one another; arguments of real calls have three


class CannotReplay(Exception):
    """Why a call cannot be run again."""


@dataclass
class Slot:
    """A tensor of a recorded call: as the dump describes it. ``file`` is None where it was not kept."""

    shape: tuple[int, ...]
    dtype: str
    file: str | None
    requires_grad: bool
    value: Any = None
    """The tensor itself, once it is loaded."""


@dataclass(frozen=True)
class FrameworkConstant:
    """A dtype, device or memory format: a word of the framework's own, looked up in a table when it is needed."""

    kind: str
    text: str


UNKNOWN = FrameworkConstant("unknown", "")


@dataclass
class Call:
    """One recorded call. Arguments are trees of lists, dicts, plain values, Slots and Words."""

    run: Run
    name: str
    op: OpName
    args: list[Any]
    kwargs: dict[str, Any]
    parameters: dict[str, Any]
    outputs: list[Any]
    arriving: list[Any] = field(default_factory=list)
    """The gradients of its outputs, as they came in."""
    leaving: list[Any] = field(default_factory=list)
    """The gradients of its differentiable inputs, as it returned them."""
    problem: str = ""
    """Why its entry in the dump cannot be understood."""

    def slots(self) -> Iterator[Slot]:
        """Every tensor among its inputs and outputs."""
        return slots_in((self.args, self.kwargs, self.parameters, self.outputs, self.arriving, self.leaving))

    def load(self, room: int = ROOM) -> None:
        """Read the tensors of the forward call, and those of the backward call where all were kept."""
        if self.problem:
            raise CannotReplay(self.problem)
        needed = slots_in((self.args, self.kwargs, self.parameters, self.outputs))
        if next(slots_in(self.outputs), None) is None:
            raise CannotReplay("no output was recorded")
        if any(slot.file is None for slot in needed):
            raise CannotReplay("its tensors were not kept: record with task tensor")
        if any(slot.file is None for slot in slots_in((self.arriving, self.leaving))):
            self.arriving, self.leaving = [], []
        size = sum(8 * prod(slot.shape) for slot in self.slots())
        if size * _COPIES > room:
            raise CannotReplay(f"takes about {size * _COPIES / 2**20:,.0f} MiB; {room >> 20:,} MiB are allowed")
        for slot in self.slots():
            assert slot.file is not None
            try:
                tensor = open_named(self.run.tensor_folder, slot.file)
            except TwinProbeError as error:
                raise CannotReplay(str(error)) from None
            if tensor.shape != slot.shape:
                raise CannotReplay(f"{slot.file} holds {list(tensor.shape)}, the dump says {list(slot.shape)}")
            slot.value, slot.dtype = as_torch(tensor), tensor.dtype


def leaves_in(tree: Any) -> Iterator[Any]:
    """The leaves of a tree, in its order."""
    if isinstance(tree, dict | list | tuple):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves_in(item)
    else:
        yield tree


def slots_in(tree: Any) -> Iterator[Slot]:
    """The tensors of a tree, in its order."""
    return (leaf for leaf in leaves_in(tree) if isinstance(leaf, Slot))


def mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    """The tree with its leaves changed."""
    if isinstance(tree, list | tuple):
        return type(tree)([mapped(item, change) for item in tree])
    if isinstance(tree, dict):
        return {key: mapped(item, change) for key, item in tree.items()}
    return change(tree)


def as_torch(tensor: HostTensor) -> Any:
    """A tensor of PyTorch with its own copy of these elements."""
    import torch

    kind = getattr(torch, tensor.dtype, None)
    if kind is None:
        raise CannotReplay(f"PyTorch has no dtype {tensor.dtype}")
    data = np.array(tensor.data)  # a copy: the reader's memory is not to be written to
    if np.dtype(STORAGE[tensor.dtype]).name != tensor.dtype or data.dtype.kind == "u":
        data = data.view({1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}[data.dtype.itemsize])
    return torch.from_numpy(data).view(kind).reshape(tensor.shape)


def read_calls(run: Run, names: Iterable[str]) -> dict[str, Call]:
    """These forward calls of a run, with their backward calls where those were recorded."""
    if run.path.name not in (DUMP, PART):
        what = "holds single values, not calls" if run.path.name in (DEBUG, DEBUG_PART) else "is no dump.json"
        raise BadInput(what, where=run.path, hint="calls are replayed from a dump.json recorded with task tensor")
    calls = {name: parse_op(name) for name in names}
    wanted = {name for op in calls.values() for name in (op.text, backward_of(op))}
    read: dict[str, Any] = {}
    entries = read_entries(run.path)
    for name, entry in entries:
        if name in wanted:
            read[name] = decode_entry(run.path, name, entry) if entries.raw else entry
    return {name: _call(run, op, read[name], read.get(backward_of(op))) for name, op in calls.items() if name in read}


def backward_of(op: OpName) -> str:
    """The name of the backward call that belongs to a forward call."""
    parts = [op.prefix, op.body, *([op.cls] if op.cls else [])]
    tail = [BACKWARD, str(op.call)] if op.is_module else [str(op.call), BACKWARD]
    return ".".join((*parts, *tail))


def find_call(run: Run, name: str) -> str:
    """The forward call that a user names: in full, or a module's path, or without the direction."""
    ops = {op.text: op for op in run.op_names if op.direction == FORWARD}
    if name in ops:
        return name
    of_backward = [text for text, op in ops.items() if backward_of(op) == name]
    near = of_backward or [text for text, op in ops.items() if name in (op.body, f"{op.prefix}.{op.body}.{op.call}")]
    if not near:
        raise BadInput(
            f"holds no call {name!r}",
            where=run.path,
            hint=did_you_mean(name, ops).strip() or "use the name that compare prints",
        )
    return near[0]


def _call(run: Run, op: OpName, entry: Any, back: Any) -> Call:
    if not isinstance(entry, dict):
        raise BadInput(f"is {type(entry).__name__}, not an object", where=f"{run.path}: data[{op.text!r}]")
    back = back if isinstance(back, dict) else {}
    try:
        parts = {key: _tree(entry.get(key)) for key in ("input_args", "input_kwargs", "parameters", "output")}
        grads = [_tree(back.get(key)) for key in ("input", "output")]
    except CannotReplay as error:
        return Call(run, op.text, op, [], {}, {}, [], problem=str(error))
    lists = [part if isinstance(part, list) else [] for part in (parts["input_args"], parts["output"], *grads)]
    dicts = [parts[key] if isinstance(parts[key], dict) else {} for key in ("input_kwargs", "parameters")]
    return Call(run, op.text, op, lists[0], dicts[0], dicts[1], lists[1], lists[2], lists[3])


def _tree(value: Any, depth: int = 0) -> Any:
    if depth > _DEEPEST:
        raise CannotReplay(f"its arguments are nested deeper than {_DEEPEST} levels")
    if isinstance(value, list):
        return [_tree(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return None if value is None else UNKNOWN
    if isinstance(value.get("type"), str):
        return _leaf(value)
    return {str(key): _tree(item, depth + 1) for key, item in value.items()} if value else UNKNOWN


def _leaf(leaf: dict[str, Any]) -> Any:  # noqa: PLR0911  one return for each kind of value
    kind, value = leaf["type"], leaf.get("value")
    shape = leaf.get("shape")
    if isinstance(leaf.get("dtype"), str) and isinstance(shape, list):
        if not all(type(size) is int and 0 <= size < 1 << 48 for size in shape) or len(shape) > 64:
            raise CannotReplay("a tensor's shape is not a list of sizes")
        file = leaf.get("data_name")
        grad = leaf.get("requires_grad") is True
        return Slot(tuple(shape), leaf["dtype"], file if isinstance(file, str) else None, grad)
    if kind in ("torch.dtype", "torch.device") and isinstance(value, str):
        return FrameworkConstant(kind.partition(".")[2], value)
    if kind == "torch.memory_format" and isinstance(leaf.get("format"), str):
        return FrameworkConstant("memory_format", leaf["format"])
    if kind == "slice" and isinstance(value, list) and len(value) == 3:
        return slice(*(part if type(part) is int else None for part in value))
    if kind == "ellipsis":
        return ...
    if kind in ("torch.Size", "list", "tuple") and isinstance(value, list) and all(type(size) is int for size in value):
        return list(value)
    if kind == "float" or kind.startswith("float"):
        number: Any = SPECIAL.get(value) if isinstance(value, str) else value
        return float(number) if type(number) in (int, float) else UNKNOWN
    if type(value) in (int, bool, str) and (kind == type(value).__name__ or kind.startswith(("int", "bool", "uint"))):
        return value
    return UNKNOWN
