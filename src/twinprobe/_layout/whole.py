"""The ranks of one step as one run, as if a single process had computed everything.

Names are mapped through the layout first. What the pieces of a value are to one another is settled when the value has
been paired, since the other side's shape tells most; until then a row has the shape that its name has there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import isnan, nan, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twinprobe._align.calls import bare_path, dims
from twinprobe._layout.layout import Layout
from twinprobe._layout.merge import merged_parents, merged_stacks, one_of_each, parts_of
from twinprobe._layout.pieces import Arithmetic, Piece, load_whole
from twinprobe._layout.ranks import RankDump, align_calls, fold_calls, with_backward
from twinprobe._layout.stages import Part, StageNames, chunk_of, in_expert, in_order, in_turn, items_of_list
from twinprobe._measure.sketch import combined
from twinprobe._runs.names import GRADIENTS, OPTIMIZER, is_module, parse_op, updated_parameter
from twinprobe._runs.run import DUMP, TENSOR_FOLDER, Run, open_run
from twinprobe._runs.sketches import Sketches
from twinprobe._runs.table import FLOAT, INPUT, INT, PARAMETER, STATS, TENSOR
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe.errors import TwinProbeError

if TYPE_CHECKING:
    import polars as pl

_VOCABULARY_CLASS = re.compile(r"(Vocab|Parallel)\w*Embedding")
_ARITHMETIC = re.compile(r"\.(__)?[ir]?(true_?|floor_?)?(div|divide|mul|multiply|add|sub|pow)(__)?_?\.")
_LISTS = ("rank", "micro", "dp", "ep", "cp", "tp", "shape", *STATS, "file", "digest", "own_name")


@dataclass(repr=False)
class Whole(Run):
    """A run made of several ranks' runs. ``pieces`` has, for each row of the table, what every rank has of it."""

    layout: Layout
    ranks: dict[int, RankDump]
    pieces: pl.DataFrame
    micro: int = 1
    assumed: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    ways: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """How the pieces of a row make the whole, along each axis."""
    arithmetic: dict[int, Arithmetic] = field(default_factory=dict)
    settled: bool = False
    own_words: frozenset[str] = frozenset()
    """Modules whose functions are left out, since each rank calls them with its own words: see ``call_head``."""
    exchanging: frozenset[str] = frozenset()
    """The same, since they deal with pieces of other ranks: only some of the module's functions are left out."""

    @property
    def tensor_folder(self) -> Path:
        """The folder of the step: recipes name the files of all ranks."""
        return self.path.parent

    @cached_property
    def mode(self) -> str:
        return next(iter(self.ranks.values())).run.mode

    def load(self, name: str) -> HostTensor:
        """The tensor that a recipe makes of the ranks' files."""
        whole = load_whole(self.tensor_folder, name)
        return HostTensor(whole.dtype, whole.shape, np.asarray(whole.data[:]))  # not strip by strip

    @property
    def sketches(self) -> Sketches | None:
        """Those of the whole values; None before the pieces are settled, and where no rank has any."""
        return self._sketches if self.settled else None

    @cached_property
    def _sketches(self) -> Sketches | None:
        """What the sketches of all pieces add up to, of values whose norm was settled to be the same."""
        if self.layout.cp > 1 or self.layout.ep > 1:  # what such ranks gather has the same numbers in another order
            return None
        runs = {rank: dump.run.recorded or dump.run for rank, dump in self.ranks.items()}
        known = {rank: run.sketches for rank, run in runs.items() if run.sketches is not None}
        rows_of = {rank: {name: row for row, name in enumerate(runs[rank].table["name"])} for rank in known}
        index, found = np.full(self.table.height, -1), list[Any]()
        norms, kinds, shapes, dtypes = (self.table[name].to_list() for name in ("norm", "kind", "shape", "dtype"))
        for row, (ranks, names) in enumerate(zip(self._lists[0], self._lists[-1], strict=True)):
            places = [rows_of.get(rank, {}).get(name, -1) for rank, name in zip(ranks, names, strict=True)]
            if kinds[row] != TENSOR or -1 in places:
                continue
            pieces = [known[rank].of(np.array([place])) for rank, place in zip(ranks, places, strict=True)]
            whole = combined(np.concatenate(pieces))
            if whole is None or whole["whole"][0] != prod(dims(shapes[row]) or ()):
                continue
            # The norm of summands is not known, and an old recorder rounds those of 16-bit tensors. Masks have none.
            norm, mask = norms[row], re.search("bool|int", dtypes[row] or "")
            if mask if norm is None or isnan(norm) else abs(whole["norm"][0] - norm) <= 0.005 * abs(norm):
                index[row] = len(found)
                found.append(whole)
        return Sketches(np.concatenate(found), index) if found else None

    @cached_property
    def _lists(self) -> list[list[Any]]:
        return [self.pieces[name].to_list() for name in _LISTS]

    def pieces_of(self, row: int) -> list[Piece]:
        """What the ranks have of one row's value."""
        columns = [column[row] for column in self._lists]
        found = []
        for rank, micro, dp, ep, cp, tp, shape, *stats, file, digest, name in zip(*columns, strict=True):
            placement = self.ranks[rank].placements.get(name)
            local = placement.local if placement is not None else dims(shape)
            found.append(Piece(rank, (micro, dp, ep, cp, tp), local, tuple(stats), file, digest))
        return found

    def is_cut(self, row: int, *, batch: bool = False) -> bool:
        """Whether ranks hold different parts of one row's value, or of the batch, which follow one another."""
        way = self.ways.get(row, (-1, -1))
        return max(way[:-1] if batch else way) >= 0 or (not batch and any(self.placements_of(row)))

    def counts(self, op: str, mine: float | None, goal: float | None) -> bool:
        """Whether a whole number that a call is given counts what is split: golden's counts all pieces."""
        if mine == goal or not mine or not goal or goal % mine or _ARITHMETIC.search(op):  # a factor counts nothing
            return False
        layout, products = self.layout, {1}
        for size in (layout.tp, layout.cp, layout.dp, layout.ep, self.micro):
            products |= {size * one for one in products}
        return goal // mine in products

    def names_of(self, row: int) -> list[str]:
        """What the ranks call one row's value, in the order of its pieces."""
        names: list[str] = self._lists[-1][row]
        return names

    def placements_of(self, row: int) -> list[Any]:
        """The recorded placements of one row's value, in the order of its pieces."""
        ranks, names = self._lists[0][row], self._lists[-1][row]
        return [self.ranks[rank].placements.get(name) for rank, name in zip(ranks, names, strict=True)]


def make_whole(
    ranks: Mapping[int, RankDump], layout: Layout, path: Path, micro: int, other: Run | None, beside: Run
) -> Whole:
    """Fold the runs of all ranks; ``other`` lends the shapes of values that have the same names there. ``beside`` is a
    run of the other side, or of one of its ranks."""
    import polars as pl

    stages: dict[int, list[tuple[tuple[int, ...], Run]]] = defaultdict(list)
    of_run: dict[int, RankDump] = {}
    odd: list[str] = []
    if layout.ep == micro == 1 and not path.name.startswith("optimizer"):  # else ranks and calls differ anyway
        for stage in range(layout.pp):
            odd += align_calls([dump for rank, dump in ranks.items() if layout.place(rank).pp == stage])
    for rank, dump in ranks.items():
        fold_calls(dump, micro)
        place = layout.place(rank)
        stages[place.pp].append(((place.ep, place.cp, place.tp, place.dp, rank), dump.run))
        of_run[id(dump.run)] = dump
    # Of a run that is one piece, no path begins with the number of a virtual stage.
    bare = layout.vpp > 1 and all(chunk_of(name) is None for name in beside.ops)
    names = StageNames(
        chunks=layout.vpp > 1, lists=layout.experts, bare=bare, items_of=_list_of_stages(ranks, layout, other)
    )
    parts: list[Part] = []
    for chunk in range(layout.vpp):
        for stage in sorted(stages):
            parts += parts_of(sorted(stages[stage], key=lambda one: one[0]), stage, chunk, names, layout)
    frames = []
    for at, part in enumerate(parts):
        rows = pl.concat([_rows(of_run[id(run)], part.names, shard) for shard, run in part.ranks])
        expert = part.expert is not None and part.expert >= 0
        whole_part = layout.tp * layout.cp * layout.dp * (1 if expert else layout.ep) * micro  # pieces of each value
        frames.append(_grouped(rows).with_columns(part=pl.lit(at), expert=pl.lit(expert), expected=pl.lit(whole_part)))
    rows = one_of_each(pl.concat(frames), parts)
    said: list[str] = []
    if layout.pp > 1 and other is not None and path.name.startswith("optimizer"):
        copies = _copies_of_stages(rows, {_bare(name) for name in other.ops}, said)
        rows = rows.filter(~pl.col("op").is_in(copies))
    parents = merged_parents(parts)
    around = _around_own_words(parents, layout, _cut_tables(rows, ranks, other, layout))
    routing = _functions_in(around, parents).intersection(rows["op"].to_list())
    roots = _of_wrappers(parents, other)
    rows = rows.filter(~pl.col("op").is_in(list(routing | roots)))
    parents = {name: None if above in roots else above for name, above in parents.items() if name not in roots}
    called = [in_turn([run.ops for _, run in part.ranks]) for part in parts]
    ops = list(filter(set(rows["op"].to_list()).__contains__, in_order(parts, called)))
    order = pl.col("op").replace_strict({name: at for at, name in enumerate(ops)}, return_dtype=pl.Int32)
    rows = rows.with_columns(place=order).sort("place", "role", maintain_order=True)
    first = parts[0].first
    table = rows.select(
        pl.col("place").alias("op"), "role", (pl.col("op") + pl.col("suffix")).alias("name"),
        *(name for name in first.table.columns if name not in ("op", "role", "name")),
    )  # fmt: skip
    kept = (pl.col(f"{name}_all").alias(name) for name in _LISTS)
    pieces = rows.select("op", "suffix", "expert", "expected", "equal", *kept)
    notes = list(dict.fromkeys(note for dump in ranks.values() for note in dump.run.notes))
    whole = Whole(path, first.task, first.level, first.framework, ops, table, notes, layout, dict(ranks), pieces, micro)
    whole.parents, whole.arrangement, whole.findings = parents, str(layout), odd + said
    whole.exchanging = frozenset(call_head(name) for dump in ranks.values() for name in dump.exchanging)
    if routing:
        whole.own_words = frozenset(map(call_head, around))
        whole.assumed.append(f"left out: {len(routing):,} calls that look up or send away a rank's own words")
    whole.stacks = merged_stacks(parts)
    _lend_shapes(whole, other)
    if not path.name.startswith("optimizer"):
        whole.lost += [text for part in parts for text in _lacking(part, of_run)]
    return whole


def _list_of_stages(ranks: Mapping[int, RankDump], layout: Layout, other: Run | None) -> str:
    """The other run's list of modules of which each (virtual) stage is one; optimizers go by the calls beside them."""
    if layout.pp == 1 or other is None or isinstance(other, Whole):
        return ""
    first = {layout.place(rank).pp: dump for rank, dump in sorted(ranks.items(), reverse=True)}
    runs = {stage: dump.run for stage, dump in first.items()}
    if any(name.startswith(OPTIMIZER) for name in other.ops):
        try:
            other = open_run(other.path.with_name(DUMP))
            runs = {stage: open_run(dump.folder / DUMP) for stage, dump in first.items()}
        except TwinProbeError:
            return ""
    stages = [[name for name in runs[stage].ops if layout.vpp == 1 or chunk_of(name) == chunk]
              for chunk in range(layout.vpp) for stage in sorted(runs)]  # fmt: skip
    return items_of_list(stages, other.ops)


def _of_wrappers(parents: Mapping[str, str | None], other: Run | None) -> set[str]:
    """Calls that a wrapper is around, and that the other run cannot have: of the model itself, or with FSDP's shards.

    The inputs of the model would have no counterpart, so that whatever differs in them would seem to begin in its own
    code. Of two runs made of ranks, each copies other shards into what it gathers.
    """
    known = {parse_op(name).body for name in other.ops if is_module(name)} if other is not None else set()
    calls = ((name, parse_op(name).body) for name in parents if is_module(name))
    found = {name for name, path in calls if known and path not in known and (not path or path.isdecimal())}
    shards = {name for name in parents if name.startswith("fsdp.")}
    return found | shards if other is None or isinstance(other, Whole) else found


def _bare(name: str) -> str:
    """The name of an update with the parameter's path as it is without wrappers."""
    path, *rest = name.removeprefix(OPTIMIZER).rsplit(".", 3)
    return ".".join([OPTIMIZER + bare_path(path), *rest])


def _copies_of_stages(rows: pl.DataFrame, known: Collection[str], said: list[str]) -> list[str]:
    """Updates of a weight that another stage updates as well, and that is one in the other run: compared once.

    It is known by its values before the step. Both stages need the same gradient: adds to what is said if they differ.
    """
    gradients: dict[str, Any] = {}
    before: dict[Any, list[str]] = defaultdict(list)
    ranks: dict[str, list[int]] = {}
    stats = [f"{stat}_all" for stat in STATS]
    for op, suffix, own, shapes, *values in rows.select("op", "suffix", "rank_all", "shape_all", *stats).iter_rows():
        first = shapes[0], *(value[0] for value in values)
        if suffix == ".parameters.before":
            before[first].append(op)
            ranks[op] = own
        elif suffix == ".input.0":
            gradients[op] = first
    copies = []
    for alike in before.values():
        there = [op for op in alike if op in known]
        for op in alike if len(there) == 1 else ():
            if op in known or set(ranks[op]) & set(ranks[there[0]]):
                continue
            copies.append(op)
            if gradients.get(op) != gradients.get(there[0]):
                name, at = updated_parameter(op), ranks[op][0]
                said.append(f"{there[0]}.input.0: {name} on rank {at} is the same weight, but has another gradient")
    return copies


def _lacking(part: Part, of_run: Mapping[int, RankDump]) -> list[str]:
    """Ranks that made fewer module calls than others of the same part: they ended early, or computed something else."""
    called = {of_run[id(run)].rank: {op for op in run.ops if is_module(op)} & set(part.names) for _, run in part.ranks}
    every = set().union(*called.values())
    lost = []
    for rank, own in called.items():
        if len(own) < len(every):
            first = min(every - own)
            lost.append(
                f"rank {rank} lacks {len(every) - len(own):,} of the calls that other ranks made, {first} first"
            )
    return lost


def _cut_tables(rows: pl.DataFrame, ranks: Mapping[int, RankDump], other: Run | None, layout: Layout) -> set[str]:
    """Calls of modules of which each rank has some rows, by their placements or by the other run's longer parameter.

    These are tables of words, and experts that are stacked in one parameter.
    """
    import polars as pl

    if layout.tp == layout.ep == 1:
        return set()
    whole = {}
    if other is not None:
        table = other.table.filter(pl.col("role") == PARAMETER)
        whole = dict(zip(_keys(other, table), table["shape"].to_list(), strict=True))
    found = set()
    tables = rows.filter(pl.col("role") == PARAMETER)
    if layout.ep == 1:  # tables are given the numbers of words
        numbers = (pl.col("role") == INPUT) & (pl.col("kind") == TENSOR) & pl.col("dtype").str.contains("int")
        tables = tables.filter(pl.col("op").is_in(rows.filter(numbers)["op"].to_list()))
    for op, suffix, rank, name, shapes in tables.select("op", "suffix", "rank_all", "own_name_all", "shape_all").rows():
        placement = ranks[rank[0]].placements.get(name[0])
        own, goal = dims(shapes[0]), dims(whole.get(call_head(op) + suffix) or "")
        shorter = bool(own and goal and len(own) == len(goal) and own[0] < goal[0])
        if shorter or (placement is not None and 0 in placement.ways):
            found.add(op)
    return found


def _around_own_words(parents: Mapping[str, str | None], layout: Layout, tables: set[str]) -> set[str]:
    """Calls of modules whose functions deal with a rank's own words, so that each rank computes something else.

    These are modules around experts that lie on several ranks, and those of which each rank has some rows.
    """
    around = set(tables)
    if layout.ep > 1:
        inside = {above for name, above in parents.items() if above is not None and in_expert(name, {}, layout.experts)}
        inside |= {above for name in tables if (above := parents.get(name)) is not None}
        around |= {name for name in inside if not in_expert(name, {}, layout.experts)}
    if layout.tp > 1:
        around |= {name for name in parents if is_module(name) and _VOCABULARY_CLASS.search(parse_op(name).cls)}
    return around


def _functions_in(modules: Collection[str], parents: Mapping[str, str | None]) -> set[str]:
    """The functions that are called right inside of these modules."""
    return with_backward(name for name, above in parents.items() if above in modules and not is_module(name))


def _rows(dump: RankDump, names: dict[str, str], shard: tuple[int, ...]) -> pl.DataFrame:
    """A rank's rows with the names of their calls in the whole model, and where the rank stands."""
    import polars as pl

    run = dump.run
    per_op = pl.DataFrame({
        "renamed": pl.Series([names.get(name) for name in run.ops], dtype=pl.String),
        "micro": pl.Series(dump.micro, dtype=pl.Int32),
    })  # fmt: skip
    ep, cp, tp, dp, rank = shard
    table = run.table.with_columns(dump.suffixes.alias("suffix")).with_columns(per_op[run.table["op"].to_numpy()])
    prefix = f"{dump.folder.name}/{TENSOR_FOLDER}/"
    return table.filter(pl.col("renamed").is_not_null()).with_columns(
        pl.col("name").alias("own_name"), pl.col("renamed").alias("op"),
        (pl.lit(prefix) + pl.col("file")).alias("file"),
        rank=pl.lit(rank), dp=pl.lit(dp), ep=pl.lit(ep), cp=pl.lit(cp), tp=pl.lit(tp),
    ).drop("renamed", "name")  # fmt: skip


def _grouped(rows: pl.DataFrame) -> pl.DataFrame:
    """One row per value, with lists of what the ranks have of it; the first one's stands for all, for now."""
    import polars as pl

    kept = [name for name in rows.columns if name not in ("op", "suffix", *_LISTS)] + [
        "shape",
        *STATS,
        "file",
        "digest",
    ]
    own = ("shape", "digest", "kind", *(f"{stat}{end}" for stat in STATS for end in ("", "_kind", "_text")))
    # Values that are no tensors are equal if their texts and meanings are.
    equal = pl.all_horizontal(*(pl.col(name).n_unique() == 1 for name in (*own, "value_digest", "meaning")))
    return rows.group_by("op", "suffix", maintain_order=True).agg(
        *(pl.col(name).first() for name in kept),
        equal.alias("equal"),
        *(pl.col(name).implode().alias(f"{name}_all") for name in _LISTS),
    )


def _lend_shapes(whole: Whole, other: Run | None) -> None:
    """Before values are paired, they have the shapes that their names have on the other side.

    Values are paired by their statistics too. Those of a single rank's piece say nothing of the whole: they are unknown
    until the pieces are settled.
    """
    import polars as pl

    shapes, kinds = (whole.table[name].to_list() for name in ("shape", "kind"))
    cut: dict[int, int] = {}
    if other is not None:
        known = {key: row for row, key in enumerate(_keys(other))}
        lent = other.table["shape"].to_list()
        for row, (key, kind) in enumerate(zip(_keys(whole), kinds, strict=True)):
            partner = known.get(key, -1)
            if partner >= 0 and kind == TENSOR and lent[partner] != shapes[row]:
                shapes[row] = lent[partner]
                cut[row] = partner
        whole.table = whole.table.with_columns(pl.Series("shape", shapes, dtype=pl.String))
    for run, rows in ((whole, cut.keys()), (other, cut.values())):
        if isinstance(run, Whole):
            pieces = ~run.pieces["equal"] | pl.Series(np.isin(np.arange(run.table.height), list(rows)))
            run.table = run.table.with_columns(
                pl.when(pieces & (pl.col("kind") == TENSOR) & pl.col(f"{stat}_kind").is_in([FLOAT, INT]))
                .then(pl.lit(nan)).otherwise(stat).alias(stat) for stat in STATS
            )  # fmt: skip


def call_head(name: str) -> str:
    """The name of a call without wrappers and classes, which ranks of a layout may have of their own."""
    op = parse_op(name)
    path = bare_path(op.body) if op.is_module or op.direction == GRADIENTS else f"{op.prefix}.{op.body}.{op.cls}"
    return f"{path} {op.direction} {op.call} "


def _keys(run: Run, rows: pl.DataFrame | None = None) -> list[str]:
    """The names of values without wrappers and classes."""
    heads = [(len(name), call_head(name)) for name in run.ops]
    rows = run.table if rows is None else rows
    return [heads[op][1] + name[heads[op][0] :] for op, name in rows.select("op", "name").iter_rows()]
