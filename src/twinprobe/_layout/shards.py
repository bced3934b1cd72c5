"""Statistics of a tensor from those of its shards: exact where mathematics allows, marked where not."""

from __future__ import annotations

from ast import literal_eval
from collections import defaultdict
from math import prod
from typing import TYPE_CHECKING

from twinprobe._runs.names import TOTAL_NORM
from twinprobe._runs.table import FLOAT, INT, STATS, TENSOR, TEXT

if TYPE_CHECKING:
    import polars as pl

# What the values of several ranks are to one another.
ONE, REPLICAS, SHARDS, PARTIAL, UNKNOWN, OTHER = "one", "replicas", "shards", "partial sums", "unknown", "other"
_EQUAL = 1e-6  # relative; replicas are equal up to the rounding of a collective
WORDS = {
    SHARDS: "shards of one tensor: max of max, min of min, mean weighted by count, root of summed squares (exact)",
    PARTIAL: "partial sums of the ranks: the statistics are those of the reduction that follows (exact)",
    UNKNOWN: "partial sums of the ranks, and the sum was not recorded: no statistics of the whole are known",
    OTHER: "the ranks' values differ and do not fit together: those of the first rank are shown (not exact)",
}


AXES = ("ep", "cp", "tp")


def merged_rows(rows: pl.DataFrame, ranks: int) -> pl.DataFrame:
    """One row per (op, suffix) from the rows of all ranks of a stage, with what is known of the shards.

    ``rows`` have columns of where their rank stands along each of ``AXES``. Adds ``relation``, ``ranks``, the
    combined statistics as ``{stat}_all``, ``sign``, by which the input of a reduction is recognised, and ``folded``:
    the values are equal along one axis and differ along another.
    """
    import polars as pl

    rows = _without_copies(rows)
    tensor = (pl.col("kind") == TENSOR) & pl.col("max_kind").is_in([FLOAT, INT])
    sizes = {text: _sizes(text) for text in rows["shape"].unique().to_list()}
    counts = {text: 0.0 if size is None else float(prod(size)) for text, size in sizes.items()}
    count = pl.col("shape").replace_strict(counts, default=0, return_dtype=pl.Float64)
    rows = rows.with_columns(count=count, tensor=tensor)
    signs = pl.concat_str([pl.col(stat).cast(pl.String).fill_null("") for stat in STATS], separator=",").str.join(";")
    kept = [name for name in rows.columns if name not in ("op", "suffix", "count", "tensor", *AXES)]
    grouped = rows.group_by("op", "suffix", maintain_order=True).agg(
        *(pl.col(name).first() for name in kept),
        pl.len().alias("ranks"),
        *(one.alias(f"close_{stat}") for stat, one in zip(STATS, _close(), strict=True)),
        (pl.col("shape").n_unique() == 1).alias("same_shape"),
        pl.col("tensor").all(),
        pl.col("max").max().alias("max_all"),
        pl.col("min").min().alias("min_all"),
        ((pl.col("mean") * pl.col("count")).sum() / pl.col("count").sum()).alias("mean_all"),
        (pl.col("norm") ** 2).sum().sqrt().alias("norm_all"),
        pl.col("shape").implode().alias("shapes"),
        signs.alias("sign"),
    )
    near = [f"close_{stat}" for stat in STATS]
    relation = (
        pl.when((pl.col("ranks") == 1) & (ranks == 1)).then(pl.lit(ONE))
        .when(pl.all_horizontal(near) & pl.col("same_shape")).then(pl.lit(REPLICAS))
        .when(pl.col("tensor")).then(pl.lit(SHARDS))
        .otherwise(pl.lit(OTHER))
    )  # fmt: skip
    return grouped.with_columns(relation=relation).drop(*near, "same_shape", "tensor")


def _close() -> list[pl.Expr]:
    """Whether all values of a group are equal but for the rounding of a collective, for each statistic."""
    import polars as pl

    return [
        ((pl.col(stat).max() - pl.col(stat).min()).fill_nan(0.0) <= _EQUAL * pl.col(stat).abs().max().fill_nan(0.0))
        .fill_null(value=True)
        for stat in STATS
    ]  # fmt: skip


def _without_copies(rows: pl.DataFrame) -> pl.DataFrame:
    """Along an axis where all ranks have the same values, the first one's stand for all.

    Unless that is so along all axes: shards of equal statistics look like copies, and the other side's shape may tell.
    """
    import polars as pl

    used = [axis for axis in AXES if rows[axis].n_unique() > 1]
    rows = rows.with_columns(folded=pl.lit(value=False))
    if len(used) < 2:
        return rows
    same_shape = pl.col("shape").n_unique() == 1
    for axis in used:
        others = [other for other in used if other != axis]
        groups = rows.group_by("op", "suffix", *others).agg(pl.all_horizontal(*_close(), same_shape).alias("equal"))
        flags = groups.group_by("op", "suffix").agg(pl.col("equal").all().alias(f"{axis}_equal"))
        rows = rows.join(flags, on=["op", "suffix"], how="left", maintain_order="left")
    equal = [f"{axis}_equal" for axis in used]
    some = pl.any_horizontal(equal) & ~pl.all_horizontal(equal)
    copies = [pl.col(f"{axis}_equal") & (pl.col(axis) > 0) for axis in used]
    rows = rows.with_columns(folded=some).filter(~(some & pl.any_horizontal(copies)))
    return rows.drop(equal)


def blanked(condition: pl.Expr) -> list[pl.Expr]:
    """Columns in which the statistics of some rows are recorded as nothing."""
    import polars as pl

    nothing = {"": pl.lit(None, dtype=pl.Float64), "_kind": pl.lit(TEXT, dtype=pl.UInt8), "_text": pl.lit("None")}
    return [
        pl.when(condition).then(blank).otherwise(pl.col(stat + part)).alias(stat + part)
        for stat in STATS
        for part, blank in nothing.items()
    ]


def shown(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with the statistics of whole tensors in their columns, as far as they are known."""
    import polars as pl

    sharded = pl.col("relation") == SHARDS
    for stat in STATS:
        whole, number = pl.col(f"{stat}_all"), pl.col(stat)
        counted = sharded & (pl.col(f"{stat}_kind") == INT)
        even = whole == whole.round()
        text = pl.when(even).then(whole.cast(pl.Int64, strict=False).cast(pl.String))
        rows = rows.with_columns(
            pl.when(sharded).then(whole).otherwise(number).alias(stat),
            pl.when(counted).then(text).otherwise(pl.col(f"{stat}_text")).alias(f"{stat}_text"),
            pl.when(counted & ~even)
            .then(pl.lit(FLOAT, dtype=pl.UInt8))
            .otherwise(pl.col(f"{stat}_kind"))
            .alias(f"{stat}_kind"),
        )
    return rows.with_columns(blanked(pl.col("relation") == UNKNOWN))


def total_norms(ops: list[str], suffixes: list[str], norms: list[float | None]) -> dict[int, float | None]:
    """The rows of the norm of all gradients of a step, with that norm; None where a gradient is not known."""
    totals: dict[str, float] = defaultdict(float)
    rows: dict[str, int] = {}
    unknown: set[str] = set()
    for row, (op, suffix, norm) in enumerate(zip(ops, suffixes, norms, strict=True)):
        step = ".".join(op.rsplit(".", 3)[1:])
        if op.startswith(TOTAL_NORM):
            rows |= {step: row} if suffix == ".output.0" else {}
        elif suffix == ".input.0":
            unknown |= {step} if norm is None else set()
            totals[step] += (norm or 0.0) ** 2
    return {row: None if step in unknown else totals[step] ** 0.5 for step, row in rows.items()}


def whole_shapes(shapes: list[str]) -> list[list[int]]:
    """Every shape that a tensor with these shards may have: one dimension is the sum of theirs."""
    known = [size for text in shapes if (size := _sizes(text)) is not None]
    if len(known) < len(shapes) or len({len(size) for size in known}) > 1:
        return []
    first, found = known[0], []
    for at in range(len(first)):
        others = {tuple(size[:at] + size[at + 1 :]) for size in known}
        if len(others) == 1:
            found.append([*first[:at], sum(size[at] for size in known), *first[at + 1 :]])
    return found


def _sizes(text: str | None) -> list[int] | None:
    try:
        value = literal_eval(text or "")
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return list(value) if isinstance(value, list | tuple) and all(isinstance(size, int) for size in value) else None
