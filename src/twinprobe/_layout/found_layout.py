"""Which parallel layout the ranks of a step are in, as their headers and shapes tell."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations, product
from math import gcd, prod
from typing import Any, NamedTuple

import msgspec

from twinprobe._align.calls import bare_path, dims
from twinprobe._layout.layout import Layout, layout_for, read_sizes
from twinprobe._layout.pieces import Shape
from twinprobe._layout.ranks import RankDump, parameter_shapes, token_shape
from twinprobe._layout.stages import experts_in, in_expert
from twinprobe._runs.names import FORWARD, parse_op
from twinprobe._runs.run import OPTIMIZER_FILE, Run, open_run
from twinprobe._runs.table import INPUT, OUTPUT, PARAMETER, STATS, TENSOR
from twinprobe.errors import BadInput, TwinProbeError

# How a layout is known.
GIVEN, AS_MEANT = "as given", "by the dimension that was given"
NOT_KNOWN = "only what all ranks hold alike is compared"
_MOST_COPIES = 0.9  # of the parameters of replicas: others may be wrong


class Beside(NamedTuple):
    """The first rank of another run that is made of ranks, and how many it has."""

    run: Run
    world: int


class FoundLayout(NamedTuple):
    """The layout of ranks, how it is known, and what is wrong with what was given or recorded."""

    layout: Layout
    how: str
    mistake: BadInput | None = None


def find_layout(
    ranks: Mapping[int, RankDump], other: Run | None, world: int, where: str, beside: Beside | None = None,
    given: str = "",
) -> FoundLayout:  # fmt: skip
    """The layout that was given, as in ``tp=2``; else the one that was recorded, or that parameters tell.

    ``other`` is the other run, if that is one process, else a rank of it is ``beside``. Sizes that do not multiply to
    the ranks are a mistake, and left aside. Where nothing tells, no layout is claimed.
    """
    headers = [dump.header for dump in ranks.values()]
    recorded = next((dict(header["sizes"]) for header in headers if isinstance(header.get("sizes"), dict)), {})
    names = "tp", "pp", "cp", "ep"
    recorded = {name: size for name, size in recorded.items() if isinstance(size, int) and name in names}
    mistake: BadInput | None = None
    for sizes, how in ((read_sizes(given) if given else {}, GIVEN), (recorded, "recorded")):
        try:
            if sizes and (how == GIVEN or any(size > 1 for size in sizes.values())):
                layout = with_experts(layout_for(sizes, world, where), ranks, other)
                return FoundLayout(layout, how if world > 1 else "", mistake)
        except BadInput as error:
            mistake = mistake or error
    if world == 1:
        return FoundLayout(Layout(1, 1, 1), "", mistake)
    sizes = {}
    stages, held = _recorded_stages(headers)
    if stages and world % (stages // held) == 0:
        sizes |= {"pp": stages // held, "vpp": held}
    named = _mesh_sizes(headers)
    if other is None and not named and not sizes:
        sizes, how = _of_parameters(ranks, world, beside) if beside is not None else ({}, "")
        if not sizes and mistake is not None:
            sizes, how = _as_meant(given, world), AS_MEANT
        if sizes:
            near = beside.run if beside is not None else None
            return FoundLayout(with_experts(layout_for(sizes, world, where), ranks, near), how, mistake)
        unknown = BadInput(f"how its {world} ranks are laid out is not recorded", where=where,
                           hint="say it: --layout tp=2")  # fmt: skip
        return FoundLayout(Layout(world, 1, 1, known=False), NOT_KNOWN, mistake or unknown)
    lists = _compare_shapes(list(ranks.values()), other, world, sizes) if other is not None else ()
    for name, size in named.items():
        sizes[name] = max(sizes.get(name, 1), size)
    if world % prod(sizes.get(name, 1) for name in names):
        told = ",".join(f"{name}={size}" for name, size in sizes.items())
        mistake = mistake or BadInput(f"its {world} ranks look like {told}, which does not multiply to them",
                                      where=where, hint="say how they are laid out: --layout tp=2,pp=2")  # fmt: skip
        return FoundLayout(Layout(world, 1, 1, known=False), NOT_KNOWN, mistake)
    layout = _in_order_of_stages(replace(layout_for(sizes, world, where), experts=lists), ranks)
    return FoundLayout(layout, "recorded" if named and other is None else "found", mistake)


def _in_order_of_stages(layout: Layout, ranks: Mapping[int, RankDump]) -> Layout:
    """The layout with its stages where ranks hold the same parameters: copies of a stage may follow one another, as in
    Megatron, or the stages of each copy."""
    if layout.pp in (1, layout.rank_size):
        return layout
    held = {rank: set(_parameters(dump.run).items()) for rank, dump in ranks.items()}

    def in_common(one: Layout) -> int:
        first: dict[int, set[Any]] = {}
        return sum(len(own & first.setdefault(one.place(rank).pp, own)) for rank, own in held.items())

    rest = [name for name in layout.order.split("-") if name != "pp"]
    others = [replace(layout, order="-".join([*rest[:at], "pp", *rest[at:]])) for at in reversed(range(len(rest)))]
    return max([layout, *others], key=in_common)


def _as_meant(given: str, world: int) -> dict[str, Any]:
    """The one dimension that was given, with as many ranks as there are."""
    sizes = read_sizes(given) if given else {}
    names = [name for name in ("tp", "pp", "dp", "cp", "ep") if sizes.get(name, 1) > 1]
    return {names[0]: world} if len(names) == 1 and sizes.get("vpp", 1) == 1 else {}


def _of_parameters(ranks: Mapping[int, RankDump], world: int, beside: Beside) -> tuple[dict[str, Any], str]:
    """What the parameters of ranks tell where no run has them whole, and the shapes of what they are given.

    Copies of a parameter are equal. One that is cut differs from rank to rank, and has another shape in another layout.
    Experts differ, and what is around them does not. Stages have nothing in common.
    """
    first = next(iter(ranks.values())).run
    uncut = _uncut(first, beside.run)
    held, lists = [_parameters(dump.run) for dump in ranks.values()], expert_lists(ranks, beside.run)
    around, inside = ([{name: value for name, value in one.items() if in_expert(f".{name}", {}, lists) == expert}
                       for one in held] for expert in (False, True))  # fmt: skip
    found: dict[str, Any] = {}
    how = ""
    if not around[0] or len(held) < world:
        return found, how
    spread = list(dict.fromkeys(map(_contents, inside)))
    if not _alike(around):
        cut, stages = _cut_parameters(held, parameter_shapes(beside.run)), _stages_of(held)
        if cut and (uncut or cut == world):
            found, how = {"tp": cut}, "found: parameters are cut otherwise in the other run"
        elif stages and not cut:
            found, how = {"pp": stages}, "found: stages hold other parameters"
    elif len(spread) > 1:
        usual = all(_contents(one) == spread[at % len(spread)] for at, one in enumerate(inside))
        found, how = ({"ep": len(spread)} if usual and uncut else {}), "found: ranks hold other experts"
    elif uncut:
        found, how = {"dp": world}, "found: all ranks hold the same parameters"
    elif size := _cut_sequences(first, world, beside):
        found, how = {"cp": size}, "found: sequences are cut otherwise in the other run"
    return found, how


def _cut_parameters(held: Sequence[Mapping[str, Any]], shapes: Mapping[str, Shape]) -> int:
    """Into how many parts the parameters are cut that have another shape in the other run; 0 if not all alike."""
    names = held[0].keys()
    if any(one.keys() != names for one in held):
        return 0
    groups = set()  # for each parameter, who of the ranks is the first that has this part of it
    for name in (name for name in names if name in shapes and shapes[name] != held[0][name][0]):
        parts = [one[name] for one in held]
        groups.add(tuple(map(parts.index, parts)))
    size = len(set(next(iter(groups)))) if len(groups) == 1 else 0
    return size if size and groups == {tuple(at % size for at in range(len(held)))} else 0


def _alike(held: Sequence[Mapping[str, Any]]) -> bool:
    """Whether ranks have the same parameters, but for a few: a copy that differs is a finding, or one that is missing
    since a rank does not call its module."""
    names = set().union(*held)
    usual = max(held, key=len)
    same = [sum(value == usual.get(name) for name, value in one.items()) for one in held]
    return bool(min(same) >= _MOST_COPIES * len(names))


def _contents(held: Mapping[str, Any]) -> tuple[Any, ...]:
    """Parameters with their values, which tell ranks apart; constants (biases of a new model) are alike everywhere."""
    return tuple((name, value) for name, value in sorted(held.items()) if value[1] != value[2])


def _stages_of(held: Sequence[Mapping[str, Any]]) -> int:
    """How many stages ranks are, each as many in a row with the same parameters; 0 if several have some in common."""
    contents = list(map(_contents, held))
    kinds = list(dict.fromkeys(contents))
    size = len(held) // len(kinds)
    if len(kinds) == 1 or not all(kinds) or contents != [one for one in kinds for _ in range(size)]:
        return 0
    values = [{value for _, value in one} for one in kinds]
    # Stages may share a weight: an embedding that is the output layer too.
    return len(kinds) if all(len(one & other) <= 1 for one, other in combinations(values, 2)) else 0


def _uncut(own: Run, other: Run) -> bool:
    """Whether ranks of both runs are given sequences of one length; images have none that might be cut."""
    mine, there = token_shape(own), token_shape(other)
    if mine is not None and there is not None:
        return mine[1] == there[1]
    return mine is there and _sequence_parts(own, other) == _sequence_parts(other, own) == 1


def _cut_sequences(own: Run, world: int, beside: Beside) -> int:
    """How many ranks share a sequence, so that both runs have the same batch; 0 if none could.

    Shapes may allow of several. The one with the fewest dimensions of ranks is the likeliest, then that with most cuts.
    """
    mine, there = token_shape(own), token_shape(beside.run)
    if mine is None or there is None:
        parts = _sequence_parts(own, beside.run), _sequence_parts(beside.run, own)
        mine, there = (1, parts[1]), (1, parts[0])
    found = []
    for size, other in product(range(1, world + 1), range(1, beside.world + 1)):
        if world % size or beside.world % other or mine[1] * size != there[1] * other:
            continue
        if mine[0] * (world // size) == there[0] * (beside.world // other):
            sizes = size, world // size, other, beside.world // other
            found.append((sum(one > 1 for one in sizes), -size, size))
    return min(found)[-1] if found else 0


def _sequence_parts(run: Run, other: Run) -> int:
    """Into how many parts what most modules are given was cut, along a dimension that is not the batch."""
    shapes = [_given(one) for one in (run, other)]
    parts: Counter[int] = Counter()
    for name, own in shapes[0].items():
        whole = shapes[1].get(name, ())
        cut = [dim for dim, (mine, size) in enumerate(zip(own, whole, strict=False)) if dim and size > mine > 0]
        if len(own) == len(whole) > 2:
            fits = len(cut) == 1 and whole[cut[0]] % own[cut[0]] == 0
            parts[whole[cut[0]] // own[cut[0]] if fits else 1] += 1
    return parts.most_common(1)[0][0] if parts else 1


def _given(run: Run, role: int = INPUT) -> dict[str, Shape]:
    """The shapes of what modules are given, or give, by their paths."""
    import polars as pl

    rows = run.table.filter((pl.col("role") == role) & (pl.col("kind") == TENSOR))
    calls = ((parse_op(run.ops[op]), name, shape) for op, name, shape in rows.select("op", "name", "shape").iter_rows())
    return {f"{bare_path(op.body)} {name.removeprefix(op.text)}": dims(shape) or ()
            for op, name, shape in calls if op.is_module and op.direction == FORWARD and op.call <= 0}  # fmt: skip


def _parameters(run: Run) -> dict[str, tuple[Any, ...]]:
    """The shapes and statistics of a run's parameters, by their paths."""
    import polars as pl

    rows = run.table.filter((pl.col("role") == PARAMETER) & (pl.col("kind") == TENSOR))
    return {f"{bare_path(parse_op(run.ops[op]).body)}.{name.rpartition('.')[2]}": (dims(shape) or (), *stats)
            for op, name, shape, *stats in rows.select("op", "name", "shape", *STATS).iter_rows()}  # fmt: skip


def _recorded_stages(headers: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """How many stages a recorded pipeline has, and how many of them each rank holds; 0 and 1 where there is none."""
    for header in headers:
        pipeline = header.get("pipeline")
        stages = pipeline.get("stages") if isinstance(pipeline, dict) else None
        if isinstance(pipeline, dict) and isinstance(stages, int) and stages > 0:
            own = pipeline.get("held")
            held = len(own) if isinstance(own, list) and own and stages % len(own) == 0 else 1
            return stages, held
    return 0, 1


def recorded_sizes(headers: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The sizes of a layout that layout.json tells: the program's own, those of named meshes, stages of a pipeline."""
    known: dict[str, Any] = next((dict(one) for header in headers if isinstance(one := header.get("sizes"), dict)), {})
    stages, held = _recorded_stages(headers)
    known |= _mesh_sizes(headers) | ({"pp": stages // held} if stages else {})
    return {name: known[name] for name in ("tp", "pp", "cp", "ep") if isinstance(known.get(name), int)}


def contradictions(layout: Layout, ranks: Mapping[int, RankDump], other: Run | None) -> list[str]:
    """What the ranks have recorded, or hold, that no run of the given layout would; ``other`` is a single process."""
    known = recorded_sizes([dump.header for dump in ranks.values()])
    found = [f"the ranks recorded {name}={size}" for name, size in known.items() if size != layout.size(name)]
    if other is None or found:
        return found
    first = next(iter(ranks.values()))
    own, whole = parameter_shapes(first.run), parameter_shapes(other)
    tokens, goal = token_shape(first.run), token_shape(other)
    if layout.pp > 1 and whole and whole.keys() <= own.keys():
        found.append(f"pipeline stages hold some layers, but rank {first.rank} has all {len(whole)} parameters")
    common = [name for name in own if name in whole and len(own[name]) == len(whole[name])]
    placed = any(dump.placements for dump in ranks.values())
    if layout.tp > 1 and common and not placed and all(own[name] == whole[name] for name in common):
        found.append(f"tensor parallel ranks hold parts of parameters, but rank {first.rank} has whole ones")
    cut = [name for name in common if own[name] != whole[name]]
    if layout.tp == layout.cp == layout.ep == 1 and cut and not placed:
        found.append(f"ranks of this layout hold whole parameters, but {cut[0]} is {list(own[cut[0]])} on rank "
                     f"{first.rank}, and {list(whole[cut[0]])} in the other run")  # fmt: skip
    if tokens and goal and layout.cp > 1 and tokens[1] == goal[1]:
        found.append(f"context parallel ranks hold parts of sequences, but rank {first.rank} was given {list(tokens)}, "
                     f"and the other run {list(goal)}")  # fmt: skip
    if layout.ep > 1 and own and not cut and not experts_in(first.run.ops, layout.experts):
        found.append("expert parallel ranks hold some of the experts, but no list of experts was recorded")
    return found


def unlike_types(ranks: Mapping[int, RankDump], layout: Layout, other: Run | None) -> list[str]:
    """Ranks that compute in another type than those that run the same part of the program; ``other`` is one process."""
    import polars as pl

    tables = []
    for rank, dump in ranks.items():
        # Names without the calls that were left out, of which ranks may have made unlike numbers.
        calls = pl.Series(dump.run.ops, dtype=pl.String).gather(dump.run.table["op"])
        place, table = layout.place(rank), dump.run.table.with_columns(name=calls + dump.suffixes)
        floats = table.filter((pl.col("kind") == TENSOR) & pl.col("dtype").str.contains("float"))
        tables.append(floats.select("name", "dtype", rank=pl.lit(rank), part=pl.lit(f"{place.pp} {place.ep}")))
    rows = pl.concat(tables).with_columns(types=pl.col("dtype").n_unique().over("part", "name"))
    rows = rows.filter(pl.col("types") > 1)
    if rows.is_empty():
        return []
    first = rows.filter((pl.col("name") == rows["name"][0]) & (pl.col("part") == rows["part"][0]))
    name = rows["name"][0].replace("Module.module.", "Module.", 1)  # a wrapper is no part of it
    goal = other.table.filter(other.table["name"] == name)["dtype"].to_list() if other is not None else []
    usual = goal[0] if goal and goal[0] in first["dtype"] else first["dtype"].mode().sort()[0]
    odd = first.filter(pl.col("dtype") != usual)
    count, types = rows["name"].n_unique(), [str(dtype).rpartition(".")[2] for dtype in (odd["dtype"][0], usual)]
    more = f" and {count - 1:,} more" if count > 1 else ""
    who = f"{'ranks' if odd.height > 1 else 'rank'} {', '.join(map(str, sorted(odd['rank'])[:8]))}"
    return [f"{name}{more}: {types[0]} on {who}, {types[1]} on others: they compute in different types"]


def _mesh_sizes(headers: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Sizes by the names that the dimensions of device meshes have."""
    found: dict[str, int] = {}
    for header in headers[:1]:
        meshes = header.get("meshes")
        for text, names in meshes.items() if isinstance(meshes, dict) else ():
            try:
                shape = _shape_of(msgspec.json.decode(text))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            for name, size in zip(names if isinstance(names, list) else (), shape, strict=False):
                if name in ("tp", "pp", "cp", "ep"):
                    found[name] = size
    return found


def _shape_of(mesh: Any) -> list[int]:
    shape = []
    while isinstance(mesh, list) and mesh:
        shape.append(len(mesh))
        mesh = mesh[0]
    return shape


_ITEM = re.compile(r"(?<=\.)(\w+)\.(\d{1,18})(?=\.)")


def expert_lists(ranks: Mapping[int, RankDump], other: Run | None) -> tuple[str, ...]:
    """Lists of modules that are experts by what they hold, whatever their name: each rank has some of them.

    The other run's list is several times as long, or as short where it is made of ranks too. Its items have the same
    parameters on every rank, with other values; what is around them is the same everywhere, so these are no layers of
    pipeline stages.
    """
    if other is None or len(ranks) < 2:
        return ()
    counts: list[dict[str, set[int]]] = []
    runs = [dump.run for dump in ranks.values()]
    for run in (other, *runs):
        found: dict[str, set[int]] = defaultdict(set)
        for name in run.ops:
            for item in _ITEM.finditer(name) if parse_op(name).is_module else ():
                found[item[1]].add(int(item[2]))
        counts.append(found)
    whole, *local = counts
    lists = []
    for name, numbers in whole.items():
        sizes = {len(one.get(name, ())) for one in local}
        size = min(sizes)
        long, short = max(len(numbers), size), min(len(numbers), size)
        fewer = len(sizes) == 1 and size and long % short == 0 and long > short and len(numbers) <= size * len(ranks)
        if fewer and name not in ("experts", "local_experts") and _differ_inside_only(runs, name):
            lists.append(name)
    return tuple(lists)


def with_experts(layout: Layout, ranks: Mapping[int, RankDump], other: Run | None) -> Layout:
    """A layout whose sizes are known, with the lists of experts that are not called so."""
    return replace(layout, experts=expert_lists(ranks, other)) if layout.ep > 1 else layout


def _differ_inside_only(runs: Sequence[Run], name: str) -> bool:
    """Whether the parameters of ranks differ in the items of a list, and agree outside of it."""
    import polars as pl

    sides: tuple[list[dict[str, Any]], list[dict[str, Any]]] = [], []
    for run in runs:
        rows = run.table.filter((pl.col("role") == PARAMETER) & (pl.col("kind") == TENSOR))
        values = {key: (shape, norm) for key, shape, norm in rows.select("name", "shape", "norm").iter_rows()}
        for at, inside in enumerate((True, False)):
            sides[at].append({key: value for key, value in values.items() if (f".{name}." in key) == inside})
    items, others = sides
    shapes = [Counter(shape for shape, _ in one.values()) for one in items]
    # A copy that differs is a finding, not a sign of another layout.
    same = [sum(value == others[0].get(key) for key, value in one.items()) for one in others]
    alike = all(
        one.keys() == others[0].keys() and 2 * count > len(one) for one, count in zip(others, same, strict=True)
    )
    return alike and all(one == shapes[0] for one in shapes) and any(one != items[0] for one in items[1:])


def _updated_shapes(dumps: Sequence[RankDump], other: Run) -> list[dict[str, Shape]]:
    """The shapes of parameters that optimizers tell where no module is recorded (level L1), the other run's first; none
    where these have shards of their own: distributed tensors, flat stretches, a share of all parameters for each."""
    found: list[dict[str, Shape]] = [{}] * (len(dumps) + 1)
    with suppress(TwinProbeError):
        folders = [other.path.parent, *(dump.folder for dump in dumps)]
        shapes = [parameter_shapes(open_run(folder / OPTIMIZER_FILE)) for folder in folders]
        sizes = [{name: len(shape) for name, shape in one.items()} for one in shapes]
        if all(one == sizes[0] for one in sizes) and not any(dump.placements or dump.sharded for dump in dumps):
            found = shapes
    return found


def _batch_parts(run: Run, other: Run) -> int:
    """Into how many parts the batch was cut of which a rank has one, as the first inputs tell; 0 where they do not."""
    first = [_first_input(one) for one in (run, other)]
    own, whole = (dims(shape) or () for _, shape in first)
    if first[0][0] != first[1][0] or not own or own[1:] != whole[1:] or not own[0] or whole[0] % own[0]:
        return 0
    return whole[0] // own[0]


def _gives_columns(run: Run, other: Run, parts: int) -> bool:
    """Whether a module gives a part of the columns that it has in the other run, for all samples: it holds a part of a
    weight, and was given what other ranks hold of the batch, or of the sequence where that comes first."""
    mine, whole = _given(run, OUTPUT), _given(other, OUTPUT)
    return any(
        own and len(own) == len(goal) > 1 and own[:-1] == goal[:-1] and own[-1] * parts == goal[-1]
        for own, goal in ((shape, whole.get(name, ())) for name, shape in mine.items())
    )


def _first_input(run: Run) -> tuple[str, str]:
    """The path of the module that is first given a tensor, and its shape."""
    import polars as pl

    rows = run.table.filter((pl.col("role") == INPUT) & (pl.col("kind") == TENSOR)).select("op", "shape").rows()
    ops = ((parse_op(run.ops[op]), shape) for op, shape in rows)
    return next(((bare_path(op.body), shape) for op, shape in ops if op.is_module), ("", ""))


def _compare_shapes(dumps: Sequence[RankDump], other: Run, world: int, sizes: dict[str, int]) -> tuple[str, ...]:
    """Find the sizes that are not known; returns lists of experts that are not called so."""
    whole, *own = (parameter_shapes(run) for run in (other, *(dump.run for dump in dumps)))
    if not whole and not any(own):
        whole, *own = _updated_shapes(dumps, other)
    lists = expert_lists({dump.rank: dump for dump in dumps}, other)
    if "pp" not in sizes:
        # A rank that holds everything but experts is no stage, though others may lack a module.
        every, *held = (
            frozenset(name for name in shapes if not in_expert(f".{name}", {}, lists)) for shapes in (whole, *own)
        )
        stages = set(held)
        # Stages of nothing but equal layers have the same names on all ranks, and other values.
        unlike = len(stages) > 1 or not _alike([_parameters(dump.run) for dump in dumps])
        alone = unlike and all(len(names) < len(every) for names in stages)
        # Stages in the middle may have the same names: each rank holds its part of all parameters.
        count = round(world * len(every) / sum(map(len, held))) if len(held) == world and alone else 0
        sizes["pp"] = count if count > len(stages) and world % count == 0 else len(stages) if alone else 1
    experts, local = (experts_in(names, lists) for names in (other.ops, dumps[0].run.ops))
    for name, numbers in experts.items():
        if numbers and local.get(name) and len(numbers) % len(local[name]) == 0:
            sizes["ep"] = max(sizes.get("ep", 1), len(numbers) // len(local[name]))
    shrunk = [1]
    for name, shape in own[0].items():
        if name in whole and len(shape) == len(whole[name]):
            shrunk += [size // have for size, have in zip(whole[name], shape, strict=True) if have and size % have == 0]
    sizes["tp"] = gcd(world, max(shrunk)) if max(shrunk) > 1 else 1
    parts = _batch_parts(dumps[0].run, other)
    columns = sizes["tp"] == world == parts and _gives_columns(dumps[0].run, other, world)
    if sizes["tp"] == world == parts and "ep" not in sizes and not columns:
        # Ranks with parts of parameters and of the batch send samples to one another, as to experts.
        sizes |= {"tp": 1, "ep": world}
    tokens, goal = token_shape(dumps[0].run), token_shape(other)
    if not (tokens and goal) and sizes["tp"] * sizes["pp"] * sizes.get("ep", 1) == 1:
        tokens, goal = (1, 1), (1, _sequence_parts(dumps[0].run, other))
    if tokens and goal and tokens[1] < goal[1] and goal[1] % tokens[1] == 0:
        size, model = goal[1] // tokens[1], sizes["tp"] * sizes["pp"] * sizes.get("ep", 1)
        # Where ranks have a part of the batch, whole numbers of another length (edges of graphs) are no sequences
        # of words: there is no vector for each, and there are no ranks for both.
        words = any(shape[:2] == tokens and len(shape) == 3 for shape in _given(dumps[0].run).values())
        if size == parts and world % (model * size * parts) and not words:
            return lists
        # Where there are no ranks for it beside those that cut the parameters, these cut the sequence too.
        sizes |= {"cp": size} if size != sizes["tp"] or world % (model * size) == 0 else {}
    return lists
