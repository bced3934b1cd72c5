"""The reports of one comparison in every format, pages that load nothing, and the index of a folder of results."""

from __future__ import annotations

import ast
import base64
import hashlib
import html
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
import numpy as np

from twinprobe._lazy import polars as pl
from twinprobe._report.console import json_bytes, visible
from twinprobe._report.files import Staging, replacing
from twinprobe._report.tables import (
    DATASET,
    RELATIVE_ERROR,
    STACK,
    STATISTICS,
    as_texts,
    csv_parts,
    fill_csv,
    fill_parquet,
)
from twinprobe._runs.sketches import SUMMARIES
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER
from twinprobe._runs.whole_files import remote
from twinprobe.errors import BadInput

if TYPE_CHECKING:
    import polars as pl

    from twinprobe._judge.summary import Summary


# All formats, written together or not at all.

FORMATS = ("xlsx", "csv", "parquet", "json", "html")


def check_formats(formats: Sequence[str]) -> tuple[str, ...]:
    """The formats asked for, each once, in order; an unknown one is an error."""
    for name in formats:
        if name not in FORMATS:
            raise BadInput(f"there is no report format {name!r}", hint=f"known formats: {', '.join(FORMATS)}")
    if not formats:
        raise BadInput("no report format is given", hint=f"known formats: {', '.join(FORMATS)}")
    return tuple(dict.fromkeys(formats))


def write_reports(table: pl.DataFrame, summary: Summary, out: Path, stem: str, formats: Sequence[str]) -> list[Path]:
    """Write a result table into a prepared folder in every format asked for; the files in the order of ``formats``.

    A failure of one (a full disk, say) leaves none under its final name.
    """
    wanted = check_formats(formats)
    files: list[Path] = []
    with Staging() as staging:
        for name in wanted:
            path = out / f"{stem}.{name}"
            for part, rows in csv_parts(table, path) if name == "csv" else [(path, table)]:
                temporary = staging.file(part)
                if name == "json":
                    fill_json(rows, summary, temporary)
                elif name == "html":
                    fill_html(rows, summary, temporary)
                else:
                    fill_table(name, rows, temporary)
                files.append(part)
    return files


def fill_table(form: str, table: pl.DataFrame, path: Path) -> None:
    """Write a table as csv, parquet or xlsx to exactly this path."""
    if form == "xlsx":
        from twinprobe._report.xlsx import fill_xlsx

        fill_xlsx(table, path)
    else:
        (fill_csv if form == "csv" else fill_parquet)(table, path)


_CHUNK = 16384


def fill_json(table: pl.DataFrame, summary: Summary, path: Path) -> None:
    """Write json to exactly this path. All values are texts, as in csv; a missing relative error is null."""
    texts = table.with_columns(as_texts(table[RELATIVE_ERROR]))
    with path.open("wb") as file:
        file.write(b'{"summary":' + json_bytes(summary.to_dict()))
        file.write(b',\n"columns":' + json_bytes(table.columns) + b',\n"rows":[\n')
        for start in range(0, table.height, _CHUNK):
            lines = io.BytesIO()
            texts.slice(start, _CHUNK).write_ndjson(lines)
            # One object a line, and a line break inside a text is escaped: each of these ends a row.
            rows = lines.getvalue().rstrip(b"\n").replace(b"\n", b",\n")
            file.write(rows if start == 0 else b",\n" + rows)
        file.write(b"\n]}\n")


# The result table packed for the html report: each text as seldom as can be, in a form that stays simple to read.
#
# A column becomes one of: ``all`` (one text for every row), ``values`` and ``codes`` (distinct texts and each row's
# place among them), ``like`` (the same as an earlier column but for some rows), ``texts`` (as it is), ``numbers``.
# Names are cut in two, the call and its input or output, which repeat much more often than whole names.

# More than a browser shows without strain. Errors and warnings are kept first.
ROWS_PER_PAGE = 200_000
_NAME = "NPU Name"
_CALL = (
    r"^(.+?\.(?:forward|backward)(?:\.\d+)?)\.(?:input|kwargs|output|parameters)\.|^(.+\.parameters_grad(?:\.\d+)?)\."
)
_NO_STACK = "N/A"
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)


def packed_table(table: pl.DataFrame, *, rows_per_page: int = ROWS_PER_PAGE) -> dict[str, Any]:
    """All that the page needs to know of the table, as plain lists and dicts."""
    order: pl.Series | None = None
    if table.height > rows_per_page:
        rows = pl.DataFrame({"row": np.arange(table.height, dtype=np.uint32), "passes": table["Result"] == "pass"})
        order = rows.sort("passes", maintain_order=True).head(rows_per_page)["row"].sort()
        table = table[order]
    calls = _calls(table[_NAME])
    columns: list[dict[str, Any]] = []
    for name in table.columns:
        if name != STACK:
            columns.append({"name": name, **_packed_column(table, name, calls, [column["name"] for column in columns])})
    return {
        "rows": table.height,
        "columns": columns,
        "stacks": _stacks(table[STACK], calls) if STACK in table.columns else None,
        "order": order.to_list() if order is not None else None,
    }


def _calls(names: pl.Series) -> pl.Series:
    """The call that each row belongs to, with its dot, so that a name is call plus rest."""
    name = pl.col("name")
    call = pl.coalesce(name.str.extract(_CALL, 1), name.str.extract(_CALL, 2))
    return names.alias("name").to_frame().select(call.fill_null(name)).to_series()


def _packed_column(table: pl.DataFrame, name: str, calls: pl.Series, earlier: list[str]) -> dict[str, Any]:
    column = table[name]
    if name == RELATIVE_ERROR or column.dtype.is_float():
        # JSON has no infinity: it is written as text.
        return {"numbers": [x if x is None or math.isfinite(x) else repr(x) for x in column.to_list()]}
    if name == _NAME:
        heads, head = _distinct(calls)
        rest = pl.col("name").str.slice(pl.col("call").str.len_chars())
        rests = column.to_frame("name").with_columns(calls.alias("call")).select(rest).to_series()
        values, codes = _distinct(rests)
        return {"heads": heads, "head": head, "values": values, "codes": codes}
    partner = name.replace("Bench ", "NPU ").replace("BENCH ", "NPU ")
    if partner != name and partner in earlier:
        differs = column != table[partner]
        if differs.sum() < table.height / 2:
            return {
                "like": earlier.index(partner),
                "at": differs.arg_true().to_list(),
                "texts": column.filter(differs).to_list(),
            }
    distinct = column.n_unique()
    if distinct == 1:
        return {"all": column[0]}
    if distinct > table.height / 2:
        return {"texts": column.to_list()}
    values, codes = _distinct(column)
    return {"values": values, "codes": codes}


def _distinct(column: pl.Series) -> tuple[list[str], list[int]]:
    values = column.unique(maintain_order=True)
    places = pl.Series(range(len(values)), dtype=pl.UInt32)
    return values.to_list(), column.replace_strict(values, places, return_dtype=pl.UInt32).to_list()


def _stacks(stacks: pl.Series, calls: pl.Series) -> dict[str, Any]:
    """The stack of each row's call; the table shows it on the call's first row only."""
    frame = pl.DataFrame({"stack": stacks.replace({_NO_STACK: ""}), "call": calls})
    # Rows of one call stand together; the same call may come again only if it is another one in fact.
    spread = frame.with_columns(run=pl.col("call").rle_id()).select(pl.col("stack").first().over("run")).to_series()
    texts, codes = _distinct(spread)
    frames: dict[str, int] = {}
    lines = []
    for text in texts:
        # A stack stands in the table as Python writes a list of texts; its lines stay quoted here.
        quoted = (_QUOTED.findall(text) if text.startswith("[") else None) or ([text] if text else [])
        lines.append([frames.setdefault(line, len(frames)) for line in quoted])
    return {"frames": list(frames), "stacks": lines, "codes": codes}


# Pages that load nothing and run only their own script, whatever text gets into them.

# U+200B to U+200F, U+2028 to U+202E, U+2066 to U+2069, U+061C, U+FEFF and U+007F to U+009F as UTF-8
_MARKS = re.compile(rb"\xe2\x80[\x8b-\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]|\xd8\x9c|\xef\xbb\xbf|\x7f|\xc2[\x80-\x9f]")
_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
"""


# Modules of the report that the viewer uses, too: there as they are, here as a part of the one script.
SHARED = Path(__file__).with_name("html_assets") / "shared"
_EXPORT = re.compile(r"^export (?=(?:async )?function|class|const|let)", re.MULTILINE)


def asset(name: str) -> str:
    """The text of a file that comes with the package."""
    text = (resources.files("twinprobe._report") / "html_assets" / name).read_text(encoding="utf-8")
    return _EXPORT.sub("", text) if name.startswith("shared/") else text


def fill(path: Path, body: str, *, title: str, style: str = "", script: str = "", data: Any = None) -> None:
    """Write a page to exactly this path. ``body`` must be safe in HTML; ``title`` and ``data`` may hold any text."""
    # "<" inside the data could end its element, and marks that turn the reading direction mislead whoever reads the
    # file itself; as JSON they may be written in another way. The page spells them out where it shows them.
    encoded = msgspec.json.encode(data).replace(b"<", b"\\u003c")
    encoded = _MARKS.sub(lambda mark: b"\\u%04x" % ord(mark[0].decode()), encoded)
    style = asset("base.css") + style
    head = _HEAD.format(policy=policy(style, script), title=html.escape(visible(title)), style=style)
    with path.open("wb") as file:
        file.write(f"{head}{body}".encode("utf-8", "backslashreplace"))
        if script:
            file.write(b'<script id="data" type="application/json">' + encoded + b"</script>\n")
            file.write(f"<script>{script}</script>\n".encode())
        file.write(b"</body>\n</html>\n")


def safe(text: object) -> str:
    """A text as it may stand in a page."""
    return html.escape(visible(str(text)))


def fill_static(path: Path, title: str, badges: Iterable[str], body: str, style: str) -> None:
    """Write a page without data to exactly this path; ``body`` must be safe in HTML."""
    shown = "".join(f'<span class="badge">{safe(badge)}</span>' for badge in badges)
    head = f'<header class="top"><p class="brand">Twin<b>Probe</b></p><p class="badges">{shown}</p></header>'
    page = f"<main>\n{head}\n{body}\n</main>\n"
    fill(path, page, title=title, style=asset("page.css") + style, script=asset("chinese.js"))


def policy(style: str, script: str) -> str:
    """Allow exactly the page's own style and script."""
    return (
        f"default-src 'none'; script-src '{digest(script)}'; style-src '{digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def digest(text: str) -> str:
    """How a policy names a script or style: by its hash."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


_SCRIPTS = (
    "shared/names.js", "words.js", "dom.js", "data.js", "address.js", "plot.js", "table.js", "details.js", "page.js",
)  # fmt: skip


def fill_html(table: pl.DataFrame, summary: Summary, path: Path, *, rows_per_page: int = ROWS_PER_PAGE) -> None:
    """Write the page to exactly this path."""
    packed = packed_table(table, rows_per_page=rows_per_page)
    shown = asdict(summary)
    if packed["rows"] < table.height:
        left_out = table.height - packed["rows"]
        shown["notes"] = [
            *shown["notes"],
            f"This page leaves out {left_out:,} rows, passing ones first; the other formats have all of them.",
        ]
    dump = Path(summary.target.path)
    kept = "Data_name" in table.columns or dump.with_name(dump.name.split(".json")[0] + SUMMARIES).is_file()
    inside = {}
    if kept and packed["order"] is None:
        from twinprobe._report.inside import table_pictures

        inside = table_pictures(table, summary)
    data = b'{"summary":%s,"table":%s,"inside":%s}' % (
        json_bytes(shown), msgspec.json.encode(packed), msgspec.json.encode(inside),
    )  # fmt: skip
    counted = [(summary.verdicts.get(verdict, 0), verdict) for verdict in ("error", "warning")]
    counts = [f"{count:,} {verdict}{'' if count == 1 else 's'}" for count, verdict in counted]
    title = ": ".join(part for part in ("TwinProbe", summary.rank, ", ".join(counts)) if part)
    needed = ("shared/tensor.js", *_SCRIPTS) if inside else _SCRIPTS
    scripts = "\n".join(asset(name) for name in needed)
    script = f'"use strict";\n(() => {{\n{scripts}\n}})();\n'
    style = asset("page.css") + asset("shared/tensor.css")
    fill(path, asset("page.html"), title=title, style=style, script=script, data=msgspec.Raw(data))


# What is in a folder of results, for those who are sent the folder.

_KINDS = (
    (re.compile(r"compare_summary_.*\.html"), "All ranks and steps"),
    (re.compile(r"(?!(?:debug_)?compare_result_).*\.html"), "Pages"),
    (re.compile(r".*\.html"), "Reports"),
    (re.compile(r".*\.vis(\.db)?"), "Graphs (open with twinprobe view)"),
    (re.compile(r".*\.(xlsx|csv|parquet)"), "Tables"),
    (re.compile(r".*\.ya?ml"), "Mapping files"),
    (re.compile(r".*"), "Other files"),
)
_TABLES, _OTHERS = "Tables", "Other files"
_DATASETS = "Datasets (parquet by step and rank)"
_FOLDERS = "Folders"
INDEX = "index.html"
_PLACES = re.compile(r"(graph|pynative|step-?\d+)(/step-?\d+)?")
_MOST_LINKS = 5000
_DIGITS = re.compile("[0-9]+")  # rank2 comes before rank10
_TITLE = re.compile(r"<title>TwinProbe:? ?([^<]*)</title>")


def write_index(folder: Path) -> Path | None:
    """Write ``index.html`` with links to everything that lies in a folder of results.

    None for a folder elsewhere, for the one that somebody works in, for a table alone, and where there is an
    ``index.html`` that is not ours.
    """
    if remote(folder) is not None or not folder.is_dir() or folder.resolve() == Path.cwd():
        return None
    target = folder / INDEX
    if target.exists() and b"<title>TwinProbe: " not in target.read_bytes()[:4096]:
        return None
    groups: dict[str, list[str]] = {}
    pending, links = [folder], 0
    while pending and links < _MOST_LINKS:
        place = pending.pop(0)
        # Of folders that are not those of steps and modes (recordings of a search, mostly), what is to be looked at.
        is_result = place == folder or _PLACES.fullmatch(place.relative_to(folder).as_posix()) is not None
        for path in sorted(place.iterdir(), key=lambda path: _DIGITS.sub(lambda match: match[0].zfill(20), path.name)):
            name = path.relative_to(folder).as_posix()
            kind = next(words for pattern, words in _KINDS if pattern.fullmatch(path.name))
            note = ""
            if path.name.startswith(".") or name == INDEX or not (is_result or (path.is_file() and kind != _OTHERS)):
                continue
            if path.is_dir():
                kind = _DATASETS if name.startswith(f"{DATASET}_") else _FOLDERS
                is_place = _PLACES.fullmatch(name) is not None
                if is_place or (place == folder and kind == _FOLDERS):
                    pending.append(path)
                if is_place:
                    continue
                name += "/"
            else:
                size = path.stat().st_size
                note = f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{max(1, round(size / 1e3))} kB"
                if path.suffix == ".html":
                    with path.open("rb") as page:
                        title = _TITLE.search(page.read(4096).decode("utf-8", "replace"))
                    note = note if title is None or not title[1] else f"{html.unescape(title[1])} · {note}"
            link = f'<a href="{html.escape(quote(name))}"><bdi>{html.escape(visible(name))}</bdi></a>'
            groups.setdefault(kind, []).append(f"<li>{link} <small>{html.escape(visible(note))}</small></li>")
            links += 1
    if not groups or (groups.keys() <= {_TABLES, _OTHERS} and links == 1):
        return None
    order = [*dict.fromkeys(words for _, words in _KINDS), _DATASETS, _FOLDERS]
    lists = [f"<section><h2>{kind}</h2><ul>{''.join(groups[kind])}</ul></section>" for kind in order if kind in groups]
    name = folder.resolve().name
    with Staging() as staging:
        head = f'<p class="brand">Twin<b>Probe</b></p><h1><bdi>{html.escape(visible(name))}</bdi></h1>'
        body = f"<main>{head}{''.join(lists)}</main>"
        fill(staging.file(target), body, title=f"TwinProbe: {name}", style=asset("map.css"), script=asset("chinese.js"))
    return target


# The files of a first-difference search: every call of a rank, and where the difference began.

_STATES = {INPUT: "input", PARAMETER: "parameters", OUTPUT: "output", GRADIENT: "parameters_grad"}
_METRICS = ("NPU max", "NPU min", "NPU mean", "NPU l2norm", "NPU MD5")
_PARTS = 4  # a call's name has at least so many; single points have fewer

Item = dict[str, Any]


def write_calls(path: Path, ops: Sequence[str], pairs: pl.DataFrame, table: pl.DataFrame, differs: set[int]) -> None:
    """compare_result_*.json: every target call with its rows, and whether its outputs agree."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as out:
        separator = "{\n"
        for op, items in _items_by_call(ops, pairs, table):
            if ops[op].count(".") < _PARTS - 1:
                continue
            entry = json.dumps({"is_same": op not in differs, "op_items": items}, indent=4, ensure_ascii=False)
            out.write(f"{separator}    {json.dumps(ops[op])}: " + entry.replace("\n", "\n    "))
            separator = ",\n"
        out.write("{}\n" if separator == "{\n" else "\n}\n")


def call_report(
    ops: Sequence[str], number: int, pairs: pl.DataFrame, table: pl.DataFrame, frames: Sequence[str]
) -> Item:
    """One entry of diff_analyze_*.json: a call with its inputs, outputs and call stack."""
    chosen = (pairs["t_op"] == number).fill_null(value=False)
    ((_, items),) = _items_by_call(ops, pairs.filter(chosen), table.filter(chosen))
    info: dict[str, dict[str, Item]] = {"input": {}, "output": {}}
    for item in items:
        side = "output" if item["state"] == "output" else "input"
        metrics = {name: item[name] for name in _METRICS if name in item}
        info[side][item["NPU Name"]] = metrics | {"NPU P2POp peer": item["NPU P2POp peer"]}
    return {"op_name": ops[number], "data_info": info, "stack_info": list(frames) or None}


def write_culprits(path: Path, culprits: dict[str, list[Item]]) -> None:
    """diff_analyze_*.json: per rank the calls where the difference began."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(culprits, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _items_by_call(ops: Sequence[str], pairs: pl.DataFrame, table: pl.DataFrame) -> Iterator[tuple[int, list[Item]]]:
    """The rows of each target call, in order; rows that only the golden run has belong to none."""
    facts = pairs.select("t_op", "t_role", "t_peer", "g_peer").iter_rows()
    current = -1
    items: list[Item] = []
    for (op, role, t_peer, g_peer), row in zip(facts, table.iter_rows(named=True), strict=True):
        if op is None:
            continue
        if op != current and items:
            yield current, items
            items = []
        current = op
        items.append(_item(row, ops[op], role, t_peer, g_peer))
    if items:
        yield current, items


def _item(row: Item, op: str, role: int, t_peer: str | None, g_peer: str | None) -> Item:
    item = {name: _plain(name, value) for name, value in row.items()}
    item["state"] = _STATES.get(role, "")
    item["api_origin_name"] = op
    for who, peer in (("NPU", t_peer), ("Bench", g_peer)):
        operation, _, other = (peer or "").partition(":")
        item[f"{who} P2POp op"] = operation or "None"
        item[f"{who} P2POp peer"] = other or "None"
    return item


def _plain(name: str, value: Any) -> Any:
    """Numbers as numbers, flags as flags, the stack as a list; what is not a number stays text."""
    if name in ("Result", "Err_message"):
        return ""
    if name in STATISTICS:
        return _number(value)
    if name == "Requires_grad Consistent":
        return value == "True"
    if name == "NPU_Stack_Info":
        return ast.literal_eval(value) if value.startswith("[") else value
    return value


def _number(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text
