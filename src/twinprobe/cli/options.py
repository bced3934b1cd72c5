"""Argument types shared by the commands."""

from __future__ import annotations

import argparse
from pathlib import Path

FORMATS = ("xlsx", "csv", "parquet", "json", "html")


def path(text: str) -> Path:
    """A path as the user typed it, with ~ expanded."""
    return Path(text).expanduser()


def formats(text: str) -> tuple[str, ...]:
    """A comma list of result formats."""
    names = tuple(name.strip().lower() for name in text.split(",") if name.strip())
    wrong = [name for name in names if name not in FORMATS]
    if wrong or not names:
        raise argparse.ArgumentTypeError(f"{', '.join(wrong) or 'nothing'}: choose from {', '.join(FORMATS)}")
    return tuple(dict.fromkeys(names))


def numbers(text: str) -> frozenset[int]:
    """A comma list of rank or step numbers; ranges such as 4-6 are understood."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 0,1 or 0-3")
        found.update(range(int(first), int(last if dash else first) + 1))
    return frozenset(found)
