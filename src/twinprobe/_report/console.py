"""The summary of a comparison on a terminal, and as one JSON object for machines."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from twinprobe._judge.summary import Summary, unread_rows

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console
    from rich.text import Text

    from twinprobe._judge.summary import Divergence, Result

# Names and values from a dump are foreign text: how they are shown without being obeyed.

# Control characters and escape sequences, marks that turn the reading direction, line separators, lone surrogates.
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
# The same in the terms of polars, whose texts hold no surrogates; cells keep their line breaks and tabs.
UNSEEN_IN_CELL = (
    r"[\x00-\x08\x0b-\x1f\x7f-\x{9f}\x{61c}\x{200b}-\x{200f}\x{2028}-\x{202e}\x{2066}-\x{2069}\x{feff}"
    r"\x{fff9}-\x{fffb}]"
)
_LONGEST = 5000  # longer than any name
_FRAME = re.compile(r"^File (.+?), line (\d+), in ([^,]+),\s*")


def visible(text: str, *, keep_newlines: bool = False) -> str:
    """The text with every character that steers a terminal or a page spelled out, e.g. ``\\x1b``; a huge one is cut."""
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]} ... and {len(text) - _LONGEST:,} more characters"
    return _UNSEEN.sub(lambda match: match[0] if match[0] == "\n" and keep_newlines else _spell(match), text)


def place_in_code(frame: str) -> str:
    """A frame as path:line, which terminals and editors turn into a link."""
    return _FRAME.sub(r"\1:\2, in \3: ", frame)


def say(text: str) -> None:
    """Print one line."""
    from rich.console import Console

    Console().print(visible(text), soft_wrap=True, highlight=False, markup=False)


def plain_text(show: Callable[[Console], object]) -> str:
    """What is printed to a terminal, without colours."""
    from rich.console import Console

    console = Console(width=120, no_color=True, force_terminal=False, highlight=False)
    with console.capture() as captured:
        show(console)
    return captured.get().rstrip()


def visible_cells(column: pl.Series) -> pl.Series:
    """The column with every such character of its texts spelled out, line breaks and tabs excepted; none is cut."""
    texts = column.filter(column.str.contains(UNSEEN_IN_CELL)).unique()
    spelled = [_UNSEEN.sub(lambda match: match[0] if match[0] in "\n\t" else _spell(match), text) for text in texts]
    return column.replace(texts, spelled) if len(texts) else column


def _spell(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def json_bytes(value: Any) -> bytes:
    """Strict JSON: numbers that it cannot hold become texts, characters that UTF-8 cannot hold are spelled out."""
    import msgspec

    return msgspec.json.encode(_strict(value))


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {_strict(key): _strict(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return value


_SIGNS = {"pass": ("✔", "+", "green"), "warning": ("▲", "!", "yellow"), "error": ("✖", "x", "bold red")}
_INDENT = "  "


def print_summary(summary: Summary, console: Console) -> None:
    """Print what was compared, whether its results agree, the first divergence, the counts and the files."""
    plain = console.options.ascii_only
    for line in _lines(summary, plain=plain):
        if plain:
            line.plain = line.plain.encode("ascii", "backslashreplace").decode()
        # Never wrapped: a name or a path must survive being copied or searched for.
        console.print(line, soft_wrap=True, highlight=False)


def _lines(summary: Summary, *, plain: bool) -> Iterator[Text]:
    dot = " - " if plain else " · "
    title = dot.join(part for part in (f"{summary.mode} compare", summary.rank) if part)
    yield _text(title, "bold")
    for who, side in (("target", summary.target), ("golden", summary.golden)):
        facts = [side.framework, side.task, side.level, f"{side.ops:,} calls", f"{side.rows:,} values"]
        line = _text(f"{_INDENT}{who}  ", "dim").append(visible(side.path))
        yield line.append(visible(dot + dot.join(fact for fact in facts if fact)), "dim")
    yield _text("")
    for result in summary.results:
        yield _result(result, plain=plain)
    if summary.results:
        yield _text("")
    if summary.first:
        yield from _first(summary.first, plain=plain)
        if summary.others:
            yield _text(f"{_INDENT}other divergences", "bold")
        for other in summary.others:
            yield _text(f"{_INDENT}{_INDENT}").append(visible(other.op), "bold").append(visible(f"  {other.sentence}"))
    else:
        yield from _no_divergence(summary)
    for note in summary.notes:
        yield _text("note: ", "cyan").append(visible(note))
    yield _text("")
    counts = [f"{summary.rows:,} rows", f"{summary.matched:,} matched", f"{summary.target_only:,} only in target"]
    counts.append(f"{summary.golden_only:,} only in golden")
    counts += [f"{summary.unread:,} unreadable"] if summary.unread else []
    yield _text(_INDENT + dot.join(counts))
    line = _text(_INDENT)
    for verdict, (sign, plain_sign, style) in _SIGNS.items():
        count = summary.verdicts.get(verdict, 0)
        line.append(f"{plain_sign if plain else sign} {count:,} {verdict}   ", style if count else "dim")
    line.rstrip()
    yield line
    if summary.files:
        yield _text("")
        yield _text("written to", "bold")
        for file in summary.files:
            yield _text(_INDENT).append(visible(file), "cyan")


def _result(result: Result, *, plain: bool) -> Text:
    """One line for the loss, the outputs, the gradients or the updates: do they agree, and by how much."""
    sign, plain_sign, style = _SIGNS["pass" if result.agrees else "error"]
    line = _text(_INDENT).append(f"{plain_sign if plain else sign} ", style)
    line.append(f"{result.name} {'agree' if result.name != 'loss' else 'agrees'}" if result.agrees else
                f"{result.name} {'differ' if result.name != 'loss' else 'differs'}")  # fmt: skip
    count = f", {result.differing:,} of {result.values:,} values" if result.differing and result.values > 1 else ""
    worst = f"worst {result.worst:.2%}" if result.worst >= 1e-4 else f"worst {result.worst:.1e}"
    where = f" at {visible(result.where)}" if result.worst and result.values > 1 else ""
    if not result.worst:  # against nothing but zeros no error has a size
        return line.append(" (equal)" if result.agrees else f" (golden is zero at {visible(result.where)})", "dim")
    return line.append(f" ({worst}, {result.worst_eps:.3g} eps{where}{count})", "dim")


def _no_divergence(summary: Summary) -> Iterator[Text]:
    if summary.unread:
        words = f"No divergence seen, but {unread_rows(summary.unread)}: a difference there may have gone unnoticed."
        yield _text(words, "yellow")
    elif any(not result.agrees for result in summary.results):
        names = [[result.name for result in summary.results if result.agrees == agrees] for agrees in (False, True)]
        others = ", and no single call stands out: small errors grow, or a choice flips; --noise shows how far"
        few = all(2 * result.differing < result.values for result in summary.results if not result.agrees)
        if names[1]:
            others = f", without effect on {', '.join(names[1])}"
        elif few:
            others = " in part, without effect on the rest: padding, or values that nothing reads"
        verb = "differs" if names[0] == ["loss"] else "differ"
        yield _text(f"No first divergence: {' and '.join(names[0])} {verb}{others}.", "yellow")
    elif not summary.verdicts.get("error") and not summary.verdicts.get("warning"):
        yield _text("No divergence: every row passes.", "green")
    elif summary.results:
        one_sided = summary.target_only + summary.golden_only
        if one_sided:
            rest = f"{one_sided:,} of {summary.rows:,} rows are in one run only"
            style = "green" if one_sided < summary.matched else "yellow"
            yield _text(f"The runs agree within noise where both have values; {rest}.", style)
        else:
            words = "The runs agree within noise. Differences without effect are listed in the result files."
            yield _text(words, "green")
    else:
        yield _text(
            "No first divergence: no output differs whose inputs agree. The result files list the rest.", "yellow"
        )


def _text(content: str, style: str = "") -> Text:
    from rich.text import Text

    return Text().append(visible(content), style)


def _first(first: Divergence, *, plain: bool) -> Iterator[Text]:
    origin = f", {visible(first.origin)}" if first.origin else ""
    place = f"row {first.order + 1:,}" if first.order >= 0 else "in optimizer.json"
    yield _text("first divergence", "bold red").append(f" ({place}{origin})", "dim")
    inside = f"  in {first.module}" if first.module and first.module not in first.op else ""
    yield _text(_INDENT).append(visible(first.op), "bold").append(visible(inside))
    yield _text(_INDENT + first.sentence)
    if first.stack_line:
        yield _text(_INDENT + "at ", "dim").append(visible(place_in_code(first.stack_line)))
    yield _text(f"{_INDENT}value   ", "dim").append(visible(first.row))
    if first.golden_row not in ("", first.row):
        yield _text(f"{_INDENT}golden  ", "dim").append(visible(first.golden_row))
    yield from _values(first, missing="-" if plain else "–")


def _values(first: Divergence, missing: str) -> Iterator[Text]:
    """Both sides' values under each other's names, in aligned columns."""
    names = dict.fromkeys([*first.target_values, *first.golden_values])
    rows = [(name, first.target_values.get(name, missing), first.golden_values.get(name, missing)) for name in names]
    shown = [tuple(map(visible, row)) for row in (("", "target", "golden"), *rows)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for i, (name, target, golden) in enumerate(shown if rows else []):
        line = _text(f"{_INDENT}{name:{widths[0]}}  ", "dim")
        style = "dim" if i == 0 else ("bold" if target != golden else "")
        yield line.append(f"{target:{widths[1]}}  {golden}", style)


# Many ranks on the terminal: who is well, who is not, and where it began.

_MOST_ROWS = 64
_PARTS = re.compile(r"/(?:mode=\w+/)?step=\d+/rank=\d+/")


def print_ranks(summaries: Sequence[Summary], console: Console) -> None:
    """A table of rank by verdict, each with its first divergence (the worst ranks when there are many).

    The ranks of a parallel layout are one run: whether its results agree is told, and where it diverges.
    """
    from rich.markup import escape
    from rich.table import Table

    names = [summary.rank for summary in summaries]
    as_one = is_layout(names)
    title = f"{counted(names)} compared" + (", the ranks as one run" if as_one else "")
    table = Table(title=title, title_justify="left", header_style="bold")
    unread = any(summary.unread for summary in summaries)
    titles = ["rank", "rows", "matched", "pass", "warning", "error", "first divergence"]
    for title in [*titles[:3], *(["unreadable"] if unread else []), *titles[3:]]:
        table.add_column(title, justify="left" if title in ("rank", "first divergence") else "right", overflow="fold")
    shown = list(summaries)
    if len(shown) > _MOST_ROWS:
        shown.sort(key=lambda summary: (-summary.verdicts["error"], -summary.verdicts["warning"]))
    for summary in shown[:_MOST_ROWS]:
        counts = summary.verdicts
        table.add_row(
            escape(visible(summary.rank)), f"{summary.rows:,}", f"{summary.matched:,}",
            *([_coloured(summary.unread, "yellow")] if unread else []), f"{counts['pass']:,}",
            _coloured(counts["warning"], "yellow"), _coloured(counts["error"], "red"),
            escape(visible(summary.first.row)) if summary.first else "-",
        )  # fmt: skip
    console.print(table)
    if len(summaries) > _MOST_ROWS:
        console.print(f"... and {len(summaries) - _MOST_ROWS} more ranks")
    notes = list(dict.fromkeys(note for summary in summaries for note in summary.notes))
    for note in notes[:_MOST_ROWS]:
        console.print(f"[cyan]note:[/cyan] {escape(visible(note))}", soft_wrap=True)
    if len(notes) > _MOST_ROWS:
        console.print(f"... and {len(notes) - _MOST_ROWS} more notes: see the summary")
    if as_one:
        _print_findings(summaries, console)
    for folder in dict.fromkeys(_folder(path) for summary in summaries for path in summary.files):
        console.print(f"results in {escape(visible(folder))}", soft_wrap=True)


def _print_findings(summaries: Sequence[Summary], console: Console) -> None:
    """Do the results agree, at the first step that differs or at all of them, and the first divergence in full."""
    plain = console.options.ascii_only
    differing = next((summary for summary in summaries if summary.first is not None), None)
    step = differing.rank.rpartition("/")[0] if differing is not None else ""
    shown = [summary for summary in summaries if summary.rank.rpartition("/")[0] == step or not step]
    worst: dict[str, Result] = {}
    for summary in shown:
        for result in summary.results:
            known = worst.setdefault(result.name, result)
            if (not result.agrees, result.worst_eps) > (not known.agrees, known.worst_eps):
                worst[result.name] = result
    lines = [_text(""), *([_text(step, "bold")] if step else [])]
    lines += [_result(result, plain=plain) for result in worst.values()]
    if differing is not None and differing.first is not None:
        lines += [_text(""), *_first(differing.first, plain=plain)]
    for line in [*lines, _text("")]:
        console.print(line, soft_wrap=True, highlight=False)


def is_layout(names: Sequence[str]) -> bool:
    """Whether these are the results of a parallel layout, whose ranks are one run: its calls and its optimizers."""
    return all(name.rpartition("/")[2] in ("whole", "optimizer") for name in names)


def counted(names: Sequence[str]) -> str:
    """How many ranks, steps or both these are: step1/rank0 is a step and a rank."""
    parts = [[re.findall(rf"{what}\d+", name)[:1] for name in names] for what in ("step", "rank")]
    steps, ranks = (len({number for numbers in found for number in numbers}) for found in parts)
    if steps > 1 and ranks > 1:
        return f"{len(names):,} results ({ranks:,} ranks at {steps:,} steps)"
    return f"{steps:,} steps" if steps > 1 else f"{len(names):,} {'ranks' if ranks else 'results'}"


def _folder(path: str) -> str:
    """The folder that a person opens: of a part of a dataset, the dataset."""
    match = _PARTS.search(path)
    return path[: match.start()] if match else path.rpartition("/")[0] or "."


def _coloured(count: int, colour: str) -> str:
    return f"[{colour}]{count:,}[/{colour}]" if count else "0"


# A line per compared row, for those who watch a comparison go by.

_SHOWN = ("Cosine", "MaxAbsErr", "NormRelativeErr", "NPU MD5")


def log_rows(table: pl.DataFrame) -> None:
    """Write one line per row to standard error: name, counterpart, the leading metrics, verdict and reason."""
    metrics = [name for name in _SHOWN if name in table.columns]
    columns = ["NPU Name", "Bench Name", *metrics, "Result", "Reason"]
    for name, partner, *values, verdict, reason in table.select(columns).iter_rows():
        figures = " ".join(f"{title}={value}" for title, value in zip(metrics, values, strict=True))
        sys.stderr.write(visible(f"{name} <-> {partner} {figures} {verdict}: {reason}") + "\n")
