"""What only both runs together tell: which modules are cut, which weights stages share, how sequences are cut."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from math import prod
from typing import Any

from twinprobe._align.calls import dims
from twinprobe._layout.pieces import AXES, BLOCKS, ZIGZAG, Arithmetic, along, fitting_way, same
from twinprobe._layout.whole import Whole
from twinprobe._layout.wrong_ranks import fitting_order
from twinprobe._runs.names import BACKWARD, GRADIENTS, parse_op
from twinprobe._runs.run import Run
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER, STATS, TENSOR

_PLACES = re.compile(r"\.(nonzero|argwhere)\.\d+\.forward$")
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
        if weight and shapes[row][0] != goals[partners[row]] and not any(whole.placements_of(row)):
            found |= {op, op.replace(".forward", f".{BACKWARD}")}
    return found


def shared_gradients(whole: Whole, other: Run, partners: Mapping[int, int]) -> dict[int, int]:
    """Rows of gradients that are parts of one, with the first row of each such group.

    Where the other side has one weight in two modules, its gradient is that of both, and stands there twice. Stages of
    a pipeline hold a copy each: their gradients add up to it.
    """
    names, shapes = other.table["name"].to_list(), other.table["shape"].to_list()
    columns, roles = [other.table[stat].to_list() for stat in STATS], whole.table["role"].to_list()
    groups: dict[Any, list[int]] = defaultdict(list)
    for row, partner in partners.items():
        stats = tuple(column[partner] for column in columns)
        if roles[row] == GRADIENT and stats[3] and GRADIENTS in names[partner]:
            groups[shapes[partner], stats].append(row)
    found: dict[int, int] = {}
    for rows in groups.values():
        ranks = [{piece.rank for piece in whole.pieces_of(row)} for row in rows]
        if len(rows) > 1 and sum(map(len, ranks)) == len(set().union(*ranks)):  # on other ranks each
            found |= dict.fromkeys(rows, rows[0])
    return found


def order_of_sequences(whole: Whole, other: Run, partners: Mapping[int, int]) -> str:
    """How context parallel ranks cut sequences: two stretches each, one from the front and one from the back, unless
    the words of the batch tell that they have one."""
    kinds, dtypes, roles = (whole.table[name].to_list() for name in ("kind", "dtype", "role"))
    choices = [Arithmetic({}, {"cp": ZIGZAG}), Arithmetic({}, {"cp": BLOCKS})]
    for row, partner in partners.items():
        goal = dims(other.table["shape"][partner])
        if kinds[row] != TENSOR or roles[row] != INPUT or "int" not in (dtypes[row] or "") or len(goal or ()) != 2:
            continue
        pieces = whole.pieces_of(row)
        places = tuple((piece.place, piece.shape) for piece in pieces if piece.shape is not None)
        copies = tuple(all(map(same, along(pieces, axis))) for axis in range(len(AXES)))
        way = fitting_way(places, goal or (), copies, weight=False) if len(places) == len(pieces) else None
        found = fitting_order(whole, row, other, partner, way, choices) if way is not None else -1
        if found > 0:
            whole.assumed.append("context parallel ranks have one stretch of each sequence, as their words tell")
        if found >= 0:
            return choices[found].orders["cp"]
    return ZIGZAG


def own_positions(whole: Whole) -> set[int]:
    """The rows of places in a rank's own part of the batch (``nonzero``), where they are made and where read."""
    made: set[tuple[str, ...]] = set()
    found: set[int] = set()
    columns = (whole.pieces["op"].to_list(), whole.table["role"].to_list(), whole.table["dtype"].to_list())
    for row, (op, role, dtype) in enumerate(zip(*columns, strict=True)):
        if "int" not in (dtype or ""):
            continue
        places = role == OUTPUT and _PLACES.search(op)
        if not places and not made:
            continue
        own = tuple(f"{piece.rank} {prod(piece.shape or ())} {piece.stats}" for piece in whole.pieces_of(row))
        if places:
            made.add(own)
        if own in made:
            found.add(row)
    return found
