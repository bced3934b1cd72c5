"""Shapes as the tables spell them."""

from __future__ import annotations

import ast
from functools import lru_cache

Shape = tuple[int, ...]
_MOST_DIMS = 64


@lru_cache(maxsize=65536)
def dims(text: str | None) -> Shape | None:
    """A shape from its text; None where there is none."""
    if not text or len(text) > 20 * _MOST_DIMS:
        return None
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    if not isinstance(found, list | tuple) or not all(type(size) is int and size >= 0 for size in found):
        return None
    return tuple(found)
