"""What a comparison found, in a form that every report can show."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs: where it is and what was recorded."""

    path: str
    framework: str
    task: str
    level: str
    ops: int
    rows: int


@dataclass(frozen=True, slots=True)
class Divergence:
    """A place where the runs part. ``order`` is its row in the result table, counted from zero."""

    op: str
    row: str
    golden_row: str
    stack_line: str
    target_values: dict[str, str]
    golden_values: dict[str, str]
    relative_error: float | None
    sentence: str
    origin: str
    order: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts of a comparison and its first divergence. ``verdicts`` counts pass, warning and error rows."""

    mode: str
    target: Side
    golden: Side
    rows: int
    matched: int
    target_only: int
    golden_only: int
    verdicts: dict[str, int]
    first: Divergence | None
    notes: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    rank: str = ""
    unread: int = 0
    """Rows with a tensor that could not be read: their recorded statistics were compared, where there are any."""

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, texts and numbers, with the field names as keys."""
        return asdict(self)


def unread_rows(count: int, where: str = "") -> str:
    """Say how many rows, ``where`` in the run, could not be read."""
    return f"{count:,} row{'' if count == 1 else 's'}{where} could not be read"
