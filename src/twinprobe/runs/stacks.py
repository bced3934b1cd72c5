"""stack.json: from which lines of code a call was made."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

import msgspec

from twinprobe.errors import BadInput
from twinprobe.runs.file_blocks import FileBlocks
from twinprobe.runs.member_pieces import ENTRY, VALUE, Budget, members_of

_CUT = re.compile(rb',\s*()"[^"\\]{0,4096}"\s*:\s*\[')

_SITE = 150  # bytes of a site, beside its lines

Line = str | int | float | None
_decoder = msgspec.json.Decoder(dict[str, list[Line | list[Line]]])


@dataclass
class Stacks:
    """Call sites, each kept once, and which call belongs to which."""

    frames: list[list[str]] = field(default_factory=list)
    of_op: dict[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.of_op)

    def __getitem__(self, op: str) -> Sequence[str]:
        """The frames of a call, innermost first; empty where none were recorded."""
        at = self.of_op.get(op)
        return self.frames[at] if at is not None else ()


def read_stacks(path: Path) -> tuple[Stacks, str | None]:
    """Read stack.json in its old or new form. A file that cannot be used is a note, not an error."""
    try:
        return _read(FileBlocks(path)), None
    except (OSError, BadInput, msgspec.DecodeError, RecursionError, ValueError, TypeError) as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return Stacks(), None
        reason = error.what if isinstance(error, BadInput) else error
        return Stacks(), f"{path}: no stacks are shown, the file cannot be used: {reason}"


def _read(file: FileBlocks) -> Stacks:
    stacks, budget = Stacks(), Budget(file.size)
    by_site: bool | None = None
    for members in members_of(file, _decoder, _CUT, budget):
        if by_site is None:
            by_site = bool(members.get("0"))
        for name, value in members.items():
            names, frames = value if by_site else ([name], value)
            _add(stacks, budget, _texts(names), _texts(frames))
    return stacks


def _add(stacks: Stacks, budget: Budget, names: list[str], frames: list[str]) -> None:
    budget.take(names, ENTRY)
    budget.take(frames, VALUE, more=_SITE)
    stacks.of_op.update(zip(names, repeat(len(stacks.frames))))
    stacks.frames.append(frames)


def _texts(items: Any) -> list[str]:
    if not isinstance(items, list):
        raise ValueError("a list of lines was expected")
    return [item if isinstance(item, str) else str(item) for item in items]
