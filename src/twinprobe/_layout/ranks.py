"""The ranks of one step: their dumps opened, their calls counted as one process would."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import pairwise
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from twinprobe._align.calls import bare_path, dims, epsilon
from twinprobe._judge.deviation import product_types
from twinprobe._judge.operations import hidden_precision
from twinprobe._layout.pieces import Placement, Shape, read_placement
from twinprobe._layout.stages import chunk_of
from twinprobe._runs.names import BACKWARD, FORWARD, GRADIENTS, OPTIMIZER, is_module, parse_op
from twinprobe._runs.run import Run, open_run
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER, STATS, TENSOR
from twinprobe._runs.whole_files import whole_file
from twinprobe.errors import BadInput, TwinProbeError

if TYPE_CHECKING:
    import polars as pl

LAYOUT_FILE = "layout.json"
COLLECTIVE = re.compile(r"^(Mint)?(Distributed|_c10d_functional)\.")
REDUCTION = COLLECTIVE.pattern + r"(all_reduce|_?reduce_scatter\w*|reduce)\."
_PIECE_BY_PIECE = re.compile(COLLECTIVE.pattern + r"(batch_isend_irecv|i?send|i?recv|broadcast)\.")
_TO_EACH = re.compile(COLLECTIVE.pattern + r"all_to_all\w*\.")
ONE_RANK = "here, other ranks do not", "here, other ranks do"
_AFTER_BACKWARD = ("optimizer", "clip_grad")  # parents of what runs once for all micro batches


@dataclass
class RankDump:
    """What one rank recorded: its run, the micro batch of each call, and the placements of its distributed tensors."""

    rank: int
    folder: Path
    run: Run
    micro: list[int]
    suffixes: pl.Series
    placements: dict[str, Placement] = field(default_factory=dict)
    sharded: dict[str, Placement] = field(default_factory=dict)
    """How the optimizer has the parameters, by their paths: modules that gather them have them whole."""
    header: dict[str, Any] = field(default_factory=dict)
    exchanging: set[str] = field(default_factory=set)
    """Modules whose functions on pieces of other ranks were left out."""


def open_ranks(files: Mapping[int, Path], lost: list[str]) -> dict[int, RankDump]:
    """Open the dumps of all ranks; one that cannot be read is told in ``lost``."""
    opened: dict[int, RankDump] = {}
    for rank, file in sorted(files.items()):
        try:
            run = without_updates(open_run(file))
        except TwinProbeError as error:
            lost.append(f"rank {rank} is left out: {error}")
            continue
        header, wrong = read_layout(file.parent / LAYOUT_FILE)
        if wrong:
            lost.append(wrong)
        dump = RankDump(rank, file.parent, run, [0] * len(run.ops), _suffixes(run), header=header)
        lost += _take_placements(dump)
        _number_gradients(dump)
        opened[rank] = dump
    if not opened:
        raise BadInput("no rank could be read", where=next(iter(files.values())).parent.parent, hint="; ".join(lost))
    return opened


def read_layout(path: Path) -> tuple[dict[str, Any], str]:
    try:
        document = msgspec.json.decode(whole_file(path))
    except FileNotFoundError:
        return {}, ""
    except (OSError, BadInput, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return {}, f"{path}: cannot be used: {error}"
    return (document, "") if isinstance(document, dict) else ({}, f"{path}: is not an object")


def micro_batches(dump: RankDump) -> int:
    """Into how many micro batches a pipeline cut the batch, as layout.json has it; 1 where nothing is said."""
    pipeline = dump.header.get("pipeline")
    count = pipeline.get("micro_batches") if isinstance(pipeline, dict) else None
    return count if isinstance(count, int) and count > 0 else 1


def recorded_world(path: Path) -> int:
    """The number of ranks that a layout.json names; 0 where there is none."""
    world = read_layout(path)[0].get("world_size")
    return world if isinstance(world, int) and 0 < world <= 1 << 20 else 0


def holds_shards(header: Mapping[str, Any]) -> bool:
    """Whether a layout.json has the placements of an optimizer's parameters."""
    values = header.get("values")
    return isinstance(values, dict) and any(name.startswith(OPTIMIZER) for name in values)


def reduced_types(path: Path) -> list[str]:
    """The 16-bit types in which a layout.json says that gradients were reduced."""
    types = read_layout(path)[0].get("reduced_in")
    return [one for one in types if isinstance(one, str)] if isinstance(types, list) else []


def _take_placements(dump: RankDump) -> list[str]:
    """Placements of the values in this dump, checked against their shapes; those that contradict are told."""
    values = dump.header.pop("values", None)
    if not isinstance(values, dict) or not values:
        return []
    lost = []
    shapes = dict(zip(dump.run.table["name"].to_list(), dump.run.table["shape"].to_list(), strict=True))
    for name, value in values.items():
        if name not in shapes:
            if name.startswith(OPTIMIZER) and name.endswith(".parameters.before") and isinstance(value, dict):
                found = read_placement(value, tuple(value.get("global_shape") or ()))
                path = parse_op(name.removesuffix(".parameters.before")).body.rpartition(".")[0]
                dump.sharded |= {bare_path(path): found} if isinstance(found, Placement) else {}
            continue
        found = read_placement(value, dims(shapes[name]) or ())
        if isinstance(found, Placement) and dump.rank not in found.mesh and 0 not in found.local:
            found = f"rank {dump.rank} has a piece, but its mesh is {list(found.mesh)}"
        if isinstance(found, str):
            lost.append(f"{dump.folder / LAYOUT_FILE}: {name}: {found}; it is compared as it lies there")
        else:
            dump.placements[name] = found
    more = len(lost) - 5
    return [*lost[:5], f"{dump.folder / LAYOUT_FILE}: {more} more placements contradict"] if more > 0 else lost


def _suffixes(run: Run) -> pl.Series:
    """What the name of each value has after that of its call."""
    import polars as pl

    lengths = pl.Series([len(name.encode()) for name in run.ops], dtype=pl.UInt32)
    return run.table.select(pl.col("name").str.slice(lengths.gather(run.table["op"]))).to_series()


# Calls as one process would count them: wrappers left out, micro batches folded.


def calls_per_module(run: Run) -> int:
    """How often most modules were called: once, or once for each micro batch."""
    counts = _module_calls(run)
    return Counter(counts.values()).most_common(1)[0][0] if counts else 1


def passes_of(run: Run) -> int:
    """How many micro batches went through the model: all modules were called that often, or a multiple of it.

    Each goes there and back: a generator that is called for its critic first, and then for itself, comes back once.
    """
    return gcd(*_module_calls(run).values(), *_module_calls(run, BACKWARD).values()) or _passes_of_functions(run)


def _passes_of_functions(run: Run) -> int:
    """The same where no module was recorded: how often backward begins, if it makes the same calls each time."""
    trained = _trained(run)
    there = [
        op.direction for op in run.op_names if op.direction == BACKWARD or f"{op.prefix}.{op.body}.{op.call}" in trained
    ]
    ends = [at for at, (one, after) in enumerate(pairwise(there)) if (one, after) == (BACKWARD, FORWARD)]
    calls = [f"{op.prefix}.{op.body}" for op in run.op_names if op.direction == BACKWARD]
    places = [there[: at + 1].count(BACKWARD) for at in ends]
    passes = [calls[start:end] for start, end in pairwise([0, *places, len(calls)])]
    return len(passes) if all(one == passes[0] for one in passes) else 1


def _trained(run: Run) -> set[str]:
    """The forward calls that backward comes back to."""
    return {f"{op.prefix}.{op.body}.{op.call}" for op in run.op_names if op.direction == BACKWARD}


def _module_calls(run: Run, direction: str = FORWARD) -> Counter[str]:
    counts: Counter[str] = Counter()
    for name in run.ops:
        op = parse_op(name)
        if op.is_module and op.direction == direction:
            counts[f"{op.body}.{op.cls}"] += 1
    return counts


def _number_gradients(dump: RankDump) -> None:
    """Give the gradients of parameters the numbers of the micro batches that they are of.

    They are recorded in the order in which these come back: in some schedules of pipelines the last one comes first.
    """
    ops = list(zip(dump.run.ops, dump.run.op_names, strict=True))
    back: dict[str, list[int]] = defaultdict(list)
    for _, op in ops:
        back[op.body] += [op.call] if op.is_module and op.direction == BACKWARD else []
    turned: dict[str, list[int]] = {}
    for path, count in Counter(op.body for _, op in ops if op.direction == GRADIENTS).items():
        around = path  # a module that is not called itself (the output layer of attention) goes with the one around it
        while around and len(back.get(around, ())) != count:
            around = around.rpartition(".")[0]
        calls = back.get(around, [])
        turned |= {path: calls} if len(calls) == count and calls != sorted(calls) else {}
    if turned:
        odd = [op.direction == GRADIENTS and op.body in turned for _, op in ops]
        _rename(dump, [op.renumbered(turned[op.body][op.call]) if other else name
                       for (name, op), other in zip(ops, odd, strict=True)])  # fmt: skip


def fold_calls(dump: RankDump, micro: int) -> None:
    """Give the calls of all micro batches the numbers that those of one batch have, and paths without wrappers."""
    run = dump.run
    heads: dict[tuple[str, str], list[int]] = defaultdict(list)
    names: list[str] = []
    for at, name in enumerate(run.ops):
        op = parse_op(name)
        wrapped = op.is_module or op.direction == GRADIENTS or name.startswith(OPTIMIZER)
        body = bare_path(op.body) if wrapped else op.body
        names.append(name if body == op.body else name.replace(f".{op.body}", f".{body}" if body else "", 1))
        if op.call >= 0 and op.prefix != "Distributed":
            heads[op.prefix + "." + op.body + "." + op.cls, op.direction].append(at)
    if micro > 1 and len({chunk_of(name) for name in run.ops} - {None}) > 1:
        _fold_stages(dump, micro, heads, names)
    elif micro > 1:
        # What is called more often before the first module, or after the last backward call, than in a micro batch
        # prepares the batch or finishes its gradients.
        trained = _trained(run)
        begun = next((at for at, (name, op) in enumerate(zip(run.ops, run.op_names, strict=True)) if is_module(name)
                      or run.parents.get(name) or f"{op.prefix}.{op.body}.{op.call}" in trained), 0)  # fmt: skip
        ended = max((at for at, op in enumerate(run.op_names) if op.direction == BACKWARD), default=len(run.ops))
        forward = {head: calls for (head, direction), calls in heads.items() if direction == FORWARD}
        for (head, direction), calls in heads.items():
            own = forward.get(head, calls) if direction == BACKWARD else calls
            early, late = sum(at < begun for at in own), sum(at > ended for at in own)
            if len(own) % micro == 0 and max(early, late) <= len(own) // micro:
                early = late = 0
            count = len(own) - early - late
            if not count or count % micro:
                continue
            for at in calls:
                op = parse_op(names[at])
                if 0 <= op.call - early < count:
                    dump.micro[at], call = divmod(op.call - early, count // micro)
                    names[at] = op.renumbered(early + call)
                elif op.call >= early:
                    names[at] = op.renumbered(op.call - count + count // micro)
    _rename(dump, names)


def _fold_stages(dump: RankDump, micro: int, heads: Mapping[tuple[str, str], list[int]], names: list[str]) -> None:
    """The same on a rank with several stages, which take turns: their functions are counted stage by stage."""
    run = dump.run
    for (head, direction), calls in heads.items():
        if direction == BACKWARD and (head, FORWARD) in heads:
            continue  # with its forward call
        stages: dict[int, list[int]] = defaultdict(list)
        for at in calls:
            stages[_stage_around(run, run.ops[at])].append(at)
        if any(len(own) % micro for own in stages.values()):
            continue
        numbers, before = {}, 0
        for _, own in sorted(stages.items()):
            each = len(own) // micro
            for turn, at in enumerate(own):
                part, call = divmod(turn, each)
                numbers[parse_op(run.ops[at]).call] = part, before + call
            before += each
        back = heads.get((head, BACKWARD), []) if direction == FORWARD else []
        for at in (*calls, *back):
            op = parse_op(names[at])
            if op.call in numbers:
                dump.micro[at], call = numbers[op.call]
                names[at] = op.renumbered(call)


def _stage_around(run: Run, name: str) -> int:
    """The number of the stage that a call belongs to, by its own name or by the module around it."""
    around: str | None = name
    while around is not None:
        found = chunk_of(around)
        if found is not None:
            return found
        around = run.parents.get(around)
    return 0


def _rename(dump: RankDump, names: list[str]) -> None:
    run = dump.run
    renamed = dict(zip(run.ops, names, strict=True))
    parents = {renamed.get(name, name): None if above is None else renamed.get(above, above)
               for name, above in reversed(run.parents.items())}  # fmt: skip
    stacks = run.stacks
    stacks.of_op = {renamed.get(name, name): at for name, at in reversed(stacks.of_op.items())}
    recorded = run.recorded or run
    dump.run = Run(run.path, run.task, run.level, run.framework, names, run.table, run.notes, recorded=recorded)
    dump.run.parents = dict(reversed(parents.items()))
    dump.run.stacks = stacks


def align_calls(dumps: Sequence[RankDump]) -> list[str]:
    """Give functions the numbers that they have on most ranks, where a rank makes a call more or less than others.

    Such a call would move the numbers of all later ones. Returns what is said of them.
    """
    called = [_functions(dump.run) for dump in dumps]
    forms = [[(around, [head for head, _ in calls]) for around, calls in own.items()] for own in called]
    if all(form == forms[0] for form in forms):
        return []
    usual = max(forms, key=lambda form: (forms.count(form), -sum(len(heads) for _, heads in form)))
    model = called[forms.index(usual)]
    free = Counter(head for calls in model.values() for head, _ in calls)
    said: list[str] = []
    for dump, own, form in zip(dumps, called, forms, strict=True):
        if form == usual:
            continue
        number: dict[tuple[str, int], int] = {}
        for around, calls in own.items():
            known = model.get(around, [])
            heads = [head for head, _ in known], [head for head, _ in calls]
            for word, start, stop, low, high in SequenceMatcher(None, *heads, autojunk=False).get_opcodes():
                if word == "equal":
                    pairs = zip(calls[low:high], known[start:stop], strict=True)
                    number |= {call: other for call, (_, other) in pairs}
                    continue
                for head, call in calls[low:high]:
                    number[head, call], free[head] = free[head], free[head] + 1
                parts = (calls[low:high], "calls", ONE_RANK[0]), (known[start:stop], "does not call", ONE_RANK[1])
                said += [f"{around}: rank {dump.rank} {verb} {some[0][0].rstrip('.')} {end}"
                         for some, verb, end in parts if some and around is not None]  # fmt: skip
        names = []
        for name, op in zip(dump.run.ops, dump.run.op_names, strict=True):
            moved = number.get((f"{op.prefix}.{op.body}.{op.cls}", op.call))
            names.append(name if moved is None else op.renumbered(moved))
        _rename(dump, names)
    return said


def _functions(run: Run) -> dict[str | None, list[tuple[str, int]]]:
    """The functions that were called in each module, by name and number; those of collectives are linked otherwise."""
    found: dict[str | None, list[tuple[str, int]]] = defaultdict(list)
    for name, op in zip(run.ops, run.op_names, strict=True):
        if not op.is_module and op.direction == FORWARD and op.call >= 0 and not COLLECTIVE.match(name):
            found[run.parents.get(name)].append((f"{op.prefix}.{op.body}.{op.cls}", op.call))
    return found


def without_updates(run: Run) -> Run:
    """The run without the calls inside of optimizers and clipping, which ranks make for their own parameters only.

    What these did to each parameter stands in optimizer.json.
    """
    return _without(
        run, {name for name in run.ops if name in _AFTER_BACKWARD or run.parents.get(name) in _AFTER_BACKWARD}
    )


def _recomputation(run: Run) -> set[str]:
    """The forward calls that backward made once more (checkpointing): a backward call is around them.

    A collective right inside of a backward call belongs to it: it adds up gradients, or gathers parameters.
    """
    direction = {name: op.direction for name, op in zip(run.ops, run.op_names, strict=True)}
    found = set()
    for name in run.ops:
        above = run.parents.get(name) if direction[name] == FORWARD else None
        if COLLECTIVE.match(name) and direction.get(above or "") == BACKWARD:
            continue
        while above is not None and direction.get(above) == FORWARD:
            above = run.parents.get(above)
        if direction.get(above or "") == BACKWARD:
            found.add(name)
    return found


def without_own_calls(opened: Sequence[Mapping[int, RankDump]], pieces: Sequence[bool]) -> list[str]:
    """Leave out of both runs what only their way of computing needs; returns what is said of that.

    With checkpointing, backward computes activations once more: neither new values nor another batch. ``pieces``: the
    runs whose ranks have parts of sequences or of weights, and may deal with pieces of one another.
    """
    said = []
    for word, ranks, cut in zip(("target", "golden"), opened, pieces, strict=True):
        again = sum(_leave_out(dump, _recomputation(dump.run)) for dump in ranks.values())
        among_others = min(map(len, opened)) > 1
        left = {rank: _exchanges(dump.run, among_others) for rank, dump in ranks.items() if cut}
        steps = {rank: Counter(ranks[rank].run.parents.get(name) or "" for name in own) for rank, own in left.items()}
        for rank, own in steps.items():
            ranks[rank].exchanging = {name for name in own if f".{FORWARD}" in name}
        said += [f"{word}: {text}" for text in _unlike_rings(steps)]
        ring = sum(_leave_out(ranks[rank], own) for rank, own in left.items())
        said += [f"{word}: {again:,} calls of functions inside backward (checkpointing, communication): left out"] * (
            again > 0
        ) + [f"{word}: {ring:,} calls of functions on pieces of other ranks: left out"] * (ring > 0)
    return said


def _unlike_rings(steps: Mapping[int, Mapping[str, int]]) -> list[str]:
    """The rank that deals with more or fewer pieces in a module than all others, which do alike, in words.

    Where a mask leaves pieces out, each rank has another number of them.
    """
    said = []
    for module in dict.fromkeys(name for own in steps.values() for name in own if f".{FORWARD}" in name):
        counts = {rank: own.get(module, 0) for rank, own in steps.items()}
        usual, often = Counter(counts.values()).most_common(1)[0]
        odd = [rank for rank, count in counts.items() if count != usual]
        if len(odd) == 1 < often:
            made = f"rank {odd[0]} makes {counts[odd[0]]} calls on pieces of other ranks, the others {usual}"
            said.append(f"{module}: {made}")
    return said


def _leave_out(dump: RankDump, names: Collection[str]) -> int:
    """Leave calls out and number the others as if there had been none; returns how many there were."""
    run = dump.run
    if not names:
        return 0
    kept: dict[str, dict[int, int]] = defaultdict(dict)  # the new numbers by the old ones
    for name, op in zip(run.ops, run.op_names, strict=True):
        if op.direction == FORWARD and name not in names:
            calls = kept[f"{op.prefix}.{op.body}.{op.cls}"]
            calls.setdefault(op.call, len(calls))
    renamed = {}
    for name, op in zip(run.ops, run.op_names, strict=True):
        calls = kept[f"{op.prefix}.{op.body}.{op.cls}"]
        renamed[name] = op.renumbered(calls[op.call]) if op.call in calls else name
    shorter = _without(run, names)
    dump.suffixes, dump.micro = _suffixes(shorter), [0] * len(shorter.ops)
    shorter.ops = [renamed[name] for name in shorter.ops]
    shorter.parents = {renamed.get(name, name): None if above is None else renamed.get(above, above)
                       for name, above in run.parents.items() if name not in names}  # fmt: skip
    dump.run = shorter
    return len(names)


def _exchanges(run: Run, among_others: bool) -> set[str]:
    """What modules call themselves once they deal with one rank's piece after the other.

    Such are the steps of a ring, or of a product whose ranks broadcast their blocks: as many as there are ranks, less
    those that a mask leaves out. ``among_others``: the
    other run is made of ranks too, so that what each of them is sent (all-to-all) is another piece there.
    """
    begun, found = set[str](), []
    for name, op in zip(run.ops, run.op_names, strict=True):
        above = run.parents.get(name)
        if above is None or op.is_module or op.direction != FORWARD or not is_module(above):
            continue
        if _PIECE_BY_PIECE.match(name) or (among_others and _TO_EACH.match(name)):
            begun.add(above)
        if above in begun:
            found.append(name)
    return with_backward(found).intersection(run.ops)


def without_functions(run: Run, modules: Collection[str], head: Callable[[str], str]) -> Run:
    """The run without the functions right inside of these modules, which are known by their heads."""
    functions = ((name, above) for name, above in run.parents.items() if above and not parse_op(name).is_module)
    inside = with_backward(name for name, above in functions if head(above) in modules)
    return _without(run, inside.intersection(run.ops))


def with_backward(functions: Iterable[str]) -> set[str]:
    """Calls of functions and their backward calls, which no module need be around: a table gives words no gradient."""
    names = set(functions)
    return names | {name.replace(f".{FORWARD}", f".{BACKWARD}") for name in names}


def _without(run: Run, left_out: Collection[str]) -> Run:
    import polars as pl

    if not left_out:
        return run
    kept = [name not in left_out for name in run.ops]
    number = np.cumsum(kept, dtype=np.int32) - 1
    rows = np.flatnonzero(np.array(kept, dtype=bool)[run.table["op"].to_numpy()])
    table = run.table[rows]
    table = table.with_columns(pl.Series("op", number[table["op"].to_numpy()], dtype=pl.Int32))
    ops = [name for name, keep in zip(run.ops, kept, strict=True) if keep]
    shorter = Run(run.path, run.task, run.level, run.framework, ops, table, run.notes, recorded=run.recorded or run,
                  settings=run.settings, sketch_file=run.sketch_file,
                  kept=rows if run.kept is None else run.kept[rows])  # fmt: skip
    shorter.parents, shorter.stacks = run.parents, run.stacks
    return shorter


# The layout: given, recorded, or found by comparing the ranks' shapes with those of the other side.


def parameter_shapes(run: Run) -> dict[str, Shape]:
    """The shapes of a run's parameters by name; those of a module's later calls are the same."""
    import polars as pl

    rows = run.table.filter((pl.col("role") == PARAMETER) & (pl.col("kind") == TENSOR))
    found = {}
    for op, name, shape in rows.select("op", "name", "shape").iter_rows():
        call = parse_op(run.ops[op])
        if call.is_module:
            found[f"{bare_path(call.body)}.{name.rpartition('.')[2]}"] = dims(shape) or ()
        elif call.text.startswith(OPTIMIZER):
            found[bare_path(call.body.rpartition(".")[0])] = dims(shape) or ()
    return found


def gradients_of(dump: Path, module: str, parameter: str) -> list[tuple[float | None, ...]]:
    """The statistics of a parameter's gradients as backward gave them; none where the dump cannot be read."""
    import polars as pl

    try:
        run = open_run(dump)
    except TwinProbeError:
        return []
    rows = run.table.filter(
        (pl.col("role") == GRADIENT) & pl.col("name").str.contains(rf"\.{re.escape(parameter)}(\.|$)")
    )
    return [tuple(stats) for op, *stats in rows.select("op", *STATS).iter_rows()
            if bare_path(parse_op(run.ops[op]).body) == module]  # fmt: skip


def gradient_precision(dumps: Iterable[Path]) -> tuple[float, str]:
    """The epsilon of the coarsest type in which the ranks of a step compute gradients; 0 where it is not known.

    They come from matrix products, and go through collectives: hooks that compress them (of DDP) take a type of 16
    bits, which is told as well if it is coarser than that of the products. layout.json names it, and so do recorded
    collectives.
    """
    for file in dumps:
        with suppress(TwinProbeError):
            table = (run := open_run(file)).table
            computed = product_types(table["name"], table["dtype"])
            products = max(hidden_precision(run), *map(epsilon, computed), 0.0)
            reduced = table.filter(table["name"].str.contains(REDUCTION) & table["dtype"].str.contains("float16"))
            types = {*reduced["dtype"].unique().to_list(), *reduced_types(file.parent / LAYOUT_FILE)}
            dtypes = {epsilon(dtype): dtype.rpartition(".")[2] for dtype in types}
            coarsest = max(dtypes, default=0.0)
            return max(products, coarsest), dtypes[coarsest] if coarsest > products else ""
    return 0.0, ""


def token_shape(run: Run) -> Shape | None:
    """The shape of the whole numbers with two dimensions that calls were given: the words of a batch.

    Other values have a vector for each: places and relative positions are such numbers, too, and have none.
    """
    import polars as pl

    tensors = run.table.filter(pl.col("kind") == TENSOR)
    given = tensors.filter((pl.col("role") == INPUT) & pl.col("dtype").str.contains("int"))["shape"].to_list()
    found = [one for one in map(dims, given) if one is not None and len(one) == 2 and one[0] * one[1] > 1]
    values = tensors.filter(pl.col("role").is_in([INPUT, OUTPUT]) & pl.col("dtype").str.contains("float"))["shape"]
    vectors = Counter(
        frozenset(shape[:2]) for shape in map(dims, values.to_list()) if shape is not None and len(shape) == 3
    )
    best = max(dict.fromkeys(found), key=lambda one: vectors[frozenset(one)], default=None)
    return best if best is None or vectors[frozenset(best)] or not vectors else None
