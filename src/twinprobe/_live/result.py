"""What auto_diff gives back: true when the models agree, and everything that was found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isnan
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinprobe._lazy import polars as pl
from twinprobe._live.findings import INJECTED, Finding, Findings, FirstDifference, differing
from twinprobe._report.console import json_bytes, plain_text, visible
from twinprobe._report.files import Staging, prepare_folder
from twinprobe._report.reports import fill_static, fill_table, safe, write_index
from twinprobe._runs.names import FORWARD, listed, parse_op
from twinprobe.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

FORMATS = ("csv", "json", "html", "xlsx", "parquet")
AGREES, DIFFERS, FIRST, UNSEEN = "agrees", "differs", "first", "not compared"
SIGNS = {AGREES: "✔", DIFFERS: "✖", FIRST: "➤", UNSEEN: "·"}
_PLAIN_SIGNS = {AGREES: "+", DIFFERS: "x", FIRST: ">", UNSEEN: "."}
MOST_LINES = 60


@dataclass
class Branch:
    """One call of a model."""

    name: str
    label: str
    mark: str
    children: list[Branch] = field(default_factory=list)

    def count(self) -> int:
        """How many calls there are from here on."""
        return 1 + sum(child.count() for child in self.children)

    @property
    def agrees(self) -> bool:
        """Whether nothing differs from here on."""
        return self.mark not in (DIFFERS, FIRST) and all(child.agrees for child in self.children)


@dataclass(frozen=True)
class Calls:
    """The calls of a model: all that its tree needs of a run, without the tensors."""

    names: list[str]
    parents: dict[str, str | None]


def call_tree(run: Calls, marks: Mapping[str, str]) -> list[Branch]:
    """The calls of a model inside one another, marked by name; functions are shown only where they differ."""
    branches: dict[str, Branch] = {}
    # In the order in which they began: those without values of their own too.
    for name in dict.fromkeys([*run.parents, *run.names]):
        op = parse_op(name)
        if op.direction != FORWARD:
            continue
        mark = marks.get(name, UNSEEN)
        if op.is_module or mark in (DIFFERS, FIRST):
            branches[name] = Branch(name, _label(name), mark)
    roots: list[Branch] = []
    for name, branch in branches.items():
        parent, seen = run.parents.get(name), {name}  # a recording may hold circles
        while parent is not None and parent not in branches and parent not in seen:
            seen.add(parent)
            parent = run.parents.get(parent)
        (branches[parent].children if parent in branches else roots).append(branch)
    return roots


def tree_lines(roots: list[Branch], *, plain: bool = False) -> list[tuple[str, str]]:
    """(line, mark) from top to bottom; in a long tree what agrees is folded."""
    total = sum(root.count() for root in roots)
    lines: list[tuple[str, str]] = []
    for root in roots:
        _grow(root, "", "", lines, fold=total > MOST_LINES, plain=plain)
    if len(lines) > MOST_LINES:
        first = next((place for place, (_, mark) in enumerate(lines) if mark == FIRST), 0)
        left = len(lines) - MOST_LINES
        begin = max(0, min(first - MOST_LINES // 2, left))
        lines = [*lines[begin : begin + MOST_LINES], (f"... {left} more lines", UNSEEN)]
    return lines


def _grow(branch: Branch, lead: str, next_lead: str, lines: list[tuple[str, str]], *, fold: bool, plain: bool) -> None:
    sign = (_PLAIN_SIGNS if plain else SIGNS)[branch.mark]
    folded = fold and branch.agrees and bool(branch.children)
    more = f"  ({branch.count() - 1} inside agree)" if folded else ""
    lines.append((f"{lead}{sign} {branch.label}{more}", branch.mark))
    if folded:
        return
    tee, corner, bar = ("|- ", "`- ", "|  ") if plain else ("├─ ", "└─ ", "│  ")
    for child in branch.children:
        last = child is branch.children[-1]
        _grow(
            child, next_lead + (corner if last else tee), next_lead + ("   " if last else bar), lines,
            fold=fold, plain=plain,
        )  # fmt: skip


def _label(name: str) -> str:
    op = parse_op(name)
    again = f" call {op.call + 1}" if op.call > 0 and op.is_module else ""
    if not op.is_module:
        return f"{op.body}() call {op.call + 1}"
    return f"{op.body} ({op.cls}){again}" if op.body else f"{op.cls}{again}"


@dataclass
class Result:
    """The result. ``bool(result)`` is true if the two models agree in everything that decides the verdict."""

    base: str
    raw: str
    found: list[Findings]
    first: FirstDifference | None
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

    agrees = aligned  # as other results call it

    @property
    def summary(self) -> str:
        """What ``show`` prints, without colours."""
        return plain_text(lambda console: print_result(self, console))

    @cached_property
    def findings(self) -> list[Finding]:
        """Every pair of tensors, step by step."""
        return [finding for part in self.found for finding in part]

    @cached_property
    def table(self) -> pl.DataFrame:
        """One row per pair of tensors, in the order of execution."""
        return table_of(self.findings)

    @cached_property
    def base_tree(self) -> list[Branch]:
        """The calls of the base model inside one another, with marks."""
        return self._tree(self.base_calls, "base")

    @cached_property
    def raw_tree(self) -> list[Branch]:
        """The calls of the raw model inside one another, with marks."""
        return self._tree(self.raw_calls, "raw")

    def _tree(self, calls: Calls, side: str) -> list[Branch]:
        """Marked by the step and phase of the first difference."""
        first = self.first
        own: dict[str, str] = {}  # by the call's own name: of all its tensors the worst counts
        for finding in self.findings:
            if first is None or (finding.step, finding.phase) == (first.step, first.phase):
                name = getattr(finding, side)
                own[name] = DIFFERS if finding.differs else own.get(name, AGREES)
        if first is not None:
            own[getattr(first, side)] = FIRST
        marks: dict[str, str] = {}
        for name in sorted(own, key=lambda name: (AGREES, DIFFERS, FIRST).index(own[name])):
            marks[parse_op(name).turned(FORWARD)] = own[name]
        return call_tree(calls, marks)

    @property
    def differences(self) -> list[Finding]:
        """The pairs that differ, in execution order."""
        return [finding for part in self.found for finding in differing(part)]

    def counts(self) -> dict[str, int]:
        """How many pairs were compared, how many differ, and how many of these decide the verdict."""
        differing = self.differences
        return {
            "compared": sum(map(len, self.found)),
            "differ": len(differing),
            "decide": sum(finding.decides for finding in differing),
        }

    @property
    def written_to(self) -> str:
        """Which model was written to, in words; empty if none was."""
        return f"copied from base {self.base} to raw {self.raw}" if self.weights_copied else ""

    def to_dict(self) -> dict[str, Any]:
        """The result without the table, as plain data."""
        shown = None if self.first is None else {**vars(self.first)}
        if shown is not None:
            del shown["findings"]
        return {
            "aligned": self.aligned, "base": self.base, "raw": self.raw, "steps": self.steps,
            "weights_copied": self.weights_copied, "counts": self.counts(), "first": shown, "notes": list(self.notes),
        }  # fmt: skip

    def save(self, folder: str | Path, formats: Sequence[str] = ("csv", "json", "html")) -> list[Path]:
        """Write the table as ``auto_diff.csv`` and so on into a folder; other files there stay as they are."""
        for name in formats:
            if name not in FORMATS:
                raise BadInput(f"unknown report format {name!r}", hint=f"known: {', '.join(FORMATS)}")
        place = prepare_folder(Path(folder))
        written = [place / f"{STEM}.{name}" for name in dict.fromkeys(formats)]
        with Staging() as staging:
            for path in written:
                _fill(path.suffix[1:], self, staging.file(path))
        write_index(place)
        self.files += written
        return written

    def show(self) -> None:
        """Print the report."""
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
        return f"<style>{_STYLE}</style>{_content(self, _MOST_ROWS)}"


_STYLES = {FIRST: "bold red", DIFFERS: "red"}
_FOLLOWING = 8


def print_result(result: Result, console: Console | None = None) -> None:
    """Print the report."""
    from rich.console import Console

    console = console or Console()
    plain = console.options.ascii_only
    for line in _lines(result, plain=plain):
        console.print(line, soft_wrap=True, highlight=False)
    if result.first is not None and (result.raw_tree or result.base_tree):
        console.print(_trees(result, plain=plain, width=console.width))


def _lines(result: Result, *, plain: bool) -> Iterator[Text]:
    counts = result.counts()
    compared = f"{counts['compared']:,} pairs of tensors"
    steps = f", {result.steps} steps" if result.steps > 1 else ""
    models = f"  {result.raw} against {result.base}: "
    if result.first is None:
        inner = f"; {counts['differ']} inner ones differ" if counts["differ"] else ", all agree"
        yield _text("aligned" if plain else "✔ aligned", "bold green", f"{models}{compared}{steps}{inner}")
    else:
        differ = f"{counts['differ']:,} of {compared} differ{steps}"
        yield _text("not aligned" if plain else "✖ not aligned", "bold red", models + differ)
        yield from _first(result.first)
        yield from _following(result.first, result.differences)
    if result.written_to:
        yield _text("weights: ", "cyan", result.written_to)
    for note in result.notes:
        yield _text("note: ", "cyan", note)
    for file in result.files:
        yield _text("written: ", "cyan", str(file))


def _first(first: FirstDifference) -> Iterator[Text]:
    step = f", step {first.step}" if first.step else ""
    yield _text(f"  first difference ({first.phase}{step})", "bold")
    for label, call, line in (("raw ", first.raw, first.raw_line), ("base", first.base, first.base_line)):
        yield _text(f"    {label}  ", "dim", call, "bold")
        if line:
            yield _text("          at ", "dim", line)
    yield _text("    ", "", first.why)
    for finding in first.findings[:4]:
        gap = finding.gap
        shown = {"max abs": (gap.max_abs, ".3g"), "max rel": (gap.max_rel, ".3g"), "cosine": (gap.cosine, ".6g")}
        numbers = [f"{title} {value:{form}}" for title, (value, form) in shown.items() if not isnan(value)]
        yield _text("    ", "", f"{finding.tensor}  ", "dim").append(", ".join([*numbers, gap.why]))


def _following(first: FirstDifference, differences: list[Finding]) -> Iterator[Text]:
    following = [finding for finding in differences if finding.decides and finding.raw != first.raw]
    names = list(dict.fromkeys(finding.raw for finding in following))
    if names:
        yield _text("  then differ  ", "dim", listed(names, _FOLLOWING))
    # What differs in a later phase (gradients, updated weights) follows from what differs in this one.
    begun = {finding.raw: finding for finding in reversed(following)
             if finding.cause == INJECTED and finding.phase == first.phase}  # fmt: skip
    for finding in [begun[name] for name in names if name in begun][:3]:
        yield _text("  also begins  ", "dim", f"{finding.raw} ({finding.phase}: {finding.gap.why})")


def _trees(result: Result, *, plain: bool, width: int) -> Any:
    """Both trees, side by side where there is room."""
    from rich.console import Group
    from rich.table import Table

    sides = [("raw", tree_lines(result.raw_tree, plain=plain)), ("base", tree_lines(result.base_tree, plain=plain))]
    columns = [_tree(title, lines) for title, lines in sides]
    if sum(max((len(line) for line, _ in lines), default=0) + 4 for _, lines in sides) > width:
        return Group(*columns)
    table = Table(box=None, padding=(0, 2, 0, 2), show_header=False)
    for _ in columns:
        table.add_column(no_wrap=True)
    table.add_row(*columns)
    return table


def _tree(title: str, lines: list[tuple[str, str]]) -> Text:
    text = _text(title, "bold")
    for line, mark in lines:
        text.append("\n" + visible(line), _STYLES.get(mark, ""))
    text.no_wrap, text.overflow = True, "ignore"
    return text


def _text(label: str, style: str, content: str = "", content_style: str = "") -> Text:
    """Words of our own, then what comes from the models, made harmless to a terminal."""
    from rich.text import Text

    text = Text().append(label, style)
    return text.append(visible(content), content_style) if content else text


STEM = "auto_diff"


def _fill(form: str, result: Result, path: Path) -> None:
    """Write the result in this format to exactly this path."""
    table = result.table
    if form == "json":
        path.write_bytes(json_bytes({**result.to_dict(), "rows": table.to_dicts()}))
    elif form == "html":
        content = f'<section class="panel">{_content(result, 100_000)}</section>'
        fill_static(path, f"TwinProbe: {result.raw} against {result.base}", ["auto_diff"], content, _STYLE)
    else:
        if form == "xlsx":  # workbooks colour their rows by this column
            verdicts = pl.col("verdict").replace_strict({"same": "pass", "differs": "error"}, default="warning")
            table = table.with_columns(verdicts.alias("Result"))
        fill_table(form, table, path)


def table_of(findings: list[Finding]) -> pl.DataFrame:
    """One row per pair of tensors."""
    named = {name: attrgetter(name) for name in ("phase", "raw", "base", "place", "tensor")}
    texts = {
        **named, "verdict": _verdict, "cause": attrgetter("cause"), "why": attrgetter("gap.why"),
        "raw shape": attrgetter("raw_shape"), "base shape": attrgetter("base_shape"), "dtype": attrgetter("dtype"),
    }  # fmt: skip
    measured = ("max abs", "mean abs", "max rel", "relative norm", "cosine")
    numbers = {name: attrgetter(f"gap.{name.replace(' ', '_')}") for name in measured}
    counts = {name: attrgetter(f"gap.{name}") for name in ("mismatched", "elements")}
    typed: list[tuple[dict[str, Any], Any]] = [
        ({"step": attrgetter("step")}, pl.Int64), (texts, pl.String), (numbers, pl.Float64), (counts, pl.Int64),
        ({"rule": attrgetter("rule")}, pl.String),
    ]  # fmt: skip
    return pl.DataFrame(
        [pl.Series(name, [*map(of, findings)], dtype=kind) for columns, kind in typed for name, of in columns.items()]
    )


def _verdict(finding: Finding) -> str:
    if not finding.differs:
        return "same"
    return "differs" if finding.decides else "differs (does not decide)"


# The result as HTML: a fragment for notebooks, and a page that loads nothing.

_MOST_ROWS = 50
_STYLE = (
    ".twinprobe{font:14px/1.4 system-ui,sans-serif}.twinprobe pre{line-height:1.3;overflow:auto}"
    ".twinprobe td,.twinprobe th{padding:2px 8px;text-align:left;border-bottom:1px solid #8884}"
    ".twinprobe .bad{color:var(--error,#c62828)}.twinprobe .good{color:var(--pass,#2e7d32)}"
    ".twinprobe .first{color:var(--error,#c62828);font-weight:bold}"
    ".twinprobe pre .first{display:inline;border:0}"
    ".twinprobe p{margin:0 0 8px;overflow-wrap:anywhere}.twinprobe p.first{display:block;border:0;font-size:16px}"
    ".twinprobe .scroll{overflow-x:auto}.twinprobe .trees>div{min-width:0}"
    ".twinprobe .trees{display:flex;gap:2em;flex-wrap:wrap}"
)


def _content(result: Result, most: int) -> str:
    counts = result.counts()
    verdict = "aligned" if result else "not aligned"
    parts = [
        '<div class="twinprobe">',
        f'<p><b class="{"good" if result else "bad"}">{verdict}</b>: {safe(result.raw)} against {safe(result.base)}, '
        f"{counts['compared']:,} pairs compared, {counts['differ']:,} differ</p>",
    ]
    first = result.first
    if first is not None:
        other = f" against {safe(first.base)}" if first.base != first.raw else ""
        parts.append(f'<p class="first">{safe(first.phase)}: {safe(first.raw)}{other}</p><p>{safe(first.why)}</p>')
        lines = ("raw", first.raw_line), ("base", first.base_line)
        parts += [f"<p>{who}: <code>{safe(line)}</code></p>" for who, line in lines if line]
        parts.append(
            f'<div class="trees">{_html_tree("raw", result.raw_tree)}{_html_tree("base", result.base_tree)}</div>'
        )
        parts.append(_rows(result.differences, most))
    if result.written_to:
        parts.append(f"<p>weights: {safe(result.written_to)}</p>")
    parts += [f"<p>note: {safe(note)}</p>" for note in result.notes]
    return "".join(parts) + "</div>"


def _html_tree(title: str, roots: list[Branch]) -> str:
    classes = {FIRST: "first", DIFFERS: "bad"}
    lines = (f'<span class="{classes.get(mark, "")}">{safe(line)}</span>' for line, mark in tree_lines(roots))
    return f'<div><b>{title}</b><pre tabindex="0">' + "\n".join(lines) + "</pre></div>"


def _rows(findings: list[Finding], most: int) -> str:
    columns: dict[str, Callable[[Finding], str]] = {
        **{name: attrgetter(name) for name in ("phase", "raw", "base")}, "what": attrgetter("tensor"),
        "cause": attrgetter("cause"), "max abs": lambda finding: _number(finding.gap.max_abs),
        "cosine": lambda finding: _number(finding.gap.cosine), "why": attrgetter("gap.why"),
    }  # fmt: skip
    head = "".join(f"<th>{name}</th>" for name in columns)
    cells = (
        "".join(f"<td>{safe(cell_of(finding))}</td>" for cell_of in columns.values()) for finding in findings[:most]
    )  # fmt: skip
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    left = f"<p>{len(findings) - most:,} more</p>" if len(findings) > most else ""
    return f'<div class="scroll" tabindex="0"><table><tr>{head}</tr>{body}</table></div>{left}'


def _number(value: float) -> str:
    return "" if isnan(value) else f"{value:.4g}"
