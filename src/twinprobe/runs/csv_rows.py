"""The rows of a csv file, none of which is long: a row may go on over many lines, and have any number of columns."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import TextIO

_LONGEST = 1 << 20


class _Lines:
    """Lines for the csv reader, which fails when it takes too many of them for one row."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.taken = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._file.readline(_LONGEST)
        if not line:
            raise StopIteration
        self.taken += len(line)
        if self.taken >= _LONGEST:
            raise csv.Error(f"a row has more than {_LONGEST} characters")
        return line


def csv_rows(file: TextIO) -> Iterator[list[str]]:
    """The rows; csv.Error where one is longer than any that a recorder writes."""
    lines = _Lines(file)
    for row in csv.reader(lines):
        lines.taken = 0
        yield row
