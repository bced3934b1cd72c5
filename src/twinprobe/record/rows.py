"""One row per distinct tensor: its measured values, and one note per place where it was seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct, field

from twinprobe.measure.statistics import Statistics

# What an entry may have, in the order in which it is written, and what stands for it in names of files.
_SEGMENTS = {
    "input_args": "input", "input_kwargs": "kwargs", "input": "input", "output": "output", "parameters": "parameters",
    "remark": "remark",
}  # fmt: skip


class Row(Struct, eq=False):  # made by the thousand while a model runs: structs are made by compiled code
    """The measurement of one distinct tensor. Filled at once on the host, at the step's end on a device."""

    values: Statistics | None = None
    digest: str | float | None = None
    payload: Any = None
    address: int = 0  # where a float32 payload lies in host memory, dense and in C order, if that is known
    file: str | None = None
    text: str | None = None
    text_key: Any = None


class Note(Struct, eq=False):
    """One tensor seen at one place of one call."""

    type: str
    dtype: str
    shape: tuple[int, ...]
    row: Row | None
    requires_grad: bool | None = None
    save: bool = False
    file: str | None = None
    extra: dict[str, Any] | None = None


class Leaf(Struct, eq=False):
    """A value whose JSON form is known already."""

    json: dict[str, Any] = field(default_factory=dict)


class Entry(Struct, eq=False):
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
        for at, item in enumerate(value):
            yield from _walk(item, f"{name}.{at}")
    elif kind is dict:
        for key, item in value.items():
            yield from _walk(item, f"{name}.{key}")
    elif kind is Leaf:
        yield from _walk({key: item for key, item in value.json.items() if type(item) is Note}, name)
