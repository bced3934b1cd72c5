"""construct.json: which module call encloses a call, and in which round of a step it ran."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import msgspec

from twinprobe._runs.json_pieces import ENTRY, VALUE, Budget, FileBlocks, members_of
from twinprobe._runs.names import LONGEST_NAME
from twinprobe.errors import BadInput

_MICRO_STEPS = "megatron_micro_step_number"
_PARENT_CUT = re.compile(rb'(,\s*)(?="[^"\\]{0,4096}"\s*:)')

Value = str | int | float | None  # what a list in these files may hold
_parent_decoder = msgspec.json.Decoder(dict[str, Value | list[Value]])


_UNUSABLE = (OSError, BadInput, msgspec.DecodeError, RecursionError, ValueError, TypeError)


def read_parents(path: Path) -> tuple[dict[str, str | None], str | None]:
    """Read construct.json in both value forms. A file that cannot be used is a note, not an error."""
    parents: dict[str, str | None] = {}
    known: dict[str, str] = {}  # a parent is that of many calls
    try:
        file = FileBlocks(path)
        budget = Budget(file.size)
        for members in members_of(file, _parent_decoder, _PARENT_CUT, budget):
            members.pop(_MICRO_STEPS, None)
            budget.take(members, ENTRY)
            before = len(known)
            parents.update(_parents(members, known))
            budget.take(list(islice(known, before, None)), ENTRY)
        return parents, None
    except _UNUSABLE as error:
        return {}, _note(path, "no hierarchy is known", error)


def _note(path: Path, loss: str, error: Exception) -> str | None:
    """What is lost with a file that cannot be used; None where there is no such file."""
    reason = error.what if isinstance(error, BadInput) else error
    missing = isinstance(error.__cause__, FileNotFoundError)
    return None if missing else f"{path}: {loss}, the file cannot be used: {reason}"


def _parents(members: dict[str, Any], known: dict[str, str]) -> Iterator[tuple[str, str | None]]:
    for name, value in members.items():
        if len(name) > LONGEST_NAME:
            raise ValueError(f"a name has more than {LONGEST_NAME} characters")
        parent = (value[0] if value else None) if isinstance(value, list) else value
        if parent is None:
            yield name, None
        elif isinstance(parent, str):
            yield name, known.setdefault(parent, parent)
        else:
            raise ValueError("a parent must be a name or null")


def read_micro_steps(path: Path) -> dict[str, int]:
    """The numbers that Megatron dumps give to calls, as [parent, number]; nothing where the file has none."""
    numbers: dict[str, int] = {}
    try:
        file = FileBlocks(path)
        if not _holds(file, _MICRO_STEPS.encode()):
            return {}
        budget = Budget(file.size)
        for members in members_of(file, _parent_decoder, _PARENT_CUT, budget):
            pairs = [(name, value[1]) for name, value in members.items() if isinstance(value, list) and len(value) == 2]
            found = {name: number for name, number in pairs if isinstance(number, int) and 0 <= number < 1 << 31}
            budget.take(found, ENTRY)
            numbers.update(found)
    except _UNUSABLE:
        return {}
    return numbers


def _holds(file: FileBlocks, words: bytes) -> bool:
    end = b""
    for block in file.blocks(0, file.size):
        if words in block or words in end + block[: len(words)]:
            return True
        end = block[-len(words) :]
    return False


# stack.json: from which lines of code a call was made.

_STACK_CUT = re.compile(rb'(,\s*)(?="[^"\\]{0,4096}"\s*:\s*\[)')

_SITE = 150  # bytes of a site, beside its lines

_stack_decoder = msgspec.json.Decoder(dict[str, list[Value | list[Value]]])


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
    stacks = Stacks()
    by_site: bool | None = None
    try:
        file = FileBlocks(path)
        budget = Budget(file.size)
        for members in members_of(file, _stack_decoder, _STACK_CUT, budget):
            if by_site is None:
                by_site = bool(members.get("0"))
            for name, value in members.items():
                names, frames = map(_texts, value if by_site else ([name], value))
                budget.take(names, ENTRY)
                budget.take(frames, VALUE, more=_SITE)
                stacks.of_op.update(zip(names, repeat(len(stacks.frames))))
                stacks.frames.append(frames)
    except _UNUSABLE as error:
        return Stacks(), _note(path, "no stacks are shown", error)
    return stacks, None


def _texts(items: Any) -> list[str]:
    if not isinstance(items, list):
        raise ValueError("a list of lines was expected")
    return [item if isinstance(item, str) else str(item) for item in items]
