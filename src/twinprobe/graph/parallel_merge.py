"""The ranks of a parallel layout folded into one logical run, as if the model had run on one rank."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from twinprobe.errors import BadInput
from twinprobe.graph.layout import Layout
from twinprobe.graph.shards import AXES, PARTIAL, REPLICAS, SHARDS, UNKNOWN, WORDS, merged_rows, shown
from twinprobe.graph.stage_names import StageNames, chunk_of, experts_in, in_expert
from twinprobe.graph.stage_order import Part, in_order
from twinprobe.runs.leaf import TENSOR
from twinprobe.runs.run import STATISTICS, Run
from twinprobe.runs.stacks import Stacks
from twinprobe.runs.table import INPUT, OUTPUT, STATS

if TYPE_CHECKING:
    import polars as pl

_REDUCTIONS = r"^(Mint)?Distributed\.(all_reduce|_?reduce_scatter\w*|reduce)\."
_EXTRA = ("relation", "ranks", "shapes", "sign", *(f"{stat}_all" for stat in STATS))


Rank = tuple[tuple[int, int, int], Run]  # where it stands in its stage, and what it recorded


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
    names = StageNames(chunks=layout.vpp > 1)
    parts: list[Part] = []
    for chunk in range(layout.vpp):
        for stage in range(layout.pp):
            ranks = sorted(stages[stage], key=lambda one: one[0])
            parts += _parts_of(ranks, stage, chunk, names, layout)
    return _assemble(parts, stages[0][0][1])


def _parts_of(ranks: list[Rank], stage: int, chunk: int, names: StageNames, layout: Layout) -> list[Part]:
    """The parts of one stage (and chunk): the calls of all its ranks, and the experts of some."""
    first = ranks[0][1]
    renamed = names.stage(_chosen(first, chunk, layout))
    if layout.ep == 1:
        return [Part(stage, chunk, ranks, renamed)]
    shared = {old: new for old, new in renamed.items() if not in_expert(old, first.parents)}
    parts = [Part(stage, chunk, ranks, shared, -1)]
    before: dict[str, int] = {}
    for ep in range(layout.ep):
        own = [(shard, run) for shard, run in ranks if shard[0] == ep]
        run = own[0][1]
        inside = [name for name in _chosen(run, chunk, layout) if in_expert(name, run.parents)]
        numbers = experts_in(inside)
        # Experts that are numbered through already keep their numbers.
        shift = {name: before.get(name, 0) for name, used in numbers.items() if min(used) < before.get(name, 0)}
        mine = {old: renamed[old] for old in inside} if ep == 0 else names.experts(inside, shift)
        around = {above: new for old in mine if (above := run.parents.get(old)) and (new := shared.get(above))}
        parts.append(Part(stage, chunk, own, mine, ep, around))
        before |= {name: max(used) + shift.get(name, 0) + 1 for name, used in numbers.items()}
    return parts


def _chosen(run: Run, chunk: int, layout: Layout) -> dict[str, None]:
    return _in_chunk(run, chunk) if layout.vpp > 1 else dict.fromkeys([*run.parents, *run.ops])


def _in_chunk(run: Run, chunk: int) -> dict[str, None]:
    """The calls of one virtual stage: by their own name, or by the module around them."""
    chosen: dict[str, None] = {}
    for name in dict.fromkeys([*run.parents, *run.ops]):
        around: str | None = name
        found = chunk_of(name)
        while around is not None and found is None:
            around = run.parents.get(around)
            found = chunk_of(around) if around is not None else None
        if (found or 0) == chunk:
            chosen[name] = None
    return chosen


def _assemble(parts: list[Part], first: Run) -> Merged:
    import polars as pl

    frames = []
    for at, part in enumerate(parts):
        rows = pl.concat([_renamed_rows(run, part.names, shard) for shard, run in part.ranks])
        frames.append(merged_rows(rows, len(part.ranks)).with_columns(part=pl.lit(at)))
    rows = _after_reduction(_one_of_each(pl.concat(frames), parts))
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
    run.parents = _parents(parts)
    run.stacks = _stacks(parts)
    return Merged(run, rows.select("op", "suffix", *_EXTRA), _info(rows))


def _renamed_rows(run: Run, names: dict[str, str], shard: tuple[int, int, int]) -> pl.DataFrame:
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


def _one_of_each(rows: pl.DataFrame, parts: list[Part]) -> pl.DataFrame:
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


def _parents(parts: list[Part]) -> dict[str, str | None]:
    merged: dict[str, str | None] = {}
    for part in parts:
        for name, above in part.first.parents.items():
            if name in part.names:
                new = part.around.get(above, part.names.get(above, above)) if above is not None else None
                merged.setdefault(part.names[name], new)
    order = in_order(parts, [list(part.first.parents) for part in parts])
    return {name: merged[name] for name in order if name in merged}


def _stacks(parts: list[Part]) -> Stacks:
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
