"""stack.json: from which lines of code a call was made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from twinprobe.runs.whole_file import json_file


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
        document = msgspec.json.decode(json_file(path))
        return _parse(document), None
    except FileNotFoundError:
        return Stacks(), None
    except (OSError, msgspec.DecodeError, RecursionError, ValueError, TypeError) as error:
        return Stacks(), f"{path}: no stacks are shown, the file cannot be used: {error}"


def _parse(document: Any) -> Stacks:
    if not isinstance(document, dict):
        raise ValueError("the top level is not an object")
    stacks = Stacks()
    if document.get("0"):
        for names, frames in document.values():
            at = len(stacks.frames)
            stacks.frames.append(_texts(frames))
            stacks.of_op.update(dict.fromkeys(_texts(names), at))
        return stacks
    for name, frames in document.items():
        stacks.of_op[name] = len(stacks.frames)
        stacks.frames.append(_texts(frames))
    return stacks


def _texts(items: Any) -> list[str]:
    if not isinstance(items, list):
        raise ValueError("a list of lines was expected")
    return [str(item) for item in items]
