"""One row per distinct tensor: its measured values, and one note per place where it was seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from twinprobe.measure.statistics import Statistics


@dataclass(slots=True, eq=False)
class Row:
    """The measurement of one distinct tensor. Filled at once on the host, at the step's end on a device."""

    values: Statistics | None = None
    digest: str | float | None = None
    payload: Any = None
    address: int = 0  # where a float32 payload lies in host memory, dense and in C order, if that is known
    file: str | None = None
    text: str | None = None
    text_key: Any = None


@dataclass(slots=True, eq=False)
class Note:
    """One tensor seen at one place of one call."""

    type: str
    dtype: str
    shape: tuple[int, ...]
    row: Row | None
    requires_grad: bool | None = None
    save: bool = False
    file: str | None = None
    extra: dict[str, Any] | None = None


@dataclass(slots=True, eq=False)
class Leaf:
    """A value whose JSON form is known already."""

    json: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Entry:
    """One op entry before it becomes text. ``parts`` maps the JSON key to (file name segment, captured value).

    ``bare``: the single part is the entry itself. ``boxed``: every part stands in a list of its own.
    """

    name: str
    parts: dict[str, tuple[str, Any]]
    bare: bool = False
    boxed: bool = False


def notes_of(entry: Entry) -> Iterator[tuple[Note, str]]:
    """Every tensor of an entry with the name that its file gets."""
    for segment, value in entry.parts.values():
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
