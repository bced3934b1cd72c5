"""The page of a search: the result, the curves of both runs, and the stages that led to it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np

from twinprobe._report.console import place_in_code
from twinprobe._report.html import fill_static, safe

if TYPE_CHECKING:
    from twinprobe._judge.across.steps import Trend

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 560, 150, 74, 20
_MOST_POINTS = 1000
_TITLES = {"loss": "loss", "grad_norm": "gradient norm", "group.0.lr": "learning rate"}
_STAGES = {
    "watch": "watch every step", "step": "record the step", "tensors": "keep the suspects' tensors",
    "replay": "run the call again", "confirm": "put golden's values in",
}  # fmt: skip
_STYLE = """
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(540px, 100%), 1fr)); gap: 10px 26px; }
.curves h3 { margin: 0; font-size: 13.5px; font-weight: 600; }
svg { width: 100%; height: auto; display: block; font: 11px var(--sans); }
svg text { fill: var(--soft); }
svg .axis { stroke: var(--line); }
svg .target { stroke: var(--error-mark); }
svg .golden { stroke: var(--pass-mark); stroke-width: 4; opacity: 0.75; }
svg .difference { stroke: var(--ink); }
svg .noise { stroke: var(--soft); stroke-dasharray: 2 3; }
svg polyline { fill: none; stroke-width: 1.7; stroke-linejoin: round; }
svg .parting { stroke: var(--warning-mark); stroke-width: 1.5; stroke-dasharray: 5 3; }
.legend span { display: inline-flex; align-items: center; gap: 6px; }
.legend .key { width: 18px; height: 0; border-top: 3px solid; }
.key.target { border-color: var(--error-mark); } .key.golden { border-color: var(--pass-mark); }
.key.parting { border-color: var(--warning-mark); border-top-style: dashed; }
.wide { width: 100%; } .wide td { font-family: var(--sans); } .wide td.mono { font-family: var(--mono); }
a { color: var(--accent); }
@media (max-width: 600px) { svg { font-size: 16px; } }
"""


@dataclass
class FindResult:
    """The findings of a search so far, as find.json holds them."""

    target: dict[str, Any]
    golden: dict[str, Any]
    exact: bool
    sentence: str = ""
    agrees: bool | None = None
    """None while it is not known."""
    step: int | None = None
    rank: str = ""
    first: dict[str, Any] | None = None
    """The first divergence, with the keys that compare gives it."""
    others: list[dict[str, Any]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    stages: dict[str, str] = field(default_factory=dict)
    """The result of each stage, in a sentence."""
    settings: dict[str, list[Any]] = field(default_factory=dict)
    """Settings that the two programs do not share."""
    reproducer: str = ""
    notes: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    interrupted: bool = False


def write_page(path: Path, result: FindResult, curves: dict[str, Any]) -> None:
    """Write the page to exactly this path."""
    parts = [_verdict(result), _curves(result, curves), _stages(result), _programs(result), _notes(result)]
    title = shorten(f"TwinProbe: {result.sentence}", 200, placeholder=" …")
    fill_static(path, title, ["find"], "\n".join(part for part in parts if part), _STYLE)


def _verdict(result: FindResult) -> str:
    first = result.first
    kind = "good" if result.agrees else "mild" if first is None else ""
    if result.agrees is None:
        kicker = "interrupted" if result.interrupted else "not finished"
    elif result.agrees:
        kicker = "no difference"
    else:
        module = first["module"] if first else ""
        kicker = (
            f"step {result.step}" + (f", {result.rank}" if result.rank else "") + (f", in {module}" if module else "")
        )
    lines = [
        f'<p class="kicker">{safe(kicker)}</p>',
        f"<h1>{safe(first['op'] if first else result.sentence)}</h1>",
    ]
    table = ""
    if first:
        lines.append(f'<p class="sentence">{safe(result.sentence)}</p>')
        lines.append(f'<p class="sentence">{safe(first["sentence"])}</p>')
        if first["stack_line"]:
            lines.append(f'<p class="stack-line">{safe(place_in_code(first["stack_line"]))}</p>')
        lines += [f'<p class="hint">another divergence at {safe(other["op"])}: {safe(other["sentence"])}</p>'
                  for other in result.others]  # fmt: skip
        names = dict.fromkeys([*first["target_values"], *first["golden_values"]])
        rows = [(name, first["target_values"].get(name, ""), first["golden_values"].get(name, "")) for name in names]
        rows = [row for row in rows if row[1:] != ("None", "None")]  # whole numbers have no mean
        table = _table(("", "target", "golden"), rows, mark=True)
    if result.reproducer:
        lines.append(
            f'<p class="sentence">Reproducer: <a href="{safe(result.reproducer)}">{safe(result.reproducer)}</a></p>'
        )
    return f'<section class="panel first {kind}"><div class="story">{"".join(lines)}</div>{table}</section>'


def _table(head: Sequence[str], rows: Iterable[Sequence[object]], *, mark: bool = False) -> str:
    """A table; ``mark`` shows where the second and third cell of a row differ."""
    cells = "".join(f"<th>{safe(name)}</th>" for name in head)
    body = ""
    for row in rows:
        differs = ' class="differs"' if mark and row[1] != row[2] else ""
        body += (
            f"<tr{differs}><th>{safe(row[0])}</th>" + "".join(f"<td>{safe(cell)}</td>" for cell in row[1:]) + "</tr>"
        )
    return f'<table class="values"><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>'


def _stages(result: FindResult) -> str:
    if not result.stages:
        return ""
    rows = ""
    for name, sentence in result.stages.items():
        pages = [file for file in result.files if file.startswith(f"{name}/")]
        links = " ".join(
            f'<a href="{safe(page)}">{"all curves" if name == "watch" else "whole table"}</a>' for page in pages
        )
        rows += f"<tr><th>{safe(_STAGES.get(name, name))}</th><td>{safe(sentence)} {links}</td></tr>"
    table = f'<table class="values wide"><tbody>{rows}</tbody></table>'
    return f'<section class="panel"><h2>How it was found</h2>{table}</section>'


def _programs(result: FindResult) -> str:
    target, golden = result.target, result.golden
    rows: list[tuple[str, object, object]] = [("program", target["program"], golden["program"])]
    rows += [(name, target[name], golden.get(name, "")) for name in ("model", "steps", "processes") if name in target]
    seeds = [_seeds(program.get("seeds") or {}) for program in (target, golden)]
    if any(seeds):
        rows.append(("seeds", seeds[0], seeds[1]))
    settings = [program.get("settings") or {} for program in (target, golden)]
    rows += [(name, settings[0].get(name, ""), settings[1].get(name, "")) for name in settings[0] | settings[1]]
    return (
        f'<section class="panel"><h2>The two programs</h2>{_table(("", "target", "golden"), rows, mark=True)}</section>'
    )


def _seeds(seeds: dict[str, Any]) -> str:
    words = {"program": "set by the program", None: "not set"}
    return ", ".join(f"{name} {words.get(seed, f'{seed} (set by find)')}" for name, seed in seeds.items())


def _notes(result: FindResult) -> str:
    items = "".join(f"<li>{safe(note)}</li>" for note in result.notes)
    return f'<section class="panel"><h2>Notes</h2><ul class="notes">{items}</ul></section>' if items else ""


# The curves: both runs, and how far they are apart.


def curves(trend: Trend, module: str) -> dict[str, Any]:
    """What the page shows of a watched run: loss, norm of the gradients, learning rate, and where the runs part."""
    chosen = ["loss", "grad_norm", "group.0.lr", f"output.{module}.norm"]
    steps = slice(None, None, max(1, math.ceil(len(trend.steps) / _MOST_POINTS)))
    series = {}
    for name in chosen:
        if name in trend.names:
            column = trend.names.index(name)
            known = trend.known[steps, column]
            series[name] = {
                key: list(np.where(known, getattr(trend, key)[steps, column], None))
                for key in ("target", "golden", "difference", "noise")
            }
    return {"steps": trend.steps[steps].tolist(), "series": series}


def _curves(result: FindResult, curves: dict[str, Any]) -> str:
    steps = curves.get("steps") or []
    if len(steps) < 2:
        return ""
    parts = []
    for name, series in curves["series"].items():
        title = _TITLES.get(name, name)
        lines = {"golden": series["golden"], "target": series["target"]}
        parts.append(f"<div><h3>{safe(title)}</h3>{_plot(title, steps, lines, result.step)}</div>")
        # Noise is told by the steps before, so once the runs have parted it says nothing.
        last = steps[-1] if result.step is None else result.step
        noise = [value if step <= last else None for step, value in zip(steps, series["noise"], strict=True)]
        apart = {"difference": series["difference"], "noise": noise}
        apart_title = f"{title}: relative difference, and noise (dotted)"
        plot = '<p class="hint">equal in all steps</p>'
        if any(value and value > 0 for value in series["difference"]):
            plot = _plot(apart_title, steps, apart, result.step, logarithmic=True)
        parts.append(f"<div><h3>{safe(apart_title)}</h3>{plot}</div>")
    legend = ('<p class="legend"><span><span class="key target"></span>target</span><span>'
              '<span class="key golden"></span>golden</span><span><span class="key parting"></span>'
              'first differing step</span></p>')  # fmt: skip
    bar = f'<div class="bar"><h2>Step by step</h2>{legend}</div>'
    return f'<section class="panel">{bar}<div class="curves">{"".join(parts)}</div></section>'


def _plot(
    title: str, steps: Sequence[int], lines: dict[str, list[float | None]], parting: int | None, *,
    logarithmic: bool = False,
) -> str:  # fmt: skip
    def height(value: float | None) -> float | None:
        if value is None or not math.isfinite(value) or (logarithmic and value <= 0):
            return None
        return math.log10(value) if logarithmic else value

    scaled = {name: [height(value) for value in values] for name, values in lines.items()}
    finite = [value for values in scaled.values() for value in values if value is not None]
    if not finite:
        return '<p class="hint">no values</p>'
    low, high = min(finite), max(finite)
    if low == high:
        low, high = low - (abs(low) or 1) * 0.5, high + (abs(high) or 1) * 0.5
    first, last = steps[0], max(steps[-1], steps[0] + 1)

    def place(step: float, value: float) -> tuple[float, float]:
        return (_LEFT + (step - first) / (last - first) * (_WIDTH - _LEFT - 8),
                14 + (high - value) / (high - low) * (_HEIGHT - _BOTTOM - 14))  # fmt: skip

    shown = []
    for value in (low, high):
        text = f"{10**value if logarithmic else value:.3g}"
        x, y = place(first, value)
        shown.append(f'<line class="axis" x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - 8}" y2="{y:.1f}"/>')
        shown.append(f'<text x="{x - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    for step, anchor in ((steps[0], "start"), (steps[-1], "end")):
        shown.append(f'<text x="{place(step, low)[0]:.1f}" y="{_HEIGHT - 4}" text-anchor="{anchor}">{step}</text>')
    if parting is not None and first <= parting <= last:
        x = place(parting, low)[0]
        shown.append(f'<line class="parting" x1="{x:.1f}" y1="6" x2="{x:.1f}" y2="{_HEIGHT - _BOTTOM}"/>')
    for name, values in scaled.items():
        points = [None if value is None else place(step, value) for step, value in zip(steps, values, strict=True)]
        shown += _polylines(name, points)
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{safe(title)}">{"".join(shown)}</svg>'


def _polylines(name: str, points: list[tuple[float, float] | None]) -> list[str]:
    """A line for each stretch of known values; a value alone is a dot."""
    polylines: list[str] = []
    stretch: list[str] = []
    for point in [*points, None]:
        if point is not None:
            stretch.append(f"{point[0]:.1f},{point[1]:.1f}")
            continue
        if stretch:
            stretch = stretch * 2 if len(stretch) == 1 else stretch
            polylines.append(f'<polyline class="{name}" points="{" ".join(stretch)}" stroke-linecap="round"/>')
        stretch = []
    return polylines
