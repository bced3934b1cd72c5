"""construct.json: which module call encloses a call, and in which round of a step it ran."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from twinprobe.errors import BadInput
from twinprobe.runs.file_blocks import FileBlocks
from twinprobe.runs.member_pieces import ENTRY, Budget, members_of
from twinprobe.runs.names import LONGEST_NAME

_MICRO_STEPS = "megatron_micro_step_number"
_CUT = re.compile(rb',\s*()"[^"\\]{0,4096}"\s*:')

Value = str | int | float | None
_decoder = msgspec.json.Decoder(dict[str, Value | list[Value]])


def read_parents(path: Path) -> tuple[dict[str, str | None], str | None]:
    """Read construct.json in both value forms. A file that cannot be used is a note, not an error."""
    parents: dict[str, str | None] = {}
    known: dict[str, str] = {}  # a parent is that of many calls
    try:
        file = FileBlocks(path)
        budget = Budget(file.size)
        for members in members_of(file, _decoder, _CUT, budget):
            members.pop(_MICRO_STEPS, None)
            budget.take(members, ENTRY)
            before = len(known)
            parents.update(_parents(members, known))
            budget.take(list(islice(known, before, None)), ENTRY)
        return parents, None
    except (OSError, BadInput, msgspec.DecodeError, RecursionError, ValueError) as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return {}, None
        reason = error.what if isinstance(error, BadInput) else error
        return {}, f"{path}: no hierarchy is known, the file cannot be used: {reason}"


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
        for members in members_of(file, _decoder, _CUT, budget):
            found = {name: value[1] for name, value in members.items() if _is_numbered(value)}
            budget.take(found, ENTRY)
            numbers.update(found)
    except (OSError, BadInput, msgspec.DecodeError, ValueError, RecursionError):
        return {}
    return numbers


def _is_numbered(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[1], int) and 0 <= value[1] < 1 << 31


def _holds(file: FileBlocks, words: bytes) -> bool:
    end = b""
    for block in file.blocks(0, file.size):
        if words in block or words in end + block[: len(words)]:
            return True
        end = block[-len(words) :]
    return False
