"""Many ranks and steps on one page: a map of errors, and where the difference began."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
import numpy as np

from twinprobe._judge.summary import Summary, unread_rows
from twinprobe._lazy import polars as pl
from twinprobe._report.console import is_layout, json_bytes, visible
from twinprobe._report.dataset import Place
from twinprobe._report.files import Staging
from twinprobe._report.html import asset, fill
from twinprobe._report.tables import fill_table
from twinprobe.errors import BadInput

if TYPE_CHECKING:
    from twinprobe._judge.across.steps import StepsComparison, Trend

_PARTS = ("calls", "optimizer")  # of a parallel layout, whose ranks are one run, in place of ranks
VERDICTS = ("pass", "warning", "error", "failed")
_NUMBER = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?%?")


@dataclass(frozen=True)
class Cell:
    """One rank at one step: what was found, or why nothing was."""

    place: Place
    name: str
    summary: Summary | None
    failure: str = ""
    times: float | None = None
    """The worst error of the rows that do not pass, in multiples of the noise that is to be expected."""

    @property
    def verdict(self) -> str:
        """The worst verdict of its rows; failed where it could not be compared."""
        if self.summary is None:
            return "failed"
        return next((name for name in ("error", "warning") if self.summary.verdicts.get(name)), "pass")

    @property
    def words(self) -> str:
        """Why it failed, or where its runs part; empty where they do not."""
        first = self.summary.first if self.summary is not None else None
        return f"{first.op}: {first.sentence}" if first else self.failure


@dataclass
class Overview:
    """All cells of a command, and the beginnings of its differences in words, the earliest step first."""

    target: str
    golden: str
    timestamp: str
    dataset: str
    cells: Sequence[Cell]
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lost: Sequence[str] = ()
    """What was asked for and has no cell, since it was not there to be compared."""
    finished: bool = True


def write_overview(overview: Overview, folder: Path) -> list[Path]:
    """Write ``compare_summary_<timestamp>.json`` and ``.html``; both or none."""
    files = [folder / f"compare_summary_{overview.timestamp}.{suffix}" for suffix in ("json", "html")]
    with Staging() as staging:
        staging.file(files[0]).write_bytes(json_bytes(_document(overview)) + b"\n")
        fill_page(overview, staging.file(files[1]))
    return files


def fill_page(overview: Overview, path: Path) -> None:
    """Write the page to exactly this path."""
    steps, ranks = ({getattr(cell.place, key) for cell in overview.cells} for key in ("step", "rank"))
    data = {
        "target": visible(overview.target),
        "golden": visible(overview.golden),
        "dataset": visible(overview.dataset),
        "verdicts": VERDICTS,
        "counts": count_cells(overview.cells),
        "finished": overview.finished,
        "findings": [visible(text) for text in overview.findings],
        "notes": [visible(text) for text in (*overview.lost, *overview.notes)],
        "cells": [_shown(cell) for cell in overview.cells],
        "noun": "ranks" if len(steps) == 1 else "steps" if len(ranks) == 1 else "places",
        "parts": _PARTS if is_layout([cell.name for cell in overview.cells]) else [],
        "groups": _groups(overview.cells),
        "reports": [_report_of(cell, path.parent) for cell in overview.cells],
    }
    title, style, script = page_title(overview.cells), asset("map.css"), asset("map.js")
    fill(path, asset("map.html"), title=title, style=style, script=script, data=data)


def page_title(cells: Sequence[Cell]) -> str:
    """The title of the page: how many ranks, steps, or both have errors, have only warnings, were not compared."""
    counts, steps, ranks = count_cells(cells), {c.place.step for c in cells}, {c.place.rank for c in cells}
    noun = "ranks" if len(steps) == 1 else "steps" if len(ranks) == 1 else (
        f"results ({len(ranks):,} ranks, {len(steps):,} steps)"
    )  # fmt: skip
    if is_layout([cell.name for cell in cells]):
        noun = f"results ({f'{len(steps):,} steps, ' if len(steps) > 1 else ''}the ranks as one run)"
    words = {"error": "with errors", "warning": "with warnings", "failed": "not compared"}
    parts = [f"{counts[verdict]:,} {text}" for verdict, text in words.items() if counts[verdict]]
    return f"TwinProbe: {len(cells):,} {noun}: " + (", ".join(parts) or "all pass")


def _groups(cells: Sequence[Cell]) -> list[list[Any]]:
    """What does not pass, the same finding of several ranks as one line: verdict, places, words, how many."""
    same_words: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        if cell.verdict == "pass":
            continue
        first = cell.summary.first if cell.summary is not None else None
        words = cell.failure or (f"{first.op}: {_NUMBER.sub('#', first.sentence)}" if first else "")
        same_words.setdefault((cell.verdict, words), []).append(cell)
    order = {name: index for index, name in enumerate(reversed(VERDICTS))}
    if is_layout([cell.name for cell in cells]):  # one run: what comes first begins it
        order = {}
    groups = []
    for (verdict, _), same in sorted(same_words.items(), key=lambda one: (order.get(one[0][0], 0), -len(one[1]))):
        worst = max(same, key=lambda cell: cell.times or 0.0)
        groups.append([verdict, _places(same), visible(worst.words), len(same), cells.index(worst)])
    return groups


def _places(cells: Sequence[Cell]) -> list[list[str]]:
    """Which steps and ranks these are: each set of steps with the ranks that all of them have."""
    ranks: dict[int, set[int]] = {}
    for cell in cells:
        ranks.setdefault(cell.place.step, set()).add(cell.place.rank)
    steps: dict[str, set[int]] = {}
    for step, found in sorted(ranks.items()):
        steps.setdefault(_ranges(found), set()).add(step)
    return [[_ranges(same), text] for text, same in steps.items()]


def _ranges(numbers: set[int]) -> str:
    """Numbers as people write them: 0-6, 9."""
    ordered = np.array(sorted(numbers))
    runs = np.split(ordered, np.flatnonzero(np.diff(ordered) > 1) + 1)
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _report_of(cell: Cell, folder: Path) -> str:
    """The address of a rank's own page, seen from the map."""
    files = cell.summary.files if cell.summary is not None else []
    page = next((file for file in files if file.endswith(".html")), "")
    return quote(os.path.relpath(page, folder)) if page and "://" not in page else ""


class _Failed(msgspec.Struct):
    verdict: str
    step: int
    reason: str = ""


class _Written(msgspec.Struct):
    failures: list[str] = []
    finished: bool = True
    map: list[_Failed] = []


def lost_of(dataset: Path, step: int | None = None) -> list[str]:
    """What the command that wrote a dataset was asked for and did not manage, of one step or of all."""
    file = dataset.parent / f"compare_summary_{dataset.name.rpartition('_')[2]}.json"
    if not file.is_file():
        return []
    try:
        written = msgspec.json.decode(file.read_bytes(), type=_Written)
    except (OSError, msgspec.DecodeError) as error:
        raise BadInput(f"cannot be read: {error}", where=file) from None
    lost = written.failures
    if step is not None:
        lost = [cell.reason for cell in written.map if cell.verdict == "failed" and cell.step == step]
    return lost if written.finished else [*lost, f"{dataset}: the comparison was interrupted (--resume continues it)"]


def count_cells(cells: Sequence[Cell]) -> dict[str, int]:
    """How many cells have which verdict."""
    return dict.fromkeys(VERDICTS, 0) | Counter(cell.verdict for cell in cells)


def _document(overview: Overview) -> dict[str, Any]:
    cells = overview.cells
    totals: Counter[str] = Counter({"pass": 0, "warning": 0, "error": 0})
    for cell in cells:
        totals.update(cell.summary.verdicts if cell.summary else {})
    return {
        "target": overview.target,
        "golden": overview.golden,
        "timestamp": overview.timestamp,
        "dataset": overview.dataset,
        "finished": overview.finished,
        "ranks": len({cell.place.rank for cell in cells}),
        "steps": sorted({cell.place.step for cell in cells}),
        "rows": sum(cell.summary.rows for cell in cells if cell.summary),
        "unread": sum(cell.summary.unread for cell in cells if cell.summary),
        "verdicts": dict(totals),
        "cells": count_cells(cells),
        "first": overview.findings,
        "map": [_entry(cell) for cell in cells],
        "notes": overview.notes,
        "failures": [*overview.lost, *(cell.failure for cell in cells if cell.failure)],
    }


def _entry(cell: Cell) -> dict[str, Any]:
    entry: dict[str, Any] = {"mode": cell.place.mode} if cell.place.mode else {}
    entry |= {"step": cell.place.step, "rank": cell.place.rank, "name": cell.name, "verdict": cell.verdict}
    if cell.summary is None:
        return entry | {"reason": cell.failure}
    summary, first = cell.summary, cell.summary.first
    entry |= {"rows": summary.rows, "matched": summary.matched, "unread": summary.unread, **summary.verdicts}
    if cell.times is not None:
        entry["times"] = cell.times
    return entry | {"first": None if first is None else {"op": first.op, "row": first.row, "sentence": first.sentence}}


def _shown(cell: Cell) -> list[Any]:
    """A cell as the page wants it: mode, step, rank, verdict, errors, warnings, words, times noise."""
    place, summary, words = cell.place, cell.summary, cell.words
    if summary is not None and summary.unread and not words:
        words = unread_rows(summary.unread)
    counts = [summary.verdicts.get(name, 0) if summary else 0 for name in ("error", "warning")]
    times = cell.times if cell.times is not None and math.isfinite(cell.times) else None
    return [place.mode, place.step, place.rank, VERDICTS.index(cell.verdict), *counts, visible(words), times]


# Two runs over many steps: a table with a row for each step, and a page with the curves of both.

_MOST_NUMBERS = 1_000_000  # on one page; beyond that it shows every so many steps
_MOST_RANKS = 8
_HEAD = ("loss", "grad_norm", "group.0.lr")


def write_steps(compared: StepsComparison, folder: Path, stamp: str, formats: Sequence[str] = ()) -> list[Path]:
    """Write ``compare_steps_<timestamp>`` as csv (or parquet, where that is asked for) and html; all or none."""
    kinds = [kind for kind in ("csv", "parquet") if kind in formats] or ["csv"]
    files = [folder / f"compare_steps_{stamp}.{suffix}" for suffix in (*kinds, "html")]
    with Staging() as staging:
        table = steps_table(compared)
        for kind, file in zip(kinds, files, strict=False):
            fill_table(kind, table, staging.file(file))
        fill_curves(compared, staging.file(files[-1]))
    return files


def steps_table(compared: StepsComparison) -> pl.DataFrame:
    """One row for each rank and step: loss, learning rate and gradient norm of both runs, and what differs most."""
    frames = []
    for trend in compared.trends:
        columns: dict[str, Any] = {"rank": np.full(len(trend.steps), trend.rank), "step": trend.steps,
                                   "golden_step": trend.golden_steps}  # fmt: skip
        for title, name in zip(("loss", "grad_norm", "learning_rate"), _HEAD, strict=True):
            place = trend.names.index(name) if name in trend.names else None
            for side, values in (("target", trend.target), ("golden", trend.golden)):
                missing = np.full(len(trend.steps), np.nan)
                columns[f"{side}_{title}"] = missing if place is None else np.where(
                    trend.known[:, place], values[:, place], np.nan
                )  # fmt: skip
        for kind in ("output", "gradient", "parameter"):
            of_kind = [name.startswith(f"{kind}.") and not name.endswith(".eps") for name in trend.names]
            columns[f"{kind}_difference"] = trend.difference[:, of_kind].max(axis=1, initial=0.0)
            columns[f"{kind}_noise"] = trend.noise[:, of_kind].max(axis=1, initial=0.0)
        differs = trend.differs
        columns["differing"] = differs.sum(axis=1)
        columns["first_differing"] = [trend.names[int(np.argmax(row))] if row.any() else "" for row in differs]
        frames.append(pl.DataFrame(columns))
    return pl.concat(frames)


def fill_curves(compared: StepsComparison, path: Path) -> None:
    """Write the page with the curves to exactly this path."""
    chosen = sorted(compared.trends, key=lambda trend: (trend.rank != compared.parting.rank, trend.rank))[:_MOST_RANKS]
    numbers = sum(3 * len(trend.names) * len(trend.steps) for trend in chosen)
    every = max(1, math.ceil(numbers / _MOST_NUMBERS))
    notes = list(compared.notes)
    if every > 1:
        notes.append(f"This page shows one step in {every}; the table has all of them.")
    if len(chosen) < len(compared.trends):
        notes.append(f"This page shows {len(chosen)} of {len(compared.trends)} ranks; the table has all of them.")
    data = {
        "target": visible(compared.target),
        "golden": visible(compared.golden),
        "sentence": visible(compared.parting.sentence),
        "step": compared.parting.step,
        "rank": compared.parting.rank,
        "notes": [visible(note) for note in notes],
        "head": _HEAD,
        "trends": [_curves(trend, every) for trend in chosen],
    }
    title = shorten(visible(f"TwinProbe: {compared.parting.sentence}"), 200, placeholder=" …")
    script = asset("steps.js") + asset("chinese.js")
    fill(path, asset("steps.html"), title=title, style=asset("steps.css"), script=script, data=data)


def _curves(trend: Trend, every: int) -> dict[str, Any]:
    rows = slice(None, None, every)
    hidden = ".digest", ".samples", ".eps", ".residue", ".drops"
    shown = [column for column, name in enumerate(trend.names) if not name.startswith(("random.", "setting."))]
    shown = [column for column in shown if not trend.names[column].endswith(hidden)]
    shown.sort(key=lambda column: trend.names[column] not in _HEAD)
    apart = trend.known & ~(trend.difference <= trend.noise)
    first = {column: int(np.argmax(apart[:, column])) for column in shown if apart[:, column].any()}
    series = []
    for column in shown:
        known = trend.known[rows, column]
        pair = [_plain(np.where(known, side[rows, column], np.nan)) for side in (trend.target, trend.golden)]
        noise = trend.noise[rows, column]
        apart_at_all = bool(trend.difference[rows, column].any())  # six digits may hide it
        series.append({
            "name": visible(trend.names[column]), "target": pair[0], "golden": None if pair[0] == pair[1] else pair[1],
            "difference": _plain(trend.difference[rows, column]) if apart_at_all else None,
            "noise": _plain(noise) if noise.any() else None,
            "first": int(trend.steps[first[column]]) if column in first else None,
        })  # fmt: skip
    return {"rank": trend.rank, "steps": trend.steps[rows].tolist(), "golden_steps": trend.golden_steps[rows].tolist(),
            "series": series}  # fmt: skip


def _plain(values: Any) -> list[float | None]:
    """Numbers as JSON has them, six digits of each; None for what is not a number."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values.tolist()]


def step_lines(compared: StepsComparison) -> list[str]:
    """One line for each step, for a terminal."""
    lines = [f"{'step':>8} {'loss':>12} {'golden':>12} {'output':>9} {'gradient':>9} {'parameter':>9}  first to differ"]
    for row in steps_table(compared).iter_rows(named=True):
        rank = f"{row['rank']}:" if len(compared.trends) > 1 else ""
        numbers = " ".join(f"{row[f'{kind}_difference']:9.1e}" for kind in ("output", "gradient", "parameter"))
        losses = f"{row['target_loss']:12.6g} {row['golden_loss']:12.6g}"
        lines.append(
            f"{rank}{row['step']:>{8 - len(rank)}} {losses} {numbers}  {visible(row['first_differing']) or '-'}"
        )
    return lines
