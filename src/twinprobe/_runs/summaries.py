"""What is inside the tensors of a run that kept none: a file of small summaries beside its dump, read and checked."""

from __future__ import annotations

import re
from collections.abc import Collection
from math import prod
from pathlib import Path
from typing import Annotated

import msgspec

from twinprobe._runs.whole_files import open_file

SUMMARIES = ".summaries.jsonl"
# A summary takes about 4 kB. A longer line was not written by a recorder.
_LONGEST = 1 << 16
_NAME = re.compile(rb'\{"name":("(?:[^"\\]|\\.)*"),')
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
_Short = Annotated[str, msgspec.Meta(max_length=40)]
Number = float | _Short
"""Infinity and NaN are written as text, since JSON has none."""


class Blocks(msgspec.Struct):
    """A number for each block: half floats, as shares of the scale."""

    scale: Number
    f16: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9+/]*={0,2}$")]


class Histogram(msgspec.Struct, rename={"start": "from"}):
    """How many elements there are of each power of two."""

    start: Annotated[int, msgspec.Meta(ge=-1100, le=1100)]
    counts: Annotated[list[_Count], msgspec.Meta(max_length=2200)]
    zeros: _Count
    odd: _Count


class Quantiles(msgspec.Struct):
    """From the smallest to the largest."""

    exact: bool
    values: Annotated[list[Number], msgspec.Meta(max_length=7)]


class TensorSummary(msgspec.Struct):
    """One tensor, as docs/formats.md describes it."""

    shape: Annotated[list[_Count], msgspec.Meta(min_length=1, max_length=64)]
    dtype: _Short
    rows: Annotated[int, msgspec.Meta(ge=-1, lt=64)]
    columns: Annotated[int, msgspec.Meta(ge=0, lt=64)]
    size: tuple[Annotated[int, msgspec.Meta(ge=1, le=64)], Annotated[int, msgspec.Meta(ge=1, le=64)]]
    read: _Count
    max: Blocks
    rms: Blocks
    mean: Blocks
    histogram: Histogram
    quantiles: Quantiles
    largest: Annotated[list[tuple[list[_Count], Number]], msgspec.Meta(max_length=12)]

    def __post_init__(self) -> None:
        axes, length = len(self.shape), -(-prod(self.size) * 2 // 3) * 4
        if not (self.rows < axes and self.columns < axes and self.rows != self.columns):
            raise ValueError("no such axes")
        if any(len(blocks.f16) != length for blocks in (self.max, self.rms, self.mean)):
            raise ValueError("another number of blocks")


class _Line(msgspec.Struct):
    name: str
    like: str | None = None
    summary: TensorSummary | None = None


def read_summaries(dump: Path, names: Collection[str]) -> dict[str, TensorSummary]:
    """The summaries beside a dump.json of the tensors with these names; what is damaged is left out."""
    file = dump.with_name(dump.name.split(".json")[0] + SUMMARIES)
    if not names or not file.is_file():
        return {}
    # A tensor that was seen before names the first place: its line comes earlier, so all lines are looked at twice.
    first = {line.name: line.like for line in _lines(file, names) if line.like}
    summaries = {line.name: line.summary for line in _lines(file, {*names, *first.values()}) if line.summary}
    places = {name: first.get(name, name) for name in names}
    return {name: summaries[place] for name, place in places.items() if place in summaries}


def _lines(file: Path, names: Collection[str]) -> list[_Line]:
    lines = []
    with open_file(file) as stream:
        while line := stream.readline(_LONGEST):
            head = _NAME.match(line)
            try:
                if head is not None and msgspec.json.decode(head[1], type=str) in names:
                    lines.append(msgspec.json.decode(line, type=_Line))
            except msgspec.DecodeError:
                continue  # of a process that was killed
    return lines
