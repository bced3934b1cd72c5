"""construct.json: which module call encloses a call, and in which round of a step it ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from twinprobe.runs.names import LONGEST_NAME
from twinprobe.runs.whole_file import json_file

_MICRO_STEPS = "megatron_micro_step_number"


def read_parents(path: Path) -> tuple[dict[str, str | None], str | None]:
    """Read construct.json in both value forms. A file that cannot be used is a note, not an error."""
    try:
        document = msgspec.json.decode(json_file(path))
        if not isinstance(document, dict):
            raise ValueError("the top level is not an object")
        document.pop(_MICRO_STEPS, None)
        if any(len(name) > LONGEST_NAME for name in document):
            raise ValueError(f"a name has more than {LONGEST_NAME} characters")
        return {name: _parent(value) for name, value in document.items()}, None
    except FileNotFoundError:
        return {}, None
    except (OSError, msgspec.DecodeError, RecursionError, ValueError) as error:
        return {}, f"{path}: no hierarchy is known, the file cannot be used: {error}"


def read_micro_steps(path: Path) -> dict[str, int]:
    """The numbers that Megatron dumps give to calls, as [parent, number]; nothing where the file has none."""
    try:
        blob = json_file(path)
        document = msgspec.json.decode(blob) if _MICRO_STEPS.encode() in blob else {}
    except (OSError, msgspec.DecodeError, ValueError, RecursionError):
        return {}
    numbers = {}
    for name, value in document.items() if isinstance(document, dict) else ():
        if isinstance(value, list) and len(value) == 2 and isinstance(value[1], int) and 0 <= value[1] < 1 << 31:
            numbers[name] = value[1]
    return numbers


def _parent(value: Any) -> str | None:
    if isinstance(value, list):
        value = value[0] if value else None
    if value is not None and not isinstance(value, str):
        raise ValueError("a parent must be a name or null")
    return value
