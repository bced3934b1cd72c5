"""Results in a notebook: small pieces of html that need no network and fit light and dark pages alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

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
