"""What auto_diff gives back: true when the models agree, and everything that was found."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinprobe._live.console import DIFFERS, FIRST, Branch, Calls, model_tree, tree_lines
from twinprobe._live.findings import Finding, First
from twinprobe._live.measuring import Found, differing
from twinprobe._live.options import FORMATS
from twinprobe._report.console import json_bytes, visible
from twinprobe._report.files import Staging, prepare_folder
from twinprobe._report.tables import fill_csv, fill_parquet
from twinprobe.errors import BadInput

if TYPE_CHECKING:
    import polars as pl


@dataclass
class Result:
    """The result. ``bool(result)`` is true if the two models agree in everything that decides the verdict."""

    base: str
    raw: str
    found: list[Found]
    first: First | None
    base_calls: Calls
    raw_calls: Calls
    steps: int = 1
    notes: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    weights_copied: bool = False  # from base to raw, before the first run

    def __bool__(self) -> bool:
        return self.first is None

    @property
    def aligned(self) -> bool:
        """Whether the two models agree."""
        return self.first is None

    @cached_property
    def findings(self) -> list[Finding]:
        """Every pair of tensors, step by step."""
        return [one for part in self.found for one in part]

    @cached_property
    def table(self) -> pl.DataFrame:
        """One row per pair of tensors, in the order of execution."""

        return table_of(self.findings)

    @cached_property
    def base_tree(self) -> list[Branch]:
        """The calls of the base model inside one another, with marks."""
        return model_tree(self.base_calls, self._shown, self.first.base if self.first else "", golden=True)

    @cached_property
    def raw_tree(self) -> list[Branch]:
        """The calls of the raw model inside one another, with marks."""
        return model_tree(self.raw_calls, self._shown, self.first.raw if self.first else "", golden=False)

    @property
    def _shown(self) -> list[Finding]:
        """What the marks in the trees tell of: the step and phase of the first difference."""
        at = (self.first.step, self.first.phase) if self.first is not None else None
        return [one for one in self.findings if at is None or (one.step, one.phase) == at]

    @property
    def differences(self) -> list[Finding]:
        """The pairs that differ, in execution order."""
        return [one for part in self.found for one in differing(part)]

    def counts(self) -> dict[str, int]:
        """How many pairs were compared, how many differ, and how many of these decide the verdict."""
        differing = self.differences
        return {
            "compared": sum(map(len, self.found)),
            "differ": len(differing),
            "decide": sum(one.decides for one in differing),
        }

    @property
    def written_to(self) -> str:
        """Which model was written to, in words; empty if none was."""
        return f"copied from base {self.base} to raw {self.raw}" if self.weights_copied else ""

    def to_dict(self) -> dict[str, Any]:
        """The result without the table, as plain data."""
        first = self.first
        shown = None
        if first is not None:
            shown = {
                "step": first.step, "phase": first.phase, "raw": first.raw, "base": first.base, "cause": first.cause,
                "why": first.why, "raw_line": first.raw_line, "base_line": first.base_line,
            }  # fmt: skip
        return {
            "aligned": self.aligned, "base": self.base, "raw": self.raw, "steps": self.steps,
            "weights_copied": self.weights_copied, "counts": self.counts(), "first": shown, "notes": list(self.notes),
        }  # fmt: skip

    def save(self, folder: str | Path, formats: Sequence[str] = ("csv", "json", "html")) -> list[Path]:
        """Write the table as ``auto_diff.csv`` and so on into a folder; other files there stay as they are."""

        written = write_files(self, Path(folder), formats)
        self.files += written
        return written

    def show(self) -> None:
        """Print the report."""
        from twinprobe._live.console import print_result

        print_result(self)

    def __repr__(self) -> str:
        counts = self.counts()
        if self.first is None:
            inner = f", but {counts['differ']} inner ones do not decide and differ" if counts["differ"] else ""
            agree = counts["compared"] - counts["differ"]
            return f"<aligned: {self.base} and {self.raw}, {agree} pairs agree{inner}>"
        return (
            f"<not aligned: {self.base} and {self.raw}, {counts['differ']} of {counts['compared']} pairs: {self.first}>"
        )

    def _repr_html_(self) -> str:

        return fragment(self)


# The result as files.

STEM = "auto_diff"


def write_files(result: Result, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write every format asked for, all or none. Nothing else in the folder is touched."""
    for name in formats:
        if name not in FORMATS:
            raise BadInput(f"unknown report format {name!r}", hint=f"known: {', '.join(FORMATS)}")
    prepare_folder(folder)
    written = []
    with Staging() as staging:
        for name in dict.fromkeys(formats):
            path = folder / f"{STEM}.{name}"
            _fill(name, result, staging.file(path))
            written.append(path)
    return written


def with_result(table: pl.DataFrame) -> pl.DataFrame:
    """With the column by which workbooks colour their rows."""
    import polars as pl

    found = pl.col("verdict").replace_strict({"same": "pass", "differs": "error"}, default="warning")
    return table.with_columns(found.alias("Result"))


def _fill(name: str, result: Result, path: Path) -> None:
    if name == "csv":
        fill_csv(result.table, path)
    elif name == "parquet":
        fill_parquet(result.table, path)
    elif name == "xlsx":
        from twinprobe._report.xlsx import fill_xlsx

        fill_xlsx(with_result(result.table), path)
    elif name == "json":
        path.write_bytes(json_bytes({**result.to_dict(), "rows": result.table.to_dicts()}))
    else:
        path.write_text(whole_page(result), encoding="utf-8", errors="backslashreplace")


# Findings as a table.


def table_of(findings: list[Finding]) -> pl.DataFrame:
    """One row per pair of tensors."""
    import polars as pl

    texts = {
        "phase": [one.phase for one in findings],
        "raw": [one.raw for one in findings],
        "base": [one.base for one in findings],
        "place": [one.place for one in findings],
        "tensor": [one.tensor for one in findings],
        "verdict": [_verdict(one) for one in findings],
        "cause": [one.cause for one in findings],
        "why": [one.gap.why for one in findings],
        "raw shape": [one.raw_shape for one in findings],
        "base shape": [one.base_shape for one in findings],
        "dtype": [one.dtype for one in findings],
    }
    numbers = {
        "max abs": [one.gap.max_abs for one in findings],
        "mean abs": [one.gap.mean_abs for one in findings],
        "max rel": [one.gap.max_rel for one in findings],
        "relative norm": [one.gap.relative_norm for one in findings],
        "cosine": [one.gap.cosine for one in findings],
    }
    counts = {
        "mismatched": [one.gap.mismatched for one in findings],
        "elements": [one.gap.elements for one in findings],
    }
    columns = [pl.Series("step", [one.step for one in findings], dtype=pl.Int64)]
    columns += [pl.Series(name, values, dtype=pl.String) for name, values in texts.items()]
    columns += [pl.Series(name, values, dtype=pl.Float64) for name, values in numbers.items()]
    columns += [pl.Series(name, values, dtype=pl.Int64) for name, values in counts.items()]
    columns.append(pl.Series("rule", [one.rule for one in findings], dtype=pl.String))
    return pl.DataFrame(columns)


def _verdict(one: Finding) -> str:
    if not one.differs:
        return "same"
    return "differs" if one.decides else "differs (does not decide)"


# The result as HTML: a fragment for notebooks, and a page that loads nothing and runs nothing.

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
