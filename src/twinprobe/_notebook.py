"""Results in a notebook: small pieces of html that need no network and fit light and dark pages alike."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from html import escape
from importlib import import_module
from typing import Any

# Colours are mixed from the text's own, which is dark on light pages and light on dark ones.
_BORDER = "color-mix(in srgb, currentColor 25%, transparent)"
_BOX = f"border:1px solid {_BORDER};border-radius:6px;padding:8px 12px;max-width:60em;font-family:sans-serif"
_CELL = "text-align:left;padding:1px 12px 1px 0;vertical-align:top;background:none"
_COLOURS = {True: "#1a9850", False: "#d73027", None: "currentColor"}
_LONGEST = 500


def card(
    title: str,
    facts: Iterable[tuple[str, object]],
    *,
    good: bool | None = None,
    table: Sequence[Sequence[object]] = (),
) -> str:
    """A box with a title, facts under each other, and perhaps a table whose first row is its head."""
    lines = "".join(
        f'<tr><td style="{_CELL};opacity:.7">{_safe(name)}</td><td style="{_CELL}">{_safe(value)}</td></tr>'
        for name, value in facts
    )
    rows = "".join(
        "<tr>" + "".join(f'<{tag} style="{_CELL}">{_safe(cell)}</{tag}>' for cell in row) + "</tr>"
        for row, tag in ((row, "td" if at else "th") for at, row in enumerate(table))
    )
    head = f'<b style="color:{_COLOURS[good]}">{_safe(title)}</b>'
    inner = f'<table style="border:0">{lines}</table>' + (f'<table style="border:0">{rows}</table>' if rows else "")
    return f'<div style="{_BOX}">{head}{inner}</div>'


def _safe(value: object) -> str:
    """Names are foreign text: cut, escaped, and without characters that steer a page."""
    text = str(value)
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
    return escape("".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text))


class Progress:
    """How far a comparison is, in a notebook's cell and for work of more than a second; elsewhere nothing.

    Called with what is done of how much. It needs no widgets: a cell's own output is written anew.
    """

    _PATIENCE, _EVERY = 1.0, 0.2  # seconds

    def __init__(self) -> None:
        self.job = 0, 1  # which of how many comparisons
        self._began = self._last = time.monotonic()
        self._shown: Any = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown is not None:
            self._shown.update({"text/plain": "", "text/html": ""}, raw=True)

    def __call__(self, done: int, total: int) -> None:
        """Show that so much of this comparison is done."""
        now = time.monotonic()
        if now - self._began < self._PATIENCE or now - self._last < self._EVERY or not _in_notebook():
            return
        self._last = now
        share = min(1.0, max((self.job[0] + done / max(total, 1)) / self.job[1], 1e-9))
        text = f"{share:.0%} compared, {(now - self._began) * (1 - share) / share:.0f} s left"
        bar = f'<progress value="{share:.3f}"></progress> {text}'
        content = {"text/plain": text, "text/html": bar}
        if self._shown is None:
            show = import_module("IPython.display").display
            self._shown = show(content, raw=True, display_id=True)
        else:
            self._shown.update(content, raw=True)


def _in_notebook() -> bool:
    """Whether a kernel runs this; IPython is not imported to find out."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None
