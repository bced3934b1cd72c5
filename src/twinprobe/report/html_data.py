"""The result table packed for the html report: each text as seldom as can be, in a form that stays simple to read.

A column becomes one of: ``all`` (one text for every row), ``values`` and ``codes`` (distinct texts and each row's
place among them), ``like`` (the same as an earlier column but for some rows), ``texts`` (as it is), ``numbers``.
Names are cut in two, the call and what it took or gave, which repeat much more often than whole names.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from twinprobe.report.kinds import RELATIVE_ERROR, STACK

if TYPE_CHECKING:
    import polars as pl

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
    order = _kept_rows(table, rows_per_page)
    if order is not None:
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


def _kept_rows(table: pl.DataFrame, limit: int) -> pl.Series | None:
    if table.height <= limit:
        return None
    import polars as pl

    rows = pl.DataFrame({"row": pl.Series(range(table.height), dtype=pl.UInt32), "passes": table["Result"] == "pass"})
    kept: pl.Series = rows.sort("passes", maintain_order=True).head(limit)["row"].sort()
    return kept


def _calls(names: pl.Series) -> pl.Series:
    """The call that each row belongs to, with its dot, so that a name is call plus rest."""
    import polars as pl

    name = pl.col("name")
    call = pl.coalesce(name.str.extract(_CALL, 1), name.str.extract(_CALL, 2))
    return names.alias("name").to_frame().select(call.fill_null(name)).to_series()


def _packed_column(table: pl.DataFrame, name: str, calls: pl.Series, earlier: list[str]) -> dict[str, Any]:
    column = table[name]
    if name == RELATIVE_ERROR:
        # JSON has no infinity: it is written as text.
        return {"numbers": [x if x is None or math.isfinite(x) else repr(x) for x in column.to_list()]}
    if name == _NAME:
        heads, head = _distinct(calls)
        rests = column.to_frame("name").with_columns(calls.alias("call")).select(_rest()).to_series()
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


def _rest() -> pl.Expr:
    import polars as pl

    return pl.col("name").str.slice(pl.col("call").str.len_chars())


def _distinct(column: pl.Series) -> tuple[list[str], list[int]]:
    import polars as pl

    values = column.unique(maintain_order=True)
    places = pl.Series(range(len(values)), dtype=pl.UInt32)
    return values.to_list(), column.replace_strict(values, places, return_dtype=pl.UInt32).to_list()


def _stacks(stacks: pl.Series, calls: pl.Series) -> dict[str, Any]:
    """The stack of each row's call; the table shows it on the call's first row only."""
    import polars as pl

    frame = pl.DataFrame({"stack": stacks.replace({_NO_STACK: ""}), "call": calls})
    # Rows of one call stand together; the same call may come again only if it is another one in fact.
    spread = frame.with_columns(run=pl.col("call").rle_id()).select(pl.col("stack").first().over("run")).to_series()
    texts, codes = _distinct(spread)
    frames: dict[str, int] = {}
    lines = [[frames.setdefault(line, len(frames)) for line in _frames(text)] for text in texts]
    return {"frames": list(frames), "stacks": lines, "codes": codes}


def _frames(text: str) -> list[str]:
    """The lines of a stack, which stands in the table as Python writes a list of texts; they stay quoted here."""
    return (_QUOTED.findall(text) if text.startswith("[") else None) or ([text] if text else [])
