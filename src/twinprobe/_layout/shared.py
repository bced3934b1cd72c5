"""What only both runs together tell: which modules are cut, which weights stages share, how sequences are cut."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf, isclose, prod
from typing import Any

import numpy as np

from twinprobe._align.calls import bare_path, dims
from twinprobe._align.links import NONE, Pairs, from_partners
from twinprobe._layout.pieces import (
    AXES,
    BATCH_AXES,
    BLOCKS,
    ZIGZAG,
    Arithmetic,
    Piece,
    Shape,
    along,
    common_shape,
    fitting_way,
    same,
    signature,
)
from twinprobe._layout.ranks import COLLECTIVE
from twinprobe._layout.repeated import groups_of, shared_by
from twinprobe._layout.sketched.blocks import CLOSE, sketch_of, sketches_of
from twinprobe._layout.whole import Whole
from twinprobe._layout.wrong_ranks import fitting_order, numbers_of
from twinprobe._runs.names import BACKWARD, FORWARD, GRADIENTS, TOTAL_NORM, is_module, parse_op, updated_parameter
from twinprobe._runs.run import OPTIMIZER_FILE, Run, open_run
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER, STATS, TENSOR, VALUE
from twinprobe.errors import TwinProbeError

_REDUCTIONS = ("all_reduce", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor", "reduce")
_EXTREMES = re.compile(r"\b(MAX|MIN)$", re.IGNORECASE)
_PLACES = re.compile(r"\.(nonzero|argwhere)\.\d+\.forward$")
_READ = re.compile(r"\.(embedding|cross_entropy|nll_loss)\.\d+\.forward$")
_NUMBERED = re.compile(r"(Embedding|Loss|Entropy)$")  # classes that read whole numbers as what they are
_FIRST_VALUES = 16  # that are asked how sequences are cut
_ADDITION = re.compile(r"\.(__)?i?add(__)?_?\.\d+\.forward$")
_IN_LIST = re.compile(r"\.(input|output)\.\d+\.\d+$")
_LOOKUP = re.compile(r"(Functional|Torch|Mint|Aten)\.(\w+\.)?embedding\.")


def cut_modules(whole: Whole, other: Run, partners: Mapping[int, int]) -> set[str]:
    """The paths of modules of which each rank has a part, those around them included."""
    shapes, goals = whole.pieces["shape"].to_list(), other.table["shape"].to_list()
    found: set[str] = set()
    for row, role in enumerate(whole.table["role"].to_list()):
        if role == PARAMETER and row in partners and shapes[row][0] != goals[partners[row]]:
            path = parse_op(whole.pieces["op"][row]).body
            while path and path not in found:
                found.add(path)
                path = path.rpartition(".")[0]
    return found


def cut_lookups(whole: Whole, other: Run, partners: Mapping[int, int]) -> set[str]:
    """Lookups in a table of which each rank has some words: for those of others it looks something else up."""
    shapes, goals = whole.pieces["shape"], other.table["shape"]
    found = set()
    for row, (op, suffix) in enumerate(whole.pieces.select("op", "suffix").iter_rows()):
        weight = suffix == ".input.1" and _LOOKUP.match(op) and row in partners
        own, goal = (dims(one) if weight else () for one in (shapes[row][0], goals[partners.get(row, 0)]))
        # Columns of a table (of relative positions: heads) hold something of every word.
        if own and goal and own[0] != goal[0] and not any(whole.placements_of(row)):
            found |= {op, op.replace(".forward", f".{BACKWARD}")}
    return found | _cut_tables(whole, other, partners)


def _cut_tables(whole: Whole, other: Run, partners: Mapping[int, int]) -> set[str]:
    """Modules that are tables of which each rank has some rows, if no rank is given a number beyond its own rows."""
    roles, dtypes = (whole.table[name].to_list() for name in ("role", "dtype"))
    ops, highest, goals = whole.pieces["op"].to_list(), whole.pieces["max"].to_list(), other.table["shape"].to_list()
    given = {op: max((one for one in highs if one is not None), default=inf)
             for op, role, dtype, highs in zip(ops, roles, dtypes, highest, strict=True)
             if role == INPUT and "int" in (dtype or "") and is_module(op)}  # fmt: skip
    found = set()
    for row, (op, role) in enumerate(zip(ops, roles, strict=True)):
        if role == PARAMETER and op in given and row in partners and not any(whole.placements_of(row)):
            own, goal = whole.pieces_of(row)[0].shape, dims(goals[partners[row]])
            if own and goal and given[op] < own[0] < goal[0] and own[1:] == goal[1:]:
                found |= {op, op.replace(".forward", f".{BACKWARD}")}
    return found


def shared_gradients(whole: Whole, other: Run, partners: Mapping[int, int]) -> dict[int, int]:
    """Rows of gradients that are parts of one, with the first row of each such group.

    Where the other side has one weight in two modules, its gradient is that of both, and stands there twice. Stages of
    a pipeline hold a copy each: their gradients add up to it.
    """
    names, shapes, calls = (other.table[name].to_list() for name in ("name", "shape", "op"))
    columns, roles = [other.table[stat].to_list() for stat in STATS], whole.table["role"].to_list()

    def weight(row: int) -> str:
        """The parameter that a row is of, or its gradient."""
        return f"{parse_op(other.ops[calls[row]]).body}.{names[row].removeprefix(other.ops[calls[row]]).split('.')[-1]}"

    # Gradients may be equal by chance: those of biases that are added to the same sum. One weight has one content.
    held = {weight(row): tuple(column[row] for column in columns)
            for row, role in enumerate(other.table["role"].to_list()) if role == PARAMETER}  # fmt: skip
    groups: dict[Any, list[int]] = defaultdict(list)
    for row, partner in partners.items():
        stats = tuple(column[partner] for column in columns)
        if roles[row] == GRADIENT and stats[3] and GRADIENTS in names[partner]:
            groups[shapes[partner], stats, held.get(weight(partner))].append(row)
    found: dict[int, int] = {}
    for rows in groups.values():
        ranks = [{piece.rank for piece in whole.pieces_of(row)} for row in rows]
        if len(rows) > 1 and sum(map(len, ranks)) == len(set().union(*ranks)):  # on other ranks each
            found |= dict.fromkeys(rows, rows[0])
    return found


def copied_weights(whole: Whole, partners: Mapping[int, int]) -> dict[int, int]:
    """Rows of gradients that only this side has, of a weight that is a copy of another stage's, with the row over there
    whose gradient has both: the other side reads one weight twice (an embedding that is the output layer too)."""
    known: dict[Any, list[str]] = defaultdict(list)
    rows: dict[str, int] = {}
    columns = [whole.table["role"].to_list(), *(whole.pieces[name].to_list() for name in ("op", "suffix"))]
    for row, (role, op, suffix) in enumerate(zip(*columns, strict=True)):
        name = suffix.rpartition(".")[2]
        if role == PARAMETER:
            pieces = whole.pieces_of(row)
            known[pieces[0].shape, pieces[0].stats].append(f"{parse_op(op).body}.{name}")
        elif role == GRADIENT and GRADIENTS in op:
            rows[f"{parse_op(op).body}.{name}"] = row
    found: dict[int, int] = {}
    for alike in known.values():
        names = [name for name in dict.fromkeys(alike) if name in rows]
        there = [rows[name] for name in names if rows[name] in partners]
        if len(there) == 1:
            found |= {rows[name]: partners[there[0]] for name in names if rows[name] not in partners}
    return found


def of_tied_stages(whole: Whole, added: Collection[int]) -> dict[int, str]:
    """The rows of gradients of weights that optimizers of several stages hold, and why they cannot agree with golden's.

    A stage that reads its copy in a function (an output layer without a module) records no gradient of it. ``added``:
    those that were recorded on all stages.
    """
    held: dict[Any, set[int]] = defaultdict(set)
    for rank, dump in whole.ranks.items() if whole.layout.pp > 1 else ():
        with suppress(TwinProbeError):
            table = open_run(dump.folder / OPTIMIZER_FILE).table
            rows = table.filter(table["name"].str.ends_with(".parameters.before") & (table["max"] != table["min"]))
            for name, *content in rows.select("name", "shape", *STATS).iter_rows():
                held[bare_path(updated_parameter(name)), tuple(content)].add(whole.layout.place(rank).pp)
    tied = {name for (name, _), stages in held.items() if len(stages) > 1}
    columns = (whole.table["role"].to_list(), whole.pieces["op"].to_list(), whole.pieces["suffix"].to_list())
    return {row: "stages share this weight: their optimizers have its gradient"
            for row, (role, op, suffix) in enumerate(zip(*columns, strict=True))
            if tied and role == GRADIENT and f"{parse_op(op).body}{suffix}" in tied and row not in added}  # fmt: skip


def order_of_sequences(whole: Whole, other: Run, partners: Mapping[int, int]) -> str:
    """How context parallel ranks cut sequences: two stretches each, one from the front and one from the back, unless
    the words of the batch tell that they have one, or where there are none, the first values that are given."""
    kinds, dtypes, roles = (whole.table[name].to_list() for name in ("kind", "dtype", "role"))
    choices = [Arithmetic({}, {"cp": ZIGZAG}), Arithmetic({}, {"cp": BLOCKS})]
    given = [(row, partner, dims(other.table["shape"][partner])) for row, partner in partners.items()
             if kinds[row] == TENSOR and roles[row] == INPUT]  # fmt: skip
    words = [one for one in given if "int" in (dtypes[one[0]] or "") and len(one[2] or ()) == 2]
    for row, partner, goal in words or [one for one in given if len(one[2] or ()) > 2][:_FIRST_VALUES]:
        pieces = whole.pieces_of(row)
        places = tuple((piece.place, piece.shape) for piece in pieces if piece.shape is not None)
        copies = tuple(all(map(same, along(pieces, axis))) for axis in range(len(AXES)))
        way = fitting_way(places, goal or (), copies, weight=False) if len(places) == len(pieces) else None
        found = fitting_order(whole, row, other, partner, way, choices) if way is not None else -1
        if found > 0:
            told = "words" if words else "values"
            whole.assumed.append(f"context parallel ranks have one stretch of each sequence, as their {told} tell")
        if found >= 0:
            return choices[found].orders["cp"]
    return ZIGZAG


def own_positions(whole: Whole, other: Run, partners: Mapping[int, int]) -> dict[int, str]:
    """The rows of places in a rank's own part of the batch, where they are made (``nonzero``) and where read.

    So are whole numbers that count from zero on every rank (``arange``), to which a program adds where its part begins.
    What a table or a loss is given, or a module, is meant as it is, but for offsets that begin anew on each rank.
    """
    made: set[tuple[str, ...]] = set()
    found: set[int] = set()
    columns = (whole.pieces["op"].to_list(), whole.table["role"].to_list(), whole.table["dtype"].to_list())
    for row, (op, role, dtype) in enumerate(zip(*columns, strict=True)):
        if "int" not in (dtype or ""):
            continue
        places = role == OUTPUT and _PLACES.search(op)
        read = is_module(op) or _READ.search(op)
        if role == INPUT and row in partners and not read and all(map(_counts, pieces := whole.pieces_of(row))):
            found |= {row} if dims(other.table["shape"][partners[row]]) != pieces[0].shape else set()
        elif (
            role in (INPUT, OUTPUT) and row in partners and whole.layout.cp == 1 and not _READ.search(op)
            and not _NUMBERED.search(parse_op(op).cls) and _begins_anew(whole, row, other, partners[row])
        ):  # fmt: skip
            found.add(row)
        if not places and not made:
            continue
        own = tuple(f"{piece.rank} {prod(piece.shape or ())} {piece.stats}" for piece in whole.pieces_of(row))
        if places:
            made.add(own)
        if own in made:
            found.add(row)
    return dict.fromkeys(found, "each rank counts the places of its own batch")


def _begins_anew(whole: Whole, row: int, other: Run, partner: int) -> bool:
    """Whether golden has the whole numbers of each rank, all moved on by the same from one rank to the next: offsets of
    bags or of packed sequences, nodes of graphs. How far its largest tells; its sum and its norm must follow."""
    pieces, highest = whole.pieces_of(row), other.table["max"][partner]
    if len(pieces) < 2 or highest is None or pieces[-1].stats[0] is None or isinstance(other, Whole):
        return False
    step = (highest - pieces[-1].stats[0]) / (len(pieces) - 1)
    goal, own = sketch_of(other, other.table["name"][partner]), sketches_of(whole, row) if step >= 1 else []
    if goal is None or not own or any(one is None for one in own):
        return False
    moved = [(step * at, *(float(one[name]) for name in ("count", "total", "norm"))) for at, one in enumerate(own)]
    total = sum(one + by * count for by, count, one, _ in moved)
    square = sum(norm**2 + 2 * by * one + count * by**2 for by, count, one, norm in moved)
    return isclose(total, goal["total"], rel_tol=CLOSE**2) and isclose(square, goal["norm"] ** 2, rel_tol=CLOSE**2)


def _counts(piece: Piece) -> bool:
    """Whether a piece has the extremes of 0, 1, 2 ... in one dimension, a row or a column."""
    size = prod(piece.shape or ())
    return size > 1 and size in (piece.shape or ()) and piece.stats[:2] == (size - 1, 0)


def reductions(whole: Whole) -> tuple[dict[Any, int] | None, set[Any]]:
    """The inputs of recorded reductions, by the statistics of all ranks, with the row of their output; None at L0.

    Beside them those of which not the sum is taken but the largest or the smallest.
    """
    import polars as pl

    names = pl.col("op").str.split(".").list.get(1, null_on_oob=True).is_in(_REDUCTIONS)
    rows = whole.pieces.with_row_index("row").filter(pl.col("op").str.contains(COLLECTIVE.pattern) & names)
    if not rows.height:
        return (None if not whole.level.startswith(("L1", "mix")) else {}), set()
    roles, kinds, texts = (whole.table[name].to_list() for name in ("role", "kind", "max_text"))
    outputs = {op: row for row, op in reversed(rows.select("row", "op").rows()) if roles[row] == OUTPUT}
    extreme = {op for row, op in rows.select("row", "op").rows() if _EXTREMES.search(texts[row] or "")}
    found: dict[Any, int] = {}
    extremes: set[Any] = set()
    for row, op in rows.select("row", "op").rows():
        if roles[row] == INPUT and kinds[row] == TENSOR:
            for line in along(whole.pieces_of(row), AXES.index("tp")):
                found.setdefault(signature(line), outputs.get(op, -1))
                extremes |= {signature(line)} if op in extreme else set()
    return parts_of_sums(whole, found), extremes


def own_parts(whole: Whole, other: Run, partners: Mapping[int, int], reduced: Mapping[Any, int]) -> set[int]:
    """Rows of functions between a shard and a reduction, of which each rank has another value of the whole's shape.

    So it is in a loss over a vocabulary of which each rank has some words: where its own begin is subtracted from the
    labels, those of others are masked, and what is picked adds up. What no shard and no number of the rank itself goes
    into is a copy: it is not among these rows.
    """
    kinds, roles, dtypes = (whole.table[name].to_list() for name in ("kind", "role", "dtype"))
    ops, equal, goals = whole.pieces["op"].to_list(), whole.pieces["equal"].to_list(), other.table["shape"].to_list()
    signs: dict[int, set[Any]] = {}  # one for each line of ranks: collectives keep the number of each micro batch
    of_op: dict[str, list[int]] = defaultdict(list)
    made: dict[Any, list[str]] = defaultdict(list)
    taken: set[Any] = set()
    for row, op in enumerate(ops):
        of_op[op].append(row)
        if kinds[row] != TENSOR or is_module(op) or f".{FORWARD}" not in op:
            continue
        lines = {signature(line) for line in along(whole.pieces_of(row), AXES.index("tp"))}
        if not COLLECTIVE.match(op):
            signs[row] = lines
            for line in lines if roles[row] == OUTPUT else ():
                made[line].append(op)
        elif roles[row] == INPUT and lines <= reduced.keys():
            taken |= lines

    def whole_numbers(row: int) -> bool:
        return "int" in (dtypes[row] or "") or "bool" in (dtypes[row] or "")

    def is_cut(row: int) -> bool:  # over these ranks, that is: others may share the batch
        if row not in partners:
            return False
        lines = along(whole.pieces_of(row), AXES.index("tp"))
        return prod(dims(goals[partners[row]]) or ()) != sum(prod(line[0].shape or ()) for line in lines)

    open_ends = list(taken)
    before: set[str] = set()
    while open_ends:
        for op in made.get(open_ends.pop(), ()):
            rows = [row for row in of_op[op] if roles[row] == INPUT and row in signs] if op not in before else []
            before.add(op)
            open_ends += [line for row in rows if not is_cut(row) and (whole_numbers(row) or not equal[row])
                          for line in signs[row]]  # fmt: skip
    found: set[int] = set()
    own: set[Any] = set()
    for op in dict.fromkeys(ops):
        if op not in before:
            continue
        inputs = [row for row in of_op[op] if roles[row] == INPUT]
        numbers = any(kinds[row] == VALUE and not equal[row] for row in inputs)
        if not numbers and not any(row in signs and (is_cut(row) or signs[row] <= own) for row in inputs):
            continue
        outputs = [row for row in of_op[op] if roles[row] == OUTPUT and row in signs and not is_cut(row)]
        own = own.union(*(signs[row] for row in outputs))
        found |= {row for row in inputs if row in signs and signs[row] <= own}
        found |= {row for row in outputs if not signs[row] <= taken}
        found |= set(of_op.get(op.replace(f".{FORWARD}", f".{BACKWARD}"), ()))
    return found


def parts_of_sums(whole: Whole, reduced: dict[Any, int]) -> dict[Any, int]:
    """What recorded reductions take, and what was added up before to what they take: a sum of partial sums is one.

    Layers whose outputs are added (attention and an MLP side by side) need one reduction for both.
    """
    rows = list(zip(whole.pieces["op"].to_list(), whole.table["role"].to_list(), strict=True))
    given: dict[str, list[Any]] = defaultdict(list)
    for row, (op, role) in reversed(list(enumerate(rows))):
        if not _ADDITION.search(op) or whole.table["kind"][row] != TENSOR:
            continue
        lines = along(whole.pieces_of(row), AXES.index("tp"))
        if role == OUTPUT:
            given[op] = [signature(line) for line in lines]
        elif role == INPUT and given[op] and all(one in reduced for one in given[op]):
            reduced |= {signature(line): reduced.get(signature(line), -1) for line in lines if not same(line)}
    return reduced


def handed_on_as_sums(
    whole: Whole, op: str, shape: Shape | None, outputs: Mapping[str, int], taken: Collection[Any]
) -> bool:
    """Whether a module around a call hands on copies, or as many parts of the value's size as there are ranks (sequence
    parallel), before another call takes what differs between ranks. In the model's own code, which no recorded module
    is around, the module that is called next takes copies instead."""
    around = whole.parents.get(op) or ""
    if around not in outputs:
        ops, inputs = whole.pieces["op"], whole.table["role"] == INPUT
        later = whole.ops[whole.ops.index(op) + 1 :]
        after = next((one for one in later if (whole.parents.get(one) or "") == around and is_module(one)), "")
        rows = np.flatnonzero(((ops == after) & inputs & (whole.table["kind"] == TENSOR)).to_numpy()).tolist()
        lines = [line for row in rows for line in along(whole.pieces_of(row), AXES.index("tp"))]
        return bool(lines) and f".{FORWARD}" in after and all(map(same, lines))
    while around in outputs:
        lines = along(whole.pieces_of(outputs[around]), AXES.index("tp"))
        scattered = shape and all(sum(prod(one.shape or ()) for one in line) == prod(shape) for line in lines)
        if scattered or all(map(same, lines)):
            return True
        if any(signature(line) in taken for line in lines):
            return False
        around = whole.parents.get(around) or ""
    return False


def called_late(whole: Whole) -> dict[int, str]:
    """The rows of calls between backward and the optimizer's step, and why they cannot agree with golden's.

    Layouts by hand sum gradients over all ranks and divide by their number there, in as many calls as a rank has
    parameters; what becomes of them stands in optimizer.json.
    """
    own: dict[int, set[str]] = {}
    for rank, dump in whole.ranks.items():  # the whole run has another order, and other names
        run = dump.run
        last = max((at for at, op in enumerate(run.op_names) if op.direction == BACKWARD), default=len(run.ops))
        calls = enumerate(run.op_names[last + 1 :], last + 1)
        late = [at for at, op in calls if not op.is_module and op.direction == FORWARD]
        late = [at for at in late if not run.parents.get(run.ops[at])]
        own[rank] = set(run.table.filter(run.table["op"].is_in(late))["name"].to_list())
    return {row: "it is called after backward, for a rank's own gradients"
            for row, (ranks, names) in enumerate(whole.pieces.select("rank", "own_name").iter_rows())
            if names[0] in own[ranks[0]]}  # fmt: skip


def told_by_optimizers(whole: Whole, other: Run) -> bool:
    """Whether both runs recorded what their optimizers saw."""
    folders = next(iter(whole.ranks.values())).folder, other.path.parent
    return all((folder / OPTIMIZER_FILE).is_file() for folder in folders)


def pieces_in_lists(whole: Whole) -> dict[int, str]:
    """The rows of lists that collectives fill with a piece of each rank, of which other runs have other numbers."""
    return {row: "it is one rank's piece in a list of all ranks'"
            for row, names in enumerate(whole.pieces["own_name"].to_list())
            if COLLECTIVE.match(names[0]) and _IN_LIST.search(names[0])}  # fmt: skip


def groups_in(whole: Whole) -> tuple[str, set[tuple[int, ...]]]:
    """The sizes of a layout and of its meshes: what decides which ranks exchange something."""
    dump = next(iter(whole.ranks.values()))
    return str(whole.layout), {one.mesh_shape for one in (*dump.placements.values(), *dump.sharded.values())}


def without_collectives(pairs: Pairs, target: Whole, golden: Whole) -> Pairs:
    """The pairs but those of collectives: groups of another size exchange other pieces, in another order.

    A sum is the same in any order; on the way back its scale depends on how many ranks share the batch.
    """
    names, kinds, calls = target.table["name"], target.table["kind"], target.table["op"]
    back = next((at for at, op in enumerate(target.op_names) if op.direction == BACKWARD), len(target.ops))
    sums = names.str.contains(r"^\w+\.all_reduce\.") & (kinds == TENSOR) & (calls < back)
    own = (names.str.contains(COLLECTIVE.pattern) & ~sums).to_numpy()
    partners = np.where(own[pairs.target], NONE, pairs.golden)[pairs.target >= 0].tolist()
    rules = ["" if partner == NONE else rule for partner, rule in zip(partners, pairs.rule, strict=False)]
    found = from_partners(partners, golden.table.height, rules, pairs.notes)
    return replace(found, groups=pairs.groups, call_groups=pairs.call_groups)


def common_shapes(target: Whole, golden: Whole, partners: Sequence[tuple[int, int]]) -> dict[int, Shape]:
    """Of two runs in different layouts, the whole shapes of values that both have, by the target's row."""
    roles, kinds = target.table["role"].to_list(), (target.table["kind"].to_list(), golden.table["kind"].to_list())
    found: dict[int, Shape] = {}
    heads, optimizer = [_shared_heads(whole) for whole in (target, golden)], target.path.name.startswith("optimizer")
    of_gradient = gradients_of_values(target)
    for rows in sorted(partners, key=lambda rows: rows[0] in of_gradient):
        if kinds[0][rows[0]] != TENSOR or kinds[1][rows[1]] != TENSOR:
            continue
        if of_gradient.get(rows[0]) in found:  # a gradient has the shape of its value; those of copies add up
            found[rows[0]] = found[of_gradient[rows[0]]]
            continue
        weight = roles[rows[0]] in (PARAMETER, GRADIENT)
        pieces, counts, known = [], [], None
        for whole, row, shared in zip((target, golden), rows, heads, strict=True):
            own = whole.pieces_of(row)
            # The ranks of a mesh make a whole, which may be a part of the batch: other meshes have others.
            meshes = {(piece.place[0], placement.mesh): piece._replace(shape=placement.whole)
                      for piece, placement in reversed([*zip(own, whole.placements_of(row), strict=True)])
                      if placement is not None}  # fmt: skip
            if meshes and optimizer:
                known = next(iter(meshes.values())).shape
            pieces.append(list(reversed(meshes.values())) or own)
            counts.append(shared.get((_without_direction(whole.pieces["op"][row]), own[0].shape), 1))
        sums = roles[rows[0]] != PARAMETER and not optimizer
        goal = _common_shape(pieces, weight, sums)
        if max(counts) > 1 and (goal is None or goal[0]):  # they do not fit as they are
            once = [[group[0] for group in groups_of(own, count)] for own, count in zip(pieces, counts, strict=True)]
            goal = min((one for one in (goal, _common_shape(once, weight, sums)) if one is not None), default=None)
        # Stretches of flat parameters (FSDP1) fit to any shape: to the one that is recorded.
        shape = goal[1] if goal is not None else known
        if shape is not None:
            found[rows[0]] = shape
    return found


def cut_as_weight(whole: Whole, row: int) -> bool:
    """Whether ranks cut a value, but not with the batch, as functions take parameters; so do its gradients."""
    way = whole.ways.get(row, ())
    return any(dim >= 0 for dim in way) and all(way[AXES.index(axis)] < 0 for axis in BATCH_AXES)


def gradients_of_values(whole: Whole) -> dict[int, int]:
    """The rows of gradients, with the rows of the values that they are the gradients of."""
    columns = [whole.pieces[name].to_list() for name in ("op", "suffix")]
    columns += [whole.table[name].to_list() for name in ("role", "kind", "dtype")]
    values: dict[Any, list[int]] = defaultdict(list)
    gradients: list[tuple[int, Any, int]] = []
    for row, (op, suffix, role, kind, dtype) in enumerate(zip(*columns, strict=True)):
        call, name = _without_direction(op), suffix.rpartition(".")[2]
        if kind != TENSOR or "float" not in (dtype or ""):
            continue
        if role == PARAMETER:
            values[parse_op(op).body, name].append(row)
        elif role == GRADIENT:
            gradients.append((row, (parse_op(op).body, name), 0))
        elif f".{FORWARD}" in op:
            values[call, role].append(row)
        elif f".{BACKWARD}" in op and name.isdecimal():  # the arguments' gradients come out
            gradients.append((row, (call, OUTPUT if role == INPUT else INPUT), int(name)))
    found = {}
    for row, key, number in gradients:
        value = values[key][number] if number < len(values.get(key, ())) else row
        if value != row and whole.pieces_of(value)[0].shape == whole.pieces_of(row)[0].shape:
            found[row] = value
    return found


def _common_shape(sides: Sequence[list[Piece]], weight: bool, sums: bool) -> tuple[int, Shape] | None:
    places = [tuple((piece.place, piece.shape or ()) for piece in pieces) for pieces in sides]
    copies = [tuple(all(map(same, along(pieces, axis))) for axis in range(len(AXES))) for pieces in sides]
    return common_shape(places[0], places[1], (copies[0], copies[1]), weight, sums)


def _shared_heads(whole: Whole) -> dict[tuple[str, Shape | None], int]:
    """Calls and the shapes of their values of which so many ranks in a row hold the same part.

    What goes forward tells; the gradients of these values have their shapes, and differ.
    """
    found: dict[tuple[str, Shape | None], int] = {}
    if whole.layout.tp < 4:
        return found
    kinds, roles, ops = (column.to_list() for column in (whole.table["kind"], whole.table["role"], whole.pieces["op"]))
    for row, (kind, role, op) in enumerate(zip(kinds, roles, ops, strict=True)):
        if kind == TENSOR and role != GRADIENT and f".{BACKWARD}" not in op and not any(whole.placements_of(row)):
            pieces = whole.pieces_of(row)
            count = shared_by(pieces)
            if count > 1:
                found[_without_direction(op), pieces[0].shape] = count
    return found


def _without_direction(name: str) -> str:
    op = parse_op(name)
    return f"{op.body}.{op.cls}" if op.is_module or op.direction == GRADIENTS else f"{op.prefix}.{op.body}.{op.call}"


# The norms that all gradients of a step have together: of which each rank knows its own, or by which it clips.

OWN_NORMS = "clip by norms of their own"
_SAME_NORM = 1e-3  # relative: copies of gradients have norms that differ by rounding


def total_norms(whole: Whole, norms: Mapping[int, float | None]) -> dict[int, float | None]:
    """The norm of all gradients, by the row that each rank has of its own; None where one of them is not known.

    ``norms``: of gradients that were put together.
    """
    table, ops, suffixes = whole.table, whole.pieces["op"].to_list(), whole.pieces["suffix"].to_list()
    totals: dict[str, float] = defaultdict(float)
    rows: dict[str, int] = {}
    unknown: set[str] = set()
    for row, (op, suffix) in enumerate(zip(ops, suffixes, strict=True)):
        step = ".".join(op.rsplit(".", 3)[1:])
        if op.startswith(TOTAL_NORM):
            rows |= {step: row} if suffix == ".output.0" else {}
        elif suffix == ".input.0":
            norm = norms.get(row, table["norm"][row])
            unknown |= {step} if norm is None else set()
            totals[step] += (norm or 0.0) ** 2
    lacking = len(whole.ranks) < whole.layout.rank_size
    return {row: None if lacking or step in unknown else totals[step] ** 0.5 for step, row in rows.items()}


def own_norms(whole: Whole) -> list[tuple[int, str]]:
    """The norms by which ranks clip, where they differ, in words.

    All ranks need that of the reduced gradients of all shards; each took what it held for all there are.
    """
    found = []
    for row, name in enumerate(whole.table["name"].to_list()):
        if name.startswith(TOTAL_NORM) and name.endswith(".input.0") and not any(whole.placements_of(row)):
            pieces = whole.pieces_of(row)
            norms = [piece.stats[0] for piece in pieces if piece.stats[0] is not None]
            if len(norms) == len(pieces) and max(norms) - min(norms) > _SAME_NORM * max(norms):
                shown = ", ".join(f"{norm:.4g}" for norm in norms[:8])
                ranks = numbers_of([piece.rank for piece in pieces])
                found.append(
                    (row, f"ranks {ranks} {OWN_NORMS} ({shown}): of gradients that were not reduced yet, or of a shard")
                )
    return found
