"""One run as the pairing rules see it: what was called, how often, in which direction, inside what."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np

from twinprobe._runs.dtypes import EPSILON, SYNONYMS
from twinprobe._runs.names import BACKWARD, CONTAINERS, DIRECTIONS, FORWARD, GRADIENTS, is_number
from twinprobe._runs.run import Run

DEBUG = "debug"
MINDSPORE = "mindspore"
IN_OUT = "in_out"  # what a recorder calls a weight that is stored the other way round
_DIGITS = 19


@dataclass(slots=True)
class Callee:
    """One module, cell or API with all its calls: direction -> call number -> number of the op."""

    name: str
    prefix: str
    body: str
    cls: str
    # Path and class of a module as one text, as cell mapping files write it.
    whole: str
    is_module: bool
    calls: dict[str, dict[int, int]] = field(default_factory=dict)


class RunCalls:
    """The calls of one run in columns, and its callees by name, both in the order of appearance."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.ops = run.ops
        self.callees: dict[str, Callee] = {}
        self.callee_of: list[Callee] = []
        self.direction: list[str] = []
        self.call: list[int] = []
        callees = self.callees
        for number, name in enumerate(run.ops):
            callee_name, direction, call = split(name)
            callee = callees.get(callee_name)
            if callee is None:
                callee = callees[callee_name] = _callee(callee_name, direction)
            calls = callee.calls.get(direction)
            if calls is None:
                callee.calls[direction] = {call: number}
            else:
                calls.setdefault(call, number)
            self.callee_of.append(callee)
            self.direction.append(direction)
            self.call.append(call)

    @property
    def is_mindspore(self) -> bool:
        """Whether names are spelled MindSpore's way. (MindTorch spells them PyTorch's way.)"""
        return self.run.framework == MINDSPORE

    @cached_property
    def starts(self) -> list[int]:
        """The first row of each op, and one past the last row of all."""
        ops = self.run.table["op"].to_numpy()
        return np.searchsorted(ops, np.arange(len(self.ops) + 1)).tolist()  # type: ignore[no-any-return]

    def rows(self, op: int) -> range:
        """The rows of an op."""
        return range(self.starts[op], self.starts[op + 1])

    @cached_property
    def names(self) -> list[str]:
        """The name of each row."""
        return self.run.table["name"].to_list()

    def suffixes(self, op: int) -> list[str]:
        """What stands after the op's name in each of its rows' names. Keyword arguments are spelled .input. always."""
        name = self.ops[op]
        found = [row.removeprefix(name) for row in self.names[self.starts[op] : self.starts[op + 1]]]
        if self._names_kwargs:
            found = [".input." + suffix[8:] if suffix.startswith(".kwargs.") else suffix for suffix in found]
        return found

    @cached_property
    def _names_kwargs(self) -> bool:
        return bool(self.run.table["name"].str.contains(".kwargs.", literal=True).any())

    @cached_property
    def roles(self) -> list[int]:
        """What each row is to its call."""
        return self.run.table["role"].to_list()

    @cached_property
    def shapes(self) -> list[str | None]:
        """The shape of each row as text; of a weight that is stored the other way round, as others store it."""
        found: list[str | None] = self.run.table["shape"].to_list()
        for row in (self.run.table["layout"] == IN_OUT).fill_null(value=False).arg_true().to_list():
            found[row] = str(list(dims(found[row]) or ())[::-1])
        return found

    @cached_property
    def kinds(self) -> list[int]:
        """Whether each row is a tensor, a plain value or nothing."""
        return self.run.table["kind"].to_list()

    @cached_property
    def dtypes(self) -> list[str | None]:
        """The element type of each row, as recorded."""
        return self.run.table["dtype"].to_list()

    @cached_property
    def files(self) -> list[str | None]:
        """The file of each row's elements."""
        return self.run.table["file"].to_list()

    @cached_property
    def number_of(self) -> dict[str, int]:
        """Name of an op -> its number."""
        return {name: number for number, name in enumerate(self.ops)}

    @property
    def has_hierarchy(self) -> bool:
        """Whether construct.json tells what encloses the calls."""
        return bool(self.run.parents)

    @cached_property
    def parents(self) -> list[int]:
        """The op that encloses each op; -1 where none is recorded."""
        names, numbers = self.run.parents, self.number_of
        return [numbers.get(names.get(name) or "", -1) for name in self.ops]

    def around(self, op: int) -> list[int]:
        """The ops that enclose an op, the innermost first."""
        found: list[int] = []
        parent = self.parents[op]
        while parent != -1 and parent not in found:  # a damaged construct.json may hold circles
            found.append(parent)
            parent = self.parents[parent]
        return found

    def forward(self, op: int) -> int:
        """The forward call of the same number; -1 where none was recorded."""
        return self.callee_of[op].calls.get(FORWARD, {}).get(self.call[op], -1)

    def backward(self, op: int) -> int:
        """The backward call of the same number; -1 where none was recorded."""
        return self.callee_of[op].calls.get(BACKWARD, {}).get(self.call[op], -1)

    @cached_property
    def apis(self) -> list[Callee]:
        """All callees that are no modules."""
        return [callee for callee in self.callees.values() if not callee.is_module]

    @cached_property
    def modules(self) -> list[Callee]:
        """All callees that are modules or cells."""
        return [callee for callee in self.callees.values() if callee.is_module]


def split(name: str) -> tuple[str, str, int]:
    """Callee, direction and call number of a recorded call; a name outside the grammar is all callee."""
    parts = name.rsplit(".", 2)
    if len(parts) == 3:
        callee, before, last = parts
        if last in DIRECTIONS or last == DEBUG:
            if last != GRADIENTS and before.isdecimal() and len(before) < _DIGITS:
                return callee, last, int(before)
        elif before in DIRECTIONS and last.isdecimal() and len(last) < _DIGITS:
            return callee, before, int(last)
    callee, _, last = name.rpartition(".")
    return (callee, last, -1) if callee and last in DIRECTIONS else (name, "", -1)


def _callee(name: str, direction: str) -> Callee:
    if direction not in DIRECTIONS:
        return Callee(name, "", name, "", name, False)
    prefix, _, whole = name.partition(".")
    body = whole
    is_module = prefix in CONTAINERS or direction == GRADIENTS
    cls = ""
    if is_module or (prefix == "Primitive" and "." in body):
        body, _, cls = body.rpartition(".")
    return Callee(name, prefix, body, cls, whole, is_module)


# What training wrappers put into a module's path.

WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_PEFT = ["base_model", "model"]


@lru_cache(maxsize=65536)
def bare_path(path: str) -> str:
    """A module's path without what wrappers (DDP, FSDP, torch.compile, checkpointing, PEFT) put into it."""
    parts = [part for part in path.split(".") if part not in WRAPPERS]
    if parts[:1] == _PEFT[:1]:
        parts = parts[2:] if parts[:2] == _PEFT else parts[1:]
    return ".".join(parts)


def renumbered(path: str, shifts: dict[str, int]) -> str:
    """A path with the number of its layer shifted; ``shifts``: by the path of the list that the layer is in."""
    for container, shift in shifts.items():
        if path.startswith(f"{container}."):
            number, dot, rest = path[len(container) + 1 :].partition(".")
            if is_number(number):
                return f"{container}.{int(number) + shift}{dot}{rest}"
    return path


# Element types by meaning: Float32, torch.float32 and paddle.float32 are one type.


def canonical(dtype: str | None) -> str | None:
    """The framework-free name of a dtype; other texts (Python classes) stay as they are."""
    if dtype is None or dtype.startswith("<"):
        return dtype
    name = dtype.rpartition(".")[2].lower()
    return SYNONYMS.get(name, name)


def epsilon(dtype: str | None) -> float:
    """The machine epsilon of a dtype, 0 for those that hold their values exactly."""
    return EPSILON.get(canonical(dtype) or "", 0.0)


def canonicals(dtypes: Iterable[str | None]) -> dict[str | None, str | None]:
    """The framework-free names of all these dtypes."""
    return {dtype: canonical(dtype) for dtype in dtypes}


def epsilons(dtypes: Iterable[str | None]) -> dict[str | None, float]:
    """The machine epsilons of all these dtypes."""
    return {dtype: epsilon(dtype) for dtype in dtypes}


# Shapes as the tables spell them.

Shape = tuple[int, ...]
_MOST_DIMS = 64


def all_dims(texts: Iterable[str | None]) -> dict[str | None, Shape | None]:
    """The shapes of all these texts."""
    return {text: dims(text) for text in texts}


@lru_cache(maxsize=65536)
def dims(text: str | None) -> Shape | None:
    """A shape from its text; None where there is none."""
    if not text or len(text) > 20 * _MOST_DIMS:
        return None
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    if not isinstance(found, list | tuple) or not all(type(size) is int and size >= 0 for size in found):
        return None
    return tuple(found)
