"""Names and values from a dump are foreign text: how they are shown without being obeyed."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

# Control characters and escape sequences, marks that turn the reading direction, line separators, lone surrogates.
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
# The same in the terms of polars, whose texts hold no surrogates; cells keep their line breaks and tabs.
_UNSEEN_IN_CELL = (
    r"[\x00-\x08\x0b-\x1f\x7f-\x{9f}\x{61c}\x{200b}-\x{200f}\x{2028}-\x{202e}\x{2066}-\x{2069}\x{feff}"
    r"\x{fff9}-\x{fffb}]"
)
_LONGEST = 5000  # longer than any name


def visible(text: str, *, keep_newlines: bool = False) -> str:
    """The text with every character that steers a terminal or a page spelled out, e.g. ``\\x1b``; a huge one is cut."""
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]} ... and {len(text) - _LONGEST:,} more characters"
    return _UNSEEN.sub(lambda found: found[0] if found[0] == "\n" and keep_newlines else _spell(found), text)


def visible_cells(column: pl.Series) -> pl.Series:
    """The column with every such character of its texts spelled out, line breaks and tabs excepted; none is cut."""
    texts = column.filter(column.str.contains(_UNSEEN_IN_CELL)).unique()
    spelled = [_UNSEEN.sub(lambda found: found[0] if found[0] in "\n\t" else _spell(found), text) for text in texts]
    return column.replace(texts, spelled) if len(texts) else column


def _spell(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


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
