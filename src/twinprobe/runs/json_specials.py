"""NaN and Infinity, which recorders write and JSON does not know, made readable for the strict parser."""

from __future__ import annotations

import re
from collections.abc import Iterator

# What stands before NaN or Infinity as a statistic or as a recorded number. The quote before the key is not escaped, so
# this is no inside of a text.
_STATISTIC = re.compile(rb'(?:^|[^\\])"(?:Max|Min|Mean|Norm|md5|value)": ?-?$')


def quote_specials(blob: bytes) -> bytes | bytearray:
    """Put NaN and Infinity in quotes where they are a statistic or a recorded number; the same object where none is."""
    quoted, done = bytearray(), 0
    for start, end in _specials(blob):
        if _STATISTIC.search(blob[max(0, start - 12) : start]):
            begin = start - 1 if blob[start - 1 : start] == b"-" else start
            quoted += blob[done:begin] + b'"' + blob[begin:end] + b'"'
            done = end
    if not done:
        return blob
    quoted += blob[done:]
    return quoted


def _specials(blob: bytes) -> Iterator[tuple[int, int]]:
    """Where NaN and Infinity stand, in order."""
    nan, infinity = blob.find(b"NaN"), blob.find(b"Infinity")
    while nan >= 0 or infinity >= 0:
        if infinity < 0 or 0 <= nan < infinity:
            yield nan, nan + 3
            nan = blob.find(b"NaN", nan + 3)
        else:
            yield infinity, infinity + 8
            infinity = blob.find(b"Infinity", infinity + 8)
