"""Names and values from a dump are foreign text: how they are shown without being obeyed."""

from __future__ import annotations

import math
import re
from typing import Any

# Control characters and escape sequences, marks that turn the reading direction, line separators, lone surrogates.
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def visible(text: str, *, keep_newlines: bool = False) -> str:
    """The text with every character that steers a terminal or a page spelled out, e.g. ``\\x1b``."""

    def spell(match: re.Match[str]) -> str:
        letter = match[0]
        if letter == "\n" and keep_newlines:
            return letter
        return letter.encode("unicode_escape").decode("ascii")

    return _UNSEEN.sub(spell, text)


def json_bytes(value: Any) -> bytes:
    """Strict JSON: numbers that it cannot hold become texts, characters that UTF-8 cannot hold are spelled out."""
    import msgspec

    return msgspec.json.encode(_strict(value))


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {_strict(key): _strict(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return value
