"""What is known of single tokens, as a table and as a page: how far off each token is in each module."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twinprobe._align.token_cuts import NONE
from twinprobe._align.tokens import TokenPairs
from twinprobe._judge.deviation import DIFFERS
from twinprobe._judge.flow import ignored_rows
from twinprobe._judge.summary import Divergence
from twinprobe._judge.verdicts import Evidence, Judged
from twinprobe._lazy import polars as pl
from twinprobe._measure.elements import AT_ONCE, FLOAT64, numbers
from twinprobe._report.files import Staging
from twinprobe._report.reports import fill_static, fill_table, safe
from twinprobe._report.tables import fill_csv
from twinprobe._runs.dtypes import COMPLEX
from twinprobe._runs.names import FORWARD, OpName
from twinprobe._runs.table import OUTPUT
from twinprobe._runs.tensors.tensor_files import open_named
from twinprobe.errors import TwinProbeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

_STYLE = """
table.plain { border-collapse: collapse; font-variant-numeric: tabular-nums; }
table.plain th, table.plain td { text-align: left; padding: 3px 14px 3px 0; border-bottom: 1px solid var(--line); }
table.plain td.n, table.plain th.n { text-align: right; }
.scroll { overflow: auto; max-height: 640px; }
svg text { font: 11px var(--sans); fill: var(--soft); }
svg .name { font-family: var(--mono); }
svg .axis { stroke: var(--line); stroke-width: 1; fill: none; }
svg .t { stroke: var(--accent); fill: none; stroke-width: 1.6; } svg circle.t { fill: var(--accent); }
svg .m { stroke: var(--error-mark); fill: none; stroke-width: 1.6; } svg circle.m { fill: var(--error-mark); }
svg .lim { stroke: var(--warning-mark); stroke-dasharray: 5 4; }
svg .h { fill: var(--line); } svg .h0 { fill: var(--pass-mark); opacity: 0.35; }
svg .h1 { fill: var(--warning-mark); opacity: 0.55; } svg .h2 { fill: var(--warning-mark); }
svg .h3 { fill: var(--error-mark); opacity: 0.7; } svg .h4 { fill: var(--error-mark); }
svg.curves { max-width: 1000px; display: block; }
@media (max-width: 600px) { svg.curves text { font-size: 22px; } svg.curves .t, svg.curves .m { stroke-width: 3; } }
.key { display: flex; gap: 2px 18px; flex-wrap: wrap; font-size: 12.5px; color: var(--soft); }
"""
_TAME = 100.0  # times what calls usually lose: such a call may lose anything
_MOST_MODULES = 160
_MOST_COLUMNS = 480
_MOST_ROWS = 500


def panel(title: str, content: str, kind: str = "") -> str:
    """A part of a page."""
    return f'<section class="panel {kind}"><div class="story"><h2>{safe(title)}</h2>{content}</div></section>'


def html_table(table: pl.DataFrame) -> str:
    """A table as HTML; what is too much for a page is counted."""
    numeric = {name for name in table.columns if table[name].dtype.is_numeric()}
    head = "".join(f'<th class="{"n" if name in numeric else ""}">{safe(name)}</th>' for name in table.columns)
    lines = []
    for row in table.head(_MOST_ROWS).iter_rows():
        cells = (
            f'<td class="{"n" if name in numeric else ""}">{_cell(value)}</td>'
            for name, value in zip(table.columns, row, strict=True)
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    left = table.height - _MOST_ROWS
    more = f'<p class="hint">{left:,} more rows are in the table</p>' if left > 0 else ""
    return f'<div class="scroll" tabindex="0"><table class="plain"><tr>{head}</tr>{"".join(lines)}</table></div>{more}'


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return "" if isnan(value) else f"{value:.4g}"
    return safe(value)


# What is known of single tokens.


@dataclass
class Compared:
    """Two runs compared by tokens: for each row of the pair table which tokens it holds, None for a value without them.

    ``cached`` marks rows that hold what a cache has of its tokens, rather than what a call computes for them.
    """

    tokens: TokenPairs
    held: list[Ints | None]
    cached: list[bool]
    folders: tuple[Path, Path]
    evidence: Evidence
    judged: Judged
    calls: list[OpName]
    first: Divergence | None


@dataclass
class TokenFindings:
    """One row for each token; in words, which tokens differ; and how far off each is in each module."""

    table: pl.DataFrame
    lines: list[str]
    where: str
    modules: list[tuple[str, Floats]]
    held: list[Ints | None]
    """For each row of the pair table the tokens that it holds."""

    def write(self, folder: Path, stem: str, formats: Sequence[str]) -> list[Path]:
        """Write the table, and the page where a page was asked for; return the files."""
        path = folder / stem.replace("compare_result", "compare_tokens", 1)
        files = []
        with Staging() as staging:
            for name in dict.fromkeys(name if name in ("parquet", "html") else "csv" for name in formats):
                file = path.with_name(f"{path.name}.{name}")
                temporary = staging.file(file)
                if name == "html":
                    _fill_page(self, temporary)
                else:
                    fill_table(name, self.table, temporary)
                files.append(file)
        return files


# A token differs where its error is so many times what noise explains in the whole tensor.
_BEYOND = 12.0
_LEAST = 1e-12


def token_findings(compared: Compared) -> TokenFindings:
    """Find out which tokens differ, in which module each of them does first, and say so."""
    tokens, pairs, judged, first = compared.tokens, compared.evidence.pairs, compared.judged, compared.first
    roles, ops, names = pairs["t_role"].to_list(), pairs["t_op"].to_list(), pairs["t_name"].to_list()
    begun = len(compared.calls)
    if first is not None:
        begun = ops[first.order] if judged.flow is None else int(judged.flow.start[ops[first.order]])
    noise = _noise_before(compared, begun)
    where, error, reached = _reach(compared, noise)
    differs = np.zeros(tokens.count, dtype=bool)
    module: list[str | None] = [None] * tokens.count
    modules: list[tuple[str, Floats]] = []
    result = np.full(tokens.count, np.nan)
    for index, held in enumerate(compared.held):
        call = compared.calls[ops[index]]
        if held is None or roles[index] != OUTPUT or not call.is_module or call.direction != FORWARD:
            continue
        if compared.cached[index]:  # what a call makes of the cache is no result of the tokens in it
            continue
        errors = _token_errors(compared, index)
        if errors is None:
            continue
        result = np.where(np.isnan(errors), result, errors)
        # What the first divergence has not reached shows the noise this far down; attention may spread it to some.
        healthy = errors[~reached & np.isfinite(errors)]
        usual = max(noise, float(np.quantile(healthy, 0.1))) if len(healthy) and reached.any() else noise
        times = errors / (_BEYOND * usual)
        beyond = (times > 1) & (judged.state[index] == DIFFERS) & (ops[index] >= begun)
        # What is within noise as a whole is so in each token, which scatter more than their sum does.
        modules.append((names[index], times if beyond.any() else np.minimum(times, 0.99)))
        for token in np.flatnonzero(beyond & ~differs).tolist():
            module[token] = call.body
        differs |= beyond
    lines = [tokens.words(), *tokens.notes]
    if compared.evidence.metrics is None:
        lines.append("which tokens differ is not known: only statistics were recorded; task tensor keeps the values")
    else:
        nothing = f"all {tokens.count:,} agree within noise" if first is None else "no single token stands out"
        lines.append(f"by token: {where or nothing}")
    return TokenFindings(_table(tokens, differs, module, error, result), lines, where, modules, compared.held)


def _noise_before(compared: Compared, begun: int) -> float:
    """The error that rounding explains before the first divergence: later ones are explained by that itself.

    It is what rounding was seen to do there, and what it usually may: a few calls could lose any number of digits, like
    those that overwrite memory or cancel large values, and have not.
    """
    noise, flow = compared.judged.noise, compared.judged.flow
    if noise is None or flow is None:
        return _LEAST
    before = compared.evidence.pairs["t_op"].fill_null(begun).to_numpy() < begun
    known = before & np.isfinite(noise.expected)
    usual = float(np.quantile(noise.expected[known], 0.95)) if known.any() else 0.0
    tame = known & (noise.expected <= _TAME * usual) & np.isfinite(compared.judged.error)
    # Nor is it what fresh memory happened to hold before it was written to.
    tame &= ~ignored_rows(flow, noise.error)
    seen = compared.judged.error[tame & (compared.judged.state != DIFFERS)]
    grain = noise.grain[np.isfinite(noise.grain)]
    return max(_LEAST, usual, float(seen.max(initial=0.0)), float(grain.max(initial=0.0)))


def _reach(compared: Compared, noise: float) -> tuple[str, Floats, NDArray[np.bool_]]:
    """Which tokens the first divergence has reached: in words, the error of each, and whether it has."""
    first, start = compared.first, _start_of(compared)
    errors = None if start is None else _token_errors(compared, start)
    if errors is None:
        errors = np.full(compared.tokens.count, np.nan)
    reached = np.nan_to_num(errors) > _BEYOND * noise
    where = compared.tokens.describe(reached)
    if first is not None and compared.cached[first.order]:
        kept = _token_errors(compared, first.order)
        inside = "" if kept is None else compared.tokens.describe(np.nan_to_num(kept) > _BEYOND * noise)
        places = (inside and f"in the cache {inside}", where and f"the result {where}")
        where = "; ".join(part for part in places if part)
    return where, errors, reached


def _table(
    tokens: TokenPairs, differs: NDArray[np.bool_], module: list[str | None], error: Floats, result: Floats
) -> pl.DataFrame:
    columns: dict[str, Any] = {"sequence": tokens.sequence, "token": tokens.index}
    if not tokens.how.startswith("content"):
        columns["id"] = tokens.ids
    for side, positions in zip(("target", "golden"), tokens.positions, strict=True):
        columns[f"{side}_position"] = pl.Series(positions.tolist()).replace({NONE: None})
    for side, places in zip(("target", "golden"), tokens.places, strict=True):
        columns |= {f"{side}_{what}": place for what, place in zip(("call", "row", "column"), places.T, strict=True)}
    columns |= {"differs": differs, "first_module": pl.Series(module, dtype=pl.String)}
    return pl.DataFrame(columns | {"error": error, "result_error": result})


def _start_of(compared: Compared) -> int | None:
    """The row that shows best which tokens the first divergence has reached: its own, else an output of its call."""
    first = compared.first
    if first is None:
        return None
    if compared.held[first.order] is not None and not compared.cached[first.order]:
        return first.order
    pairs = compared.evidence.pairs
    ops, roles = pairs["t_op"].to_list(), pairs["t_role"].to_list()
    later = (
        index
        for index, held in enumerate(compared.held)
        if held is not None and roles[index] == OUTPUT and ops[index] >= ops[first.order] and not compared.cached[index]
    )
    return next(later, None)


def _token_errors(compared: Compared, row: int) -> Floats | None:
    """The relative error of each token in one pair of tensors; NaN where that does not hold it."""
    pairs, held = compared.evidence.pairs, compared.held[row]
    files = pairs["t_file"][row], pairs["g_file"][row]
    if held is None or None in files:
        return None
    try:
        sides = zip(compared.folders, files, strict=True)
        target, golden = (open_named(folder, file, AT_ONCE) for folder, file in sides)
    except (TwinProbeError, OSError):
        return None
    if COMPLEX & {target.dtype, golden.dtype} or target.shape != golden.shape:
        return None
    count, features = target.shape
    gaps, norms = np.zeros(count), np.zeros(count)
    step = max(1, AT_ONCE // (8 * max(features, 1)))
    for start in range(0, count, step):
        span = slice(start * features, min(start + step, count) * features)
        targets, goldens = (
            numbers(side.dtype, side.data[span], FLOAT64).reshape(-1, features) for side in (target, golden)
        )
        with np.errstate(invalid="ignore", over="ignore"):
            gaps[start : start + step] = np.sqrt(np.square(targets - goldens).sum(axis=1))
            norms[start : start + step] = np.sqrt(np.square(goldens).sum(axis=1))
    usual = float(np.sqrt(np.mean(np.square(norms[np.isfinite(norms)])))) if np.isfinite(norms).any() else 0.0
    with np.errstate(invalid="ignore", divide="ignore"):
        errors = np.where(gaps == 0, 0.0, gaps / np.maximum(norms, 0.1 * usual))
    errors[np.isnan(gaps)] = np.inf
    spread = np.full(compared.tokens.count, np.nan)
    spread[held] = errors
    return spread


def _fill_page(findings: TokenFindings, path: Path) -> None:
    table, lines, modules = findings.table, findings.lines, findings.modules
    differing = table.filter(table["differs"])
    state = "first" if differing.height else "first good"
    body = [panel("Token by token", "".join(f"<p>{safe(line)}</p>" for line in lines), state)]
    if modules:
        key = ("within noise", "up to 10 times", "up to 100 times", "up to 10,000 times", "more")
        marks = "".join(
            f'<span><svg width="12" height="12"><rect class="h{level}" width="12" height="12"/></svg> {text}</span>'
            for level, text in enumerate(key)
        )
        hint = '<p class="hint">A row for each module in the order of the calls, a column for each token.</p>'
        picture = f'<div class="scroll" tabindex="0">{_strips(table, modules)}</div>'
        body.append(
            panel("Error of each token, in multiples of the noise", f'{hint}<p class="key">{marks}</p>{picture}')
        )
    if differing.height:
        body.append(panel("Tokens that differ", html_table(differing)))
    body.append(panel("All tokens", html_table(table)))
    badges = (f"{table.height:,} tokens", f"{differing.height:,} differ")
    fill_static(path, f"TwinProbe: {badges[0]}, {badges[1]}", badges, "\n".join(body), _STYLE)


def _strips(table: pl.DataFrame, modules: Sequence[tuple[str, Floats]]) -> str:
    """A strip of rectangles for each module: neighbours of one colour are one rectangle."""
    if len(modules) > _MOST_MODULES:  # the outer ones say enough
        depth = sorted(name.count(".") for name, _ in modules)[_MOST_MODULES]
        modules = [module for module in modules if module[0].count(".") < depth][:_MOST_MODULES]
    tokens = table.height
    columns = min(tokens, _MOST_COLUMNS)
    edges = np.linspace(0, tokens, columns + 1).astype(np.int64)
    # A layer's number and what follows tell modules apart; what stands before would push the picture off a phone.
    names = [re.sub(r"^.*?\.(?=\d+\.)", "…", _bare(name)) for name, _ in modules]
    left = 6.8 * max(map(len, names), default=0) + 14
    cell = max(3.0, min(22.0, 900 / max(columns, 1)))
    high = 15
    width, height = left + columns * cell + 10, 34 + high * len(modules)
    drawn = [f'<svg width="{width:.0f}" height="{height}" role="img" aria-label="error of each token in each module">']
    sequence, index = table["sequence"].to_list(), table["token"].to_list()
    last = -1.0
    for column in range(columns):
        token = int(edges[column])
        begins = token == 0 or sequence[token] != sequence[int(edges[column - 1])]
        place = left + column * cell
        if begins or place - last > 60:
            label = f"{sequence[token]}:{index[token]}" if begins and sequence[-1] != sequence[0] else str(index[token])
            drawn.append(f'<text x="{place:.0f}" y="14">{label}</text>')
            last = place
    for number, (name, times) in enumerate(modules):
        y = 22 + high * number
        title = f"<title>{safe(_bare(name))}</title>"
        drawn.append(f'<text class="name" x="0" y="{y + 11}">{title}{safe(names[number])}</text>')
        worst = np.array(
            [np.nanmax(part) if np.isfinite(part).any() else np.nan for part in np.split(times, edges[1:-1])]
        )
        levels = np.where(np.isnan(worst), -1, np.digitize(worst, (1.0, 10.0, 100.0, 10_000.0)))
        starts = np.concatenate([[0], np.flatnonzero(np.diff(levels)) + 1, [columns]])
        for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            level = int(levels[start])
            kind = "h" if level < 0 else f"h{level}"
            drawn.append(
                f'<rect class="{kind}" x="{left + start * cell:.1f}" y="{y}" width="{(stop - start) * cell:.1f}" '
                f'height="{high - 2}"/>'
            )
    return "".join(drawn) + "</svg>"


def _bare(name: str) -> str:
    """``model.layers.0.mlp`` of a module's output."""
    return re.sub(r"^(Module|Cell)\.|\.\w+\.forward\.\d+\.output(\.0)?", "", name)


# Log-probabilities of two engines.


@dataclass
class LogprobReport:
    """What is written about two engines' log-probabilities; the last four fields are those of the worst sequence."""

    table: pl.DataFrame
    sequences: pl.DataFrame
    lines: list[str]
    limit: float
    ids: Ints
    target: Floats
    golden: Floats
    mask: NDArray[np.bool_]

    def write(self, folder: Path, stem: str) -> list[Path]:
        """Write the tables of steps and of sequences, and the page; return the files."""
        files = [folder / f"{stem}.csv", folder / f"{stem}_sequences.csv", folder / f"{stem}.html"]
        with Staging() as staging:
            for table, file in zip((self.table, self.sequences), files[:2], strict=True):
                fill_csv(table, staging.file(file))
            self._fill_page(staging.file(files[2]))
        return files

    def _fill_page(self, path: Path) -> None:
        beyond = float(self.table["share_beyond"][-1])
        steps = self.table.head(self.table.height - 1)
        body = [panel("Log-probabilities of the same tokens", "".join(f"<p>{safe(line)}</p>" for line in self.lines),
                      "first" if beyond else "first good")]  # fmt: skip
        if steps.height > 1:
            places = np.array([float(step) for step in steps["step"].to_list()])
            kinds = (("mean size of the difference", "t", "mean_abs"), ("largest", "m", "max_abs"))
            series = [(name, kind, places, steps[column].to_numpy()) for name, kind, column in kinds]
            body.append(panel("Difference over steps", curves(series, "step", limit=self.limit, logarithmic=True)))
            shares = [("share of tokens beyond the limit", "m", places, steps["share_beyond"].to_numpy())]
            body.append(panel(f"Tokens beyond {self.limit:g} over steps", curves(shares, "step")))
        tokens = np.flatnonzero(self.mask)
        sides = [(name, kind, tokens.astype(np.float64), values[tokens])
                 for name, kind, values in (("target", "t", self.target), ("golden", "m", self.golden))]  # fmt: skip
        body.append(panel("The worst sequence, token by token", curves(sides, "token")))
        with np.errstate(invalid="ignore"):
            gap = [
                ("size of the difference", "m", tokens.astype(np.float64), np.abs(self.target - self.golden)[tokens])
            ]
        body.append(panel("Its difference", curves(gap, "token", limit=self.limit)))
        body.append(panel("Steps", html_table(self.table)))
        body.append(panel("Sequences, the worst first", html_table(self.sequences)))
        total = self.table.row(-1, named=True)
        badges = (f"{total['tokens']:,} tokens", f"{beyond:.2%} beyond {self.limit:g}")
        fill_static(path, f"TwinProbe: log-probabilities of {badges[0]}, {badges[1]}", badges, "\n".join(body), _STYLE)


_WIDE, _HIGH, _LEFT, _BOTTOM = 760, 240, 84, 54


def curves(
    series: Sequence[tuple[str, str, Floats, Floats]],
    across: str,
    *,
    limit: float | None = None,
    logarithmic: bool = False,
) -> str:
    """Curves as an SVG: (name, class, places, values) each; what is not finite is left out, and a limit is a line."""
    values = np.concatenate([line[3] for line in series] + ([np.array([limit])] if limit is not None else []))
    values = values[np.isfinite(values) & ((values > 0) | (not logarithmic))]
    places = np.concatenate([line[2] for line in series])
    if not len(values) or not len(places):
        return '<p class="hint">nothing to draw</p>'
    scale = np.log10 if logarithmic else np.asarray
    low, high = float(scale(values.min())), float(scale(values.max()))
    if not logarithmic and low > 0:
        low = 0.0
    span = (high - low) or 1.0
    first, last = float(places.min()), float(places.max())

    def point(place: float, value: float) -> tuple[float, float]:
        x = _LEFT + (place - first) / ((last - first) or 1.0) * (_WIDE - _LEFT - 14)
        return x, 12 + (1 - (float(scale(value)) - low) / span) * (_HIGH - _BOTTOM - 12)

    size = f'width="100%" viewBox="0 0 {_WIDE} {_HIGH}"'
    drawn = [f'<svg class="curves" {size} role="img" aria-label="{safe(series[0][0])}">']
    for level in np.linspace(low, high, 5).tolist():
        y = 12 + (1 - (level - low) / span) * (_HIGH - _BOTTOM - 12)
        label = f"{10**level if logarithmic else level:.3g}"
        drawn.append(f'<path class="axis" d="M{_LEFT} {y:.1f}H{_WIDE - 14}"/>')
        drawn.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for place in dict.fromkeys(np.linspace(first, last, 9).round().tolist()):
        drawn.append(
            f'<text x="{point(place, values[0])[0]:.1f}" y="{_HIGH - 30}" text-anchor="middle">{place:.0f}</text>'
        )
    drawn.append(f'<text x="{_WIDE / 2}" y="{_HIGH - 6}" text-anchor="middle">{safe(across)}</text>')
    if limit is not None:
        y = point(first, limit)[1]
        drawn.append(f'<path class="lim" d="M{_LEFT} {y:.1f}H{_WIDE - 14}"/>')
    for _, kind, where, line in series:
        good = np.isfinite(line) & ((line > 0) | (not logarithmic))
        points = [point(place, value) for place, value in zip(where[good].tolist(), line[good].tolist(), strict=True)]
        drawn.append(f'<polyline class="{kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>')
        if len(points) <= 60:
            drawn += [f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="2.4"/>' for x, y in points]
    names = [f'<span><svg width="18" height="8"><path class="{kind}" d="M0 4H18"/></svg> {safe(name)}</span>'
             for name, kind, *_ in series]  # fmt: skip
    if limit is not None:
        names.append(f'<span><svg width="18" height="8"><path class="lim" d="M0 4H18"/></svg> limit {limit:g}</span>')
    return f'<p class="key">{"".join(names)}</p>{"".join(drawn)}</svg>'
