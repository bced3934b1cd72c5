"""The standard library's JSON, which knows NaN and Infinity everywhere, with texts that every table can hold."""

from __future__ import annotations

import json
from typing import Any

MAX_DEPTH = 410


def loads(text: str) -> Any:
    """Decode a document; ValueError or RecursionError where it is none."""
    document = json.loads(text)
    return without_surrogates(document) if "\\u" in text or not text.isascii() else document


def without_surrogates(value: Any, depth: int = 0) -> Any:
    """Halves of characters, which no table can hold, spelled out: ``\\ud800``."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, list):
        return [without_surrogates(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {without_surrogates(key): without_surrogates(item, depth + 1) for key, item in value.items()}
    return value
