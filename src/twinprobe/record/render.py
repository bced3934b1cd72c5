"""Captured entries to JSON text, on the writer thread.

Text is put together by hand: a large step holds ten thousand leaves, most of them the same few thousand tensors seen
again, and every microsecond here is taken from the training through the interpreter lock.
"""

from __future__ import annotations

import json
from json.encoder import encode_basestring
from math import isfinite
from typing import Any

from twinprobe.record.legacy import legacy_statistics
from twinprobe.record.rows import Entry, Leaf, Note, Row

dumps = json.JSONEncoder(ensure_ascii=False, default=str).encode
_quoted: Any = encode_basestring
_number_text = float.__repr__  # the encoder's own


class Renderer:
    """Knows the summary mode, and so which fields a tensor's leaf has."""

    def __init__(self, *, summary_mode: str, precision: str) -> None:
        self._summary = summary_mode
        self._high = precision == "high"

    def entry(self, entry: Entry) -> str:
        """The JSON text of one op entry's value."""
        if entry.bare:
            return self._tree(entry.parts[""])
        before, after = ("[", "]") if entry.boxed else ("", "")
        parts = [f"{_quoted(key)}: {before}{self._tree(value)}{after}" for key, value in entry.ordered().items()]
        return "{" + ", ".join(parts) + "}"

    def _tree(self, value: Any) -> str:
        kind = type(value)
        if kind is Note:
            return self.tensor(value)
        if kind is list:
            return "[" + ", ".join([self._tree(item) for item in value]) + "]"
        if value is None:
            return "null"
        if kind is dict:
            return "{" + ", ".join([f"{_quoted(key)}: {self._tree(item)}" for key, item in value.items()]) + "}"
        if kind is Leaf:
            return self._leaf(value)
        return f'{{"type": "{kind.__name__}", "value": {_plain(value)}}}'

    def _leaf(self, leaf: Leaf) -> str:
        fields = [
            f"{dumps(key)}: {self.tensor(item) if type(item) is Note else dumps(item)}"
            for key, item in leaf.json.items()
        ]
        return "{" + ", ".join(fields) + "}"

    def tensor(self, note: Note) -> str:
        """The leaf of one tensor, its fields in the order in which readers have always met them."""
        row = note.row
        if row is None or note.extra or note.file:
            return self._fields(note, row, note.file)
        key = (note.requires_grad, note.dtype, note.shape, note.type)
        if row.text is None or row.text_key != key:
            row.text, row.text_key = self._fields(note, row, None), key
        return row.text

    def _fields(self, note: Note, row: Row | None, file: str | None) -> str:
        text = f'{{"type": "{note.type}", "dtype": "{note.dtype}", "shape": {list(note.shape)}'
        grad = "" if note.requires_grad is None else f', "requires_grad": {"true" if note.requires_grad else "false"}'
        digest = _plain(row.digest if row else None)
        if self._summary == "xor":
            text += f', "md5": {digest}{grad}'
        else:
            four = legacy_statistics(note.dtype, note.shape, row.values if row else None, high=self._high)
            high, low, mean, norm, extra = four
            text += (
                f', "Max": {_plain(high)}, "Min": {_plain(low)}, "Mean": {_plain(mean)}, "Norm": {_plain(norm)}{grad}'
            )
            for key, value in extra.items():
                text += f', "{key}": {_plain(value)}'
        if note.extra:
            for key, value in note.extra.items():
                text += f', "{key}": {dumps(value)}'
        if self._summary == "md5":
            text += f', "md5": {digest}'
        if file is not None:
            text += f', "data_name": {_quoted(file)}'
        return text + "}"


def _plain(value: Any) -> str:
    """As the encoder writes it; for the commonest types without its detours."""
    kind = type(value)
    if kind is float:
        return _number_text(value) if isfinite(value) else dumps(value)
    if kind is str:
        return str(_quoted(value))
    return repr(value) if kind is int else dumps(value)
