"""Argument types shared by the commands."""

from __future__ import annotations

import argparse
from pathlib import Path

FORMATS = ("xlsx", "csv", "parquet", "json", "html")


def path(text: str) -> Path:
    """A path or URL as the user typed it, with ~ expanded."""
    from twinprobe.runs.places import place

    return place(text)


def local_path(text: str) -> Path:
    """A path that must be on this machine."""
    from twinprobe.errors import BadInput
    from twinprobe.runs.places import remote

    found = path(text)
    if remote(found) is not None:
        raise BadInput("is a URL, but this must be a path on this machine", where=text)
    return found


def formats(text: str) -> tuple[str, ...]:
    """A comma list of result formats."""
    return _chosen(text, FORMATS)


def formats_or_dataset(text: str) -> tuple[str, ...]:
    """A comma list of result formats; ``dataset`` is all ranks in one, cut by step and rank."""
    return _chosen(text, (*FORMATS, "dataset"))


def _chosen(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(name.strip().lower() for name in text.split(",") if name.strip())
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        raise argparse.ArgumentTypeError(f"{', '.join(wrong) or 'nothing'}: choose from {', '.join(known)}")
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
