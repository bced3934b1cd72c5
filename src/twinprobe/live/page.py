"""The result as HTML: a fragment for notebooks, and a page that loads nothing and runs nothing."""

from __future__ import annotations

import html
from math import isnan
from typing import TYPE_CHECKING

from twinprobe.live.findings import Finding
from twinprobe.live.trees import DIFFERS, FIRST, Branch, tree_lines
from twinprobe.report.text import visible

if TYPE_CHECKING:
    from twinprobe.live.result import Result

_MOST_ROWS = 50
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = (
    ".twinprobe{font:14px/1.4 system-ui,sans-serif}.twinprobe pre{line-height:1.3;overflow:auto}"
    ".twinprobe td,.twinprobe th{padding:2px 8px;text-align:left;border-bottom:1px solid #8884}"
    ".twinprobe .bad{color:#c62828}.twinprobe .first{color:#c62828;font-weight:bold}.twinprobe .good{color:#2e7d32}"
    ".twinprobe .trees{display:flex;gap:2em;flex-wrap:wrap}"
)


def whole_page(result: Result) -> str:
    """A page of its own, with every difference."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{_safe(result.raw)} against {_safe(result.base)}</title></head><body>"
        f"{fragment(result, most=100_000)}</body></html>\n"
    )


def fragment(result: Result, *, most: int = _MOST_ROWS) -> str:
    """What a notebook shows."""
    counts = result.counts()
    verdict = "aligned" if result else "not aligned"
    parts = [
        f'<style>{_STYLE}</style><div class="twinprobe">',
        f'<p><b class="{"good" if result else "bad"}">{verdict}</b>: {_safe(result.raw)} against {_safe(result.base)}, '
        f"{counts['compared']:,} pairs compared, {counts['differ']:,} differ</p>",
    ]
    first = result.first
    if first is not None:
        parts.append(
            f'<p class="first">{_safe(first.phase)}: {_safe(first.raw)} against {_safe(first.base)}</p>'
            f"<p>{_safe(first.why)}</p>"
        )
        parts += [f"<p>{who}: <code>{_safe(line)}</code></p>" for who, line in _lines(result) if line]
        parts.append(f'<div class="trees">{_tree("raw", result.raw_tree)}{_tree("base", result.base_tree)}</div>')
        parts.append(_rows(result.differences, most))
    if result.written_to:
        parts.append(f"<p>weights: {_safe(result.written_to)}</p>")
    parts += [f"<p>note: {_safe(note)}</p>" for note in result.notes]
    return "".join(parts) + "</div>"


def _lines(result: Result) -> list[tuple[str, str]]:
    assert result.first is not None
    return [("raw", result.first.raw_line), ("base", result.first.base_line)]


def _tree(title: str, roots: list[Branch]) -> str:
    classes = {FIRST: "first", DIFFERS: "bad"}
    lines = (f'<span class="{classes.get(mark, "")}">{_safe(line)}</span>' for line, mark in tree_lines(roots))
    return f"<div><b>{title}</b><pre>" + "\n".join(lines) + "</pre></div>"


def _rows(findings: list[Finding], most: int) -> str:
    head = "".join(f"<th>{name}</th>" for name in ("phase", "raw", "base", "what", "cause", "max abs", "cosine", "why"))
    body = "".join(
        "<tr>" + "".join(f"<td>{_safe(cell)}</td>" for cell in _cells(one)) + "</tr>" for one in findings[:most]
    )
    left = f"<p>{len(findings) - most:,} more</p>" if len(findings) > most else ""
    return f"<table><tr>{head}</tr>{body}</table>{left}"


def _cells(one: Finding) -> tuple[str, ...]:
    return (
        one.phase, one.raw, one.base, one.tensor, one.cause, _number(one.gap.max_abs), _number(one.gap.cosine),
        one.gap.why,
    )  # fmt: skip


def _number(value: float) -> str:
    return "" if isnan(value) else f"{value:.4g}"


def _safe(text: str) -> str:
    return html.escape(visible(text))
