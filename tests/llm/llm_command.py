"""What a command said, for tests that run it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Said:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str
