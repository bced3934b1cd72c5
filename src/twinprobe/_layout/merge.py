"""The ranks of a parallel layout folded into one logical run, as if the model had run on one rank."""

from __future__ import annotations

from ast import literal_eval
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from math import prod
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twinprobe._align.links import Pairs
from twinprobe._layout.layout import Layout
from twinprobe._layout.stages import Part, StageNames, chunk_of, experts_in, in_expert, in_order
from twinprobe._report.console import json_bytes
from twinprobe._report.files import Staging, prepare_folder
from twinprobe._runs.dump_json import Stacks
from twinprobe._runs.names import BACKWARD, GRADIENTS, parse_op
from twinprobe._runs.run import STATISTICS, Run
from twinprobe._runs.table import FLOAT, GRADIENT, INPUT, INT, NULL, OUTPUT, PARAMETER, STATS, TENSOR, TEXT
from twinprobe.errors import BadInput

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


_REDUCTIONS = r"^(Mint)?Distributed\.(all_reduce|_?reduce_scatter\w*|reduce)\."
_EXTRA = ("relation", "ranks", "shapes", "sign", *(f"{stat}_all" for stat in STATS))


Rank = tuple[tuple[int, ...], Run]  # where it stands in its stage (along ep first), and what it recorded


@dataclass
class Merged:
    """A run made of several, and what its rows were made of (aligned with the run's table)."""

    run: Run
    shards: pl.DataFrame
    info: dict[str, list[str]] = field(default_factory=dict)


def merge_ranks(runs: dict[int, Run], layout: Layout) -> Merged:
    """Fold the ranks of one replica of the model, by number, into one run."""
    stages: dict[int, list[Rank]] = defaultdict(list)
    for rank, run in runs.items():
        if run.mode != STATISTICS:
            raise BadInput("only statistics can be merged", where=run.path, hint="record with task statistics")
        place = layout.place(rank)
        stages[place.pp].append((place.shard, run))
    names = StageNames(chunks=layout.vpp > 1, lists=layout.experts)
    parts: list[Part] = []
    for chunk in range(layout.vpp):
        for stage in range(layout.pp):
            ranks = sorted(stages[stage], key=lambda one: one[0])
            parts += parts_of(ranks, stage, chunk, names, layout)
    return _assemble(parts, stages[0][0][1])


def parts_of(ranks: list[Rank], stage: int, chunk: int, names: StageNames, layout: Layout) -> list[Part]:
    """The parts of one stage (and chunk): the calls of all its ranks, and the experts of some."""
    first = ranks[0][1]
    chosen = [_chosen(run, chunk, layout) for _, run in ranks]
    renamed = names.stage(dict.fromkeys(name for own in chosen for name in own))
    if layout.ep == 1:
        return [Part(stage, chunk, ranks, renamed)]
    shared = {old: new for old, new in renamed.items() if not in_expert(old, first.parents, layout.experts)}
    parts = [Part(stage, chunk, ranks, shared, -1, lists=layout.experts)]
    before: dict[str, int] = {}
    for ep in range(layout.ep):
        own = [(shard, run) for shard, run in ranks if shard[0] == ep]
        run = own[0][1]
        inside = [name for name in _chosen(run, chunk, layout) if in_expert(name, run.parents, layout.experts)]
        numbers = experts_in(inside, layout.experts)
        # Experts that are numbered through already keep their numbers.
        shift = {name: before.get(name, 0) for name, used in numbers.items() if min(used) < before.get(name, 0)}
        mine = {old: renamed[old] for old in inside} if ep == 0 else names.experts(inside, shift)
        around = {above: new for old in mine if (above := run.parents.get(old)) and (new := shared.get(above))}
        parts.append(Part(stage, chunk, own, mine, ep, around, layout.experts))
        before |= {name: max(used) + shift.get(name, 0) + 1 for name, used in numbers.items()}
    return parts


def _chosen(run: Run, chunk: int, layout: Layout) -> list[str]:
    """The calls of one virtual stage: by their own name, or by the module around them."""
    names = list(dict.fromkeys([*run.parents, *run.ops]))
    if layout.vpp == 1:
        return names
    chosen = []
    for name in names:
        around: str | None = name
        found = chunk_of(name)
        while around is not None and found is None:
            around = run.parents.get(around)
            found = chunk_of(around) if around is not None else None
        if (found or 0) == chunk:
            chosen.append(name)
    return chosen


def _assemble(parts: list[Part], first: Run) -> Merged:
    import polars as pl

    frames = []
    for at, part in enumerate(parts):
        rows = pl.concat([_renamed_rows(run, part.names, shard) for shard, run in part.ranks])
        frames.append(merged_rows(rows, len(part.ranks)).with_columns(part=pl.lit(at)))
    rows = _after_reduction(one_of_each(pl.concat(frames), parts))
    ops = in_order(parts, [part.first.ops for part in parts])
    ops = [name for name in ops if name in set(rows["op"].to_list())]
    place = {name: at for at, name in enumerate(ops)}
    rows = rows.with_columns(place=pl.col("op").replace_strict(place, return_dtype=pl.Int32))
    rows = shown(rows).sort("place", "role", maintain_order=True)
    table = rows.select(
        pl.col("place").alias("op"), "role", (pl.col("op") + pl.col("suffix")).alias("name"),
        *(name for name in first.table.columns if name not in ("op", "role", "name")),
    )  # fmt: skip
    run = Run(first.path, first.task, first.level, first.framework, ops, table, list(first.notes))
    run.parents = merged_parents(parts)
    run.stacks = merged_stacks(parts)
    return Merged(run, rows.select("op", "suffix", *_EXTRA), _info(rows))


def _renamed_rows(run: Run, names: dict[str, str], shard: tuple[int, ...]) -> pl.DataFrame:
    """A run's rows with their new op names and the rest of their own names; rows of other chunks are left out."""
    import polars as pl

    per_op = pl.DataFrame({
        "renamed": pl.Series([names.get(name) for name in run.ops], dtype=pl.String),
        "length": pl.Series([len(name.encode()) for name in run.ops], dtype=pl.UInt32),
    })  # fmt: skip
    table = run.table.with_columns(per_op[run.table["op"].to_numpy()])
    table = table.filter(pl.col("renamed").is_not_null())
    suffix = pl.col("name").str.slice(pl.col("length"))
    places = {axis: pl.lit(at) for axis, at in zip(AXES, shard, strict=True)}
    return table.with_columns(op=pl.col("renamed"), suffix=suffix, **places).drop("renamed", "length", "name")


def one_of_each(rows: pl.DataFrame, parts: list[Part]) -> pl.DataFrame:
    """A module that wraps several stages takes its inputs from the first and its outputs from the last."""
    import polars as pl

    stages = pl.Series([part.stage + part.chunk * 10_000 for part in parts])
    backward = pl.col("op").str.contains(".backward", literal=True)
    enters = (pl.col("role") == INPUT) != backward
    rows = rows.with_columns(turn=stages.gather(rows["part"]))
    wanted = pl.when(enters).then(pl.col("turn").min().over("op")).otherwise(pl.col("turn").max().over("op"))
    fits = (pl.col("turn") == wanted) | ~pl.col("role").is_in([INPUT, OUTPUT])
    return rows.filter(fits).unique(["op", "suffix"], keep="first", maintain_order=True).drop("turn")


def _after_reduction(rows: pl.DataFrame) -> pl.DataFrame:
    """Partial sums get the statistics of the reduction that they went into."""
    import polars as pl

    reductions = rows.filter(pl.col("op").str.contains(_REDUCTIONS) & (pl.col("kind") == TENSOR))
    taken = reductions.filter((pl.col("role") == INPUT) & (pl.col("relation") == SHARDS)).unique("sign", keep="first")
    whole = (pl.col("relation") == REPLICAS) | pl.col("folded")
    given = shown(reductions.filter((pl.col("role") == OUTPUT) & whole)).unique("op", keep="first")
    sums = taken.select("sign", "op").join(given.select("op", *STATS), on="op", how="left").drop("op")
    joined = rows.with_row_index("at").join(sums.with_columns(reduced=True), on="sign", how="left", suffix="_sum")
    joined = joined.sort("at").drop("at")
    partial = (pl.col("relation") == SHARDS) & (pl.col("role") == OUTPUT) & pl.col("reduced").fill_null(value=False)
    known = partial & pl.col("norm_sum").is_not_null()
    relation = pl.when(known).then(pl.lit(PARTIAL)).when(partial).then(pl.lit(UNKNOWN)).otherwise(pl.col("relation"))
    return joined.with_columns(
        relation.alias("relation"),
        *(pl.when(known).then(pl.col(f"{stat}_sum")).otherwise(pl.col(stat)).alias(stat) for stat in STATS),
    ).drop("reduced", *(f"{stat}_sum" for stat in STATS))


def merged_parents(parts: list[Part]) -> dict[str, str | None]:
    merged: dict[str, str | None] = {}
    for part in parts:
        for name, above in part.first.parents.items():
            if name in part.names:
                new = part.around.get(above, part.names.get(above, above)) if above is not None else None
                merged.setdefault(part.names[name], new)
    order = in_order(parts, [list(part.first.parents) for part in parts])
    return {name: merged[name] for name in order if name in merged}


def merged_stacks(parts: list[Part]) -> Stacks:
    stacks = Stacks()
    for part in parts:
        known = part.first.stacks
        start = len(stacks.frames)
        stacks.frames.extend(known.frames)
        for name, at in known.of_op.items():
            if name in part.names:
                stacks.of_op.setdefault(part.names[name], start + at)
    return stacks


def _info(rows: pl.DataFrame) -> dict[str, list[str]]:
    """Sentences on the values of a call that were put together from several ranks."""
    import polars as pl

    info: dict[str, list[str]] = defaultdict(list)
    told = rows.filter(pl.col("relation").is_in(list(WORDS)))
    for op, suffix, relation, shapes in told.select("op", "suffix", "relation", "shapes").iter_rows():
        info[op].append(f"{suffix.strip('.')} ({', '.join(shapes)}): {WORDS[relation]}")
    return dict(info)


_TITLES = {"max": "Max", "min": "Min", "mean": "Mean", "norm": "Norm"}


def write_merged(run: Run, folder: Path) -> list[Path]:
    """Write a merged run as a dump again (its dump.json marked ``is_merged``), to be drawn or compared like any."""
    prepare_folder(folder)
    header = {"task": run.task, "level": run.level, "framework": run.framework, "dump_data_dir": None}
    stacks = {str(at): [[], frames] for at, frames in enumerate(run.stacks.frames)}
    for name, at in run.stacks.of_op.items():
        stacks[str(at)][0].append(name)
    documents = {
        "construct.json": run.parents,
        "dump.json": header | {"is_merged": True, "data": dict(_entries(run))},
        "stack.json": stacks,
    }
    with Staging() as staging:
        for name, document in documents.items():
            staging.file(folder / name).write_bytes(json_bytes(document))
    return [folder / name for name in documents]


def _entries(run: Run) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, rows in groupby(run.table.iter_rows(named=True), key=itemgetter("op")):
        op = run.ops[number]
        direction = parse_op(op).direction
        sections = {BACKWARD: ("input", "output"), GRADIENTS: ()}.get(
            direction, ("input_args", "input_kwargs", "output")
        )
        entry: dict[str, Any] = {section: {} for section in sections}
        for row in rows:
            path = row["name"].removeprefix(op).strip(".").split(".")
            if row["role"] == GRADIENT:
                path.append("0")
            elif row["role"] not in (OUTPUT, PARAMETER) and direction != BACKWARD:
                path[:1] = ["input_args" if path[1].isdecimal() else "input_kwargs"]
            inside = entry
            for part in path[:-1]:
                inside = inside.setdefault(part, {})
            inside[path[-1]] = _leaf(row)
        yield op, _lists(entry)


def _lists(value: Any) -> Any:
    """Objects whose keys count from zero become lists; leaves stay as they are."""
    if not isinstance(value, dict) or "type" in value:
        return value
    if value and list(value) == [str(at) for at in range(len(value))]:
        return [_lists(item) for item in value.values()]
    return {key: _lists(item) if item or key == "input_kwargs" else [] for key, item in value.items()}


def _leaf(row: dict[str, Any]) -> dict[str, Any] | None:
    if row["kind"] == NULL:
        return None
    if row["kind"] != TENSOR:
        return {"type": row["type"], "value": row["meaning"] if row["meaning"] is not None else _statistic(row, "max")}
    leaf = {"type": row["type"], "dtype": row["dtype"], "shape": literal_eval(row["shape"] or "[]")}
    leaf |= {_TITLES[stat]: _statistic(row, stat) for stat in STATS}
    return leaf | ({"requires_grad": row["requires_grad"]} if row["requires_grad"] is not None else {})


def _statistic(row: dict[str, Any], stat: str) -> Any:
    if row[f"{stat}_kind"] == INT:
        return int(row[stat])
    if row[f"{stat}_kind"] == FLOAT:
        return row[stat]
    text = row[f"{stat}_text"]
    return {"None": None, "True": True, "False": False}.get(text, text)


Match = Callable[[Run, Run], Pairs]


@dataclass
class _Changes:
    """What is learnt of one side's rows: their whole shape, and whether their statistics must change."""

    shape: dict[int, str | None] = field(default_factory=dict)
    combine: set[int] = field(default_factory=set)
    forget: set[int] = field(default_factory=set)


class ShapeFitter:
    """A matcher that, once the rows are paired, gives shards their whole shape and the statistics that go with it.

    Shards of equal statistics look like replicas, and partial sums look like shards; the other side's shape tells.
    Shapes that fit nothing are left open, since a layout may well fold or pad them.
    """

    def __init__(self, match: Match, target: Merged, golden: Merged) -> None:
        self._match = match
        self._sides = (target, golden)

    def __call__(self, target: Run, golden: Run) -> Pairs:
        """Pair the rows and settle their shapes."""
        pairs = self._match(target, golden)
        both = np.flatnonzero((pairs.target >= 0) & (pairs.golden >= 0))
        changes = (_Changes(), _Changes())
        rows = [[merged.shards["relation"].to_list(), merged.shards["shapes"].to_list(), run.table["kind"].to_list()]
                for merged, run in zip(self._sides, (target, golden), strict=True)]  # fmt: skip
        for at in both.tolist():
            places = int(pairs.target[at]), int(pairs.golden[at])
            (t_relation, t_shapes, t_kind), (g_relation, g_shapes, g_kind) = (
                [column[place] for column in side] for side, place in zip(rows, places, strict=True)
            )
            if t_kind != TENSOR or g_kind != TENSOR:
                continue
            if t_relation in (ONE, REPLICAS) and g_relation in (ONE, REPLICAS) and t_shapes[0] == g_shapes[0]:
                continue
            _fit(places, (t_relation, g_relation), (t_shapes, g_shapes), changes)
        for merged, run, change in zip(self._sides, (target, golden), changes, strict=True):
            _apply(merged, run, change)
        return pairs


def _fit(
    places: tuple[int, int],
    relations: tuple[str, str],
    shapes: tuple[list[str], list[str]],
    changes: tuple[_Changes, _Changes],
) -> None:
    as_is = [side[0] for side in shapes]
    whole = [[str(shape) for shape in whole_shapes(side)] if len(side) > 1 else [] for side in shapes]
    for side, other in ((0, 1), (1, 0)):
        if as_is[other] in whole[side] and relations[other] != SHARDS:
            changes[side].shape[places[side]] = as_is[other]
            if relations[side] == REPLICAS:
                changes[side].combine.add(places[side])
            return
    common = [shape for shape in whole[0] if shape in whole[1]] if SHARDS in relations else []
    for change, place, relation in zip(changes, places, relations, strict=True):
        if common:
            change.shape[place] = common[0]
        elif as_is[0] != as_is[1]:
            change.shape[place] = None
        elif relation == SHARDS:
            change.forget.add(place)  # as large as the whole on the other side: a partial sum


def _apply(merged: Merged, run: Run, change: _Changes) -> None:
    import polars as pl

    rows = pl.Series(range(run.table.height))
    table = run.table
    if change.shape:
        shapes = table["shape"].to_list()
        for at, shape in change.shape.items():
            shapes[at] = shape
        table = table.with_columns(pl.Series("shape", shapes, dtype=pl.String))
    if change.combine:
        chosen = rows.is_in(list(change.combine))
        table = table.with_columns(
            pl.when(chosen).then(merged.shards[f"{stat}_all"]).otherwise(pl.col(stat)).alias(stat) for stat in STATS
        )
    if change.forget:
        table = table.with_columns(blanked(pl.lit(rows.is_in(list(change.forget)))))
        for at in change.forget:
            op, suffix = merged.shards["op"][at], merged.shards["suffix"][at]
            told = [text for text in merged.info.get(op, []) if not text.startswith(f"{suffix.strip('.')} (")]
            merged.info[op] = [*told, f"{suffix.strip('.')}: {WORDS[UNKNOWN]}"]
    run.table = table


# Statistics of a tensor from those of its shards: exact where mathematics allows, marked where not.


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
