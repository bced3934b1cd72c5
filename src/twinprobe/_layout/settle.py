"""Settling: once rows are paired, what the pieces of each value are to one another, and the whole value they make.

Replicas are checked against each other first; one that differs is a finding of its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import isnan, prod
from typing import Any

import numpy as np

from twinprobe._align.calls import dims
from twinprobe._align.links import Pairs
from twinprobe._layout import shared, sums
from twinprobe._layout.pieces import (
    AXES,
    BATCH_AXES,
    COPIES,
    EXACT,
    SUM,
    Arithmetic,
    Known,
    Piece,
    Shape,
    added_up,
    along,
    breaks,
    fitting_way,
    nearest,
    of_concatenation,
    of_placement,
    put_together,
    same,
    shapes_of,
    signature,
)
from twinprobe._layout.ranks import token_shape
from twinprobe._layout.repeated import groups_of, repeats, summed, worst_copies
from twinprobe._layout.whole import Whole, call_head
from twinprobe._layout.wrong_ranks import NOTHING, numbers_of
from twinprobe._runs.names import BACKWARD, FORWARD, TOTAL_NORM, is_module, parse_op
from twinprobe._runs.run import OPTIMIZER_FILE, Run
from twinprobe._runs.table import ABSENT, BOOL, FLOAT, GRADIENT, INPUT, INT, OUTPUT, PARAMETER, STATS, TENSOR, VALUE

NO_UPDATE = "does not update this parameter"
SETTING, FROM_OTHERS = "setting differs", " from the others"
OWN_PART = "each rank has its own part of what a reduction takes"
Match = Callable[[Run, Run], Pairs]


class Settler:
    """A matcher that, once the rows are paired, puts the pieces of every value together on each side."""

    def __init__(self, match: Match) -> None:
        self._match = match

    def __call__(self, target: Run, golden: Run) -> Pairs:
        """Pair the rows and settle them."""
        pairs = self._match(target, golden)
        if (
            isinstance(target, Whole)
            and isinstance(golden, Whole)
            and shared.groups_in(target) != shared.groups_in(golden)
        ):
            pairs = shared.without_collectives(pairs, target, golden)
        both = np.flatnonzero((pairs.target >= 0) & (pairs.golden >= 0))
        partners = [(int(pairs.target[at]), int(pairs.golden[at])) for at in both.tolist()]
        goals: dict[int, Shape] = {}
        if isinstance(golden, Whole):
            back = [(mine, other) for other, mine in partners]
            if isinstance(target, Whole):
                goals = shared.common_shapes(target, golden, partners)
                blind = {mine: goals[other] for mine, other in back if other in goals}
                _Side(golden, target, back, blind).settle()
            else:
                _Side(golden, target, back).settle()
        if isinstance(target, Whole):
            _Side(target, golden, partners, goals if isinstance(golden, Whole) else None).settle()
        return pairs


class _Side:
    """One side's rows while they are settled."""

    def __init__(
        self, whole: Whole, other: Run, partners: Sequence[tuple[int, int]], goals: Mapping[int, Shape] | None = None
    ) -> None:
        self.goals = goals
        self.whole, self.other = whole, other
        self.partner = dict(partners)
        self.changes: dict[str, dict[int, Any]] = defaultdict(dict)
        self.unfit: list[str] = []
        self.ways: Counter[str] = Counter()
        self.optimizer = whole.path.name.startswith("optimizer")
        self.kinds = {stat: whole.table[f"{stat}_kind"].to_list() for stat in STATS}
        # The values of a side that is itself not put together yet say nothing.
        settled = goals is None or not isinstance(other, Whole) or other.settled
        self.golden = {stat: other.table[stat].to_list() if settled else [None] * other.table.height for stat in STATS}
        self.reduced, self.extremes = shared.reductions(whole)
        self.partial: set[Any] = set()
        self.exact: tuple[bool, ...] = EXACT
        self.members: dict[int, tuple[int, ...]] = {}  # whose shards make up the block that a rank stands for
        self.means, self.plain = sums.shares_of(whole), sums.added_up_beside(whole, other)
        self.of_pieces: dict[str, str] = {}  # calls in modules that exchange pieces, and why they have no whole result
        self.values = shared.gradients_of_values(whole)
        self.shares = self.means if self.optimizer else sums.gradient_shares(whole, self.partner, self.golden, other)
        self.gradients: dict[int, Known] = {}  # of parameters, for those that stages share
        self.shared: dict[int, int] = {}  # gradients that are parts of one, with the first of each group
        if whole.layout.pp > 1 and not self.optimizer and not isinstance(other, Whole):
            self.partner |= shared.copied_weights(whole, self.partner)
            self.shared = shared.shared_gradients(whole, other, self.partner)

    def _add_shared(self) -> None:
        """Give all gradients of a weight that stages share their sum."""
        groups: dict[int, list[int]] = defaultdict(list)
        for row, first in self.shared.items():
            groups[first].append(row)
        for rows in groups.values():
            if all(row in self.gradients for row in rows):
                whole = added_up([self.gradients[row] for row in rows])
                if whole is None:
                    continue
                for row in rows:
                    self._take(row, self.partner[row], whole)
                self.ways["(gradients of a weight that stages share) added up"] += len(rows)

    def settle(self) -> None:
        """Settle every row, and write what is known into the run's table."""
        whole = self.whole
        table, pieces = whole.table, whole.pieces
        equal, kinds, shapes = pieces["equal"].to_list(), table["kind"].to_list(), table["shape"].to_list()
        own_shapes, roles, norms = pieces["shape"].to_list(), table["role"].to_list(), table["norm"].to_list()
        other_shapes, other_kinds = self.other.table["shape"].to_list(), self.other.table["kind"].to_list()
        experts, ops, expected = (pieces[name].to_list() for name in ("expert", "op", "expected"))
        placed = any(dump.placements for dump in whole.ranks.values())
        for row in range(table.height):
            partner = self.partner.get(row)
            if kinds[row] == VALUE and partner is not None and other_kinds[partner] == VALUE:
                odd = not equal[row] and row not in self.of_ranks
                if odd and (self.optimizer or self.kinds["max"][row] in (FLOAT, BOOL)):
                    self._settle_setting(row, partner)
                elif not self.optimizer:
                    self._settle_value(row, partner)
            if kinds[row] != TENSOR or ops[row].startswith(TOTAL_NORM):
                continue
            if ops[row] in self.vocabulary and roles[row] != PARAMETER and pieces["suffix"][row] != ".input.1":
                self._nothing(row, "each rank looks up its own words")
                continue
            why = self.of_ranks.get(row) or self.of_pieces.get(ops[row])
            if why or (row in self.own_parts and f".{BACKWARD}" not in ops[row]):
                self._nothing(row, why or OWN_PART)
                continue
            goal_text = other_shapes[partner] if partner is not None and other_kinds[partner] == TENSOR else None
            if self.goals is not None:
                goal_text = str(list(self.goals[row])) if row in self.goals else None
            gradient = roles[row] == GRADIENT or f".{BACKWARD}" in ops[row]
            plain = equal[row] and (goal_text is None or own_shapes[row][0] == goal_text)
            plain = plain and (self.optimizer or len(own_shapes[row]) >= expected[row])
            if plain and not placed and not (experts[row] and gradient) and row not in self.shared:
                goal = None if self.optimizer or self.shares or partner is None else self.golden["norm"][partner]
                parts = sums.equal_parts(whole, row, self.other, goal) if roles[row] == GRADIENT else 1
                self.ways["added up over tp"] += parts > 1
                if parts > 1 or shapes[row] != own_shapes[row][0] or isnan(norms[row] or 0.0):  # on the other side
                    self.changes["shape"][row] = own_shapes[row][0]
                    for stat in STATS:
                        self.changes[stat][row] = value * parts if (value := pieces[stat][row][0]) is not None else None
                continue
            self._settle_row(row, partner, dims(goal_text) if goal_text is not None else None, roles[row], gradient)
        self._add_shared()
        if self.optimizer:
            self._total_norms()
        self._write()
        self._tell()
        whole.settled = True

    def _total_norms(self) -> None:
        for row, norm in shared.total_norms(self.whole, self.changes["norm"]).items():
            if norm is None:
                self._nothing(row, "a gradient is not known")
                continue
            for stat in STATS:
                self.changes[stat][row] = norm
        for row, words in shared.own_norms(self.whole):
            self.whole.findings.append(f"{self.whole.table['name'][row]}: {words}")
            self._nothing(row, "the norms of ranks differ")

    def _settle_setting(self, row: int, partner: int) -> None:
        """A setting (a learning rate, an epsilon) that ranks do not share: one that is not golden's counts."""
        goal = self.golden["max"][partner]
        wrong = [piece for piece in self.whole.pieces_of(row) if piece.stats[0] not in (None, goal)]
        if not wrong or self.kinds["max"][row] not in (FLOAT, INT, BOOL):
            return
        for stat, value in zip(STATS, wrong[0].stats, strict=True):
            text = str(bool(value) if self.kinds["max"][row] == BOOL else value)
            self.changes[stat][row], self.changes[f"{stat}_text"][row] = value, text
        own = FROM_OTHERS if len(wrong) < len(self.whole.pieces_of(row)) else ", none has golden's"
        ranks = f"rank{'s' * (len(wrong) > 1)} {numbers_of([piece.rank for piece in wrong])}"
        self.whole.findings.append(f"{self.whole.table['name'][row]}: {ranks}'s {SETTING}{own}")

    def _settle_value(self, row: int, partner: int) -> None:
        """A whole number that counts what is split, such as a size given to view, counts all of it."""
        mine, goal, late = self.whole.table["max"][row], self.golden["max"][partner], row in self.of_ranks
        counts = self.kinds["max"][row] == INT and self.whole.counts(self.whole.pieces["op"][row], mine, goal)
        if not late and not counts:
            return
        columns = (*STATS, *(f"{stat}_{end}" for stat in STATS for end in ("text", "kind")), "value_digest", "meaning")
        for column in columns:
            self.changes[column][row] = self.other.table[column][partner]
        self.ways["(sizes) multiplied by the number of pieces"] += not late

    def _settle_row(  # noqa: PLR0911, PLR0912, PLR0915  each return is a value of which not enough is known
        self, row: int, partner: int | None, goal: Shape | None, role: int, gradient: bool
    ) -> None:
        if not self.whole.layout.known:
            self._nothing(row, "how the ranks are laid out is not known")
            return
        pieces = self.whole.pieces_of(row)
        self.exact, self.members, of_row = EXACT, {}, self.values.get(row, -1)
        blocks = self._blocks(row, pieces)
        if blocks is None:
            return
        if goal is None:
            goal = blocks[0].shape if all(same([blocks[0], block]) for block in blocks[1:]) else None
            if goal is None:
                self._guess(row, blocks)
                return
        if not self.optimizer and len(pieces) < self.whole.pieces["expected"][row]:
            # Of what is left, only copies tell something: of weights, and of values that are no part of a sum.
            copied = len(blocks) > 1 and same(blocks) and not gradient
            if blocks[0].shape != goal or not (role == PARAMETER or (copied and goal != ())):
                self._nothing(row, "a rank's piece is missing")
                return
        weight = (
            self.optimizer or role in (PARAMETER, GRADIENT) or (gradient and shared.cut_as_weight(self.whole, of_row))
        )
        alike = [[same(line) for line in along(blocks, axis)] for axis in range(len(AXES))]
        copies, some = tuple(map(all, alike)), tuple(map(any, alike))
        places = tuple((block.place, block.shape) for block in blocks if block.shape is not None)
        if len(places) < len(blocks):
            self._nothing(row, "a piece has no shape")
            return
        way = fitting_way(places, goal, copies, weight, some, (self._tokens or (0, 0))[1] * self.whole.layout.cp)
        alike_ranks = repeats(blocks, goal, weight=weight) if way is None else None
        if alike_ranks is not None:
            count, way = alike_ranks
            blocks = self._one_of_each(row, partner, groups_of(blocks, count), way, gradient and not self.optimizer)
        if way is None:
            self._flat(row, blocks, goal)
            return
        if (
            role == PARAMETER
            and way[AXES.index("cp")] >= 0
            and not any("parameters" in text for text in self.whole.lost)
        ):
            shape, name = list(blocks[0].shape or ()), self.whole.table["name"][row]
            self.whole.lost.append(
                f"layout {self.whole.layout}: context parallel ranks hold whole parameters, but {name} is {shape} "
                f"on rank {blocks[0].rank}, and {list(goal)} in the other run"
            )
        arithmetic = self._arithmetic(row, gradient and not self.optimizer, blocks[0], way)
        if way[AXES.index("tp")] == SUM and row in self.own_parts:
            self._nothing(row, OWN_PART)
            return
        if (odd := self._odd_axis(row, blocks, way, role, gradient)) == "unknown":
            self._nothing(row, "its pieces differ, and nothing tells how they fit together")
            return
        if odd:
            blocks, way = self._worst(row, partner, blocks, way, odd, arithmetic)
        elif SUM in way and not gradient and role in (INPUT, OUTPUT) and goal == ():
            whole = self.golden["max"][partner] if partner is not None else None
            parts = self.means | {"tp": [1 / self.whole.layout.tp] * self.whole.layout.tp}
            readings = [Arithmetic(one, {}) for one in (self.plain, parts, self.shares or self.means, self.means)]
            arithmetic = nearest(whole, blocks, way, readings)
        found = put_together(blocks, way, arithmetic)
        if found is None:
            self._nothing(row, "a piece is not known")
            return
        for axis, dim in zip(AXES, way, strict=True):
            self.ways[f"added up over {axis}"] += dim == SUM
            self.ways[f"concatenated over {axis} along dimension {dim}"] += dim >= 0
        self.whole.ways[row], self.whole.arithmetic[row] = way, arithmetic
        exact = tuple(one and other for one, other in zip(found.exact, self.exact, strict=True))
        found = found._replace(exact=exact)  # type: ignore[arg-type]
        self._take(row, partner, self._after_reduction(blocks, way, found, arithmetic))

    def _blocks(self, row: int, pieces: list[Piece]) -> list[Piece] | None:
        """Pieces of distributed tensors put together on each mesh; the others as they are."""
        placements = self.whole.placements_of(row)
        if not any(placement is not None for placement in placements):
            return pieces
        if any(placement is None for placement in placements):
            self._nothing(row, "only some ranks have recorded how it is placed")
            return None
        blocks = []
        seen: set[Any] = set()
        by_micro: dict[int, dict[int, Piece]] = defaultdict(dict)
        for piece in pieces:
            by_micro[piece.place[0]][piece.rank] = piece
        for piece, placement in zip(pieces, placements, strict=True):
            key = piece.place[0], placement.mesh
            if key in seen:
                continue
            seen.add(key)
            owners = by_micro[piece.place[0]]
            whole = set(placement.mesh) <= owners.keys()
            node = of_placement(owners, self._worst_replicas(row, owners, placement) if whole else placement)
            if node is None:
                lost = [rank for rank in placement.mesh if rank not in owners]
                why = f"rank {numbers_of(lost)} of its mesh is missing" if lost else "its pieces do not just add up"
                self._nothing(row, why)
                return None
            first = min((owners[rank] for rank in placement.mesh), key=lambda one: one.place)
            blocks.append(Piece(first.rank, first.place, node[0], node[1], node[3], None))
            self.members[first.rank] = placement.mesh
            self.exact = tuple(one and other for one, other in zip(self.exact, node[2], strict=True))
        self.ways["put together by their recorded placements"] += sum(way != COPIES for way in placements[0].ways)
        return blocks

    def _worst_replicas(self, row: int, owners: Mapping[int, Piece], placement: Any) -> Any:
        """The placement without replicas: where some differ, which is a finding, the worst stand for all."""
        for at, way in enumerate(placement.ways):
            ranks = np.asarray(placement.mesh).reshape(placement.mesh_shape)
            if way != COPIES or ranks.shape[at] == 1:
                continue
            lines = np.moveaxis(ranks, at, -1).reshape(-1, ranks.shape[at])
            groups = [group for line in lines if not same(group := [owners[int(rank)] for rank in line])]
            parts = [replace(placement, mesh=tuple(part.reshape(-1).tolist()), mesh_shape=part.shape)
                     for part in np.split(ranks, ranks.shape[at], axis=at)]  # fmt: skip
            # What each copy makes with the shards beside it can be compared with the other side's value.
            nodes = [of_placement(owners, part) for part in parts] if groups else []
            for group in groups if None not in nodes else ():
                copies = [piece._replace(stats=node[1]) for piece, node in zip(group, nodes, strict=True)]
                odd = self._report(row, self.partner.get(row), [copies])
                placement = parts[[piece.rank for piece in copies].index(odd.rank)]
        return placement

    def _arithmetic(self, row: int, gradient: bool, block: Piece, way: Any) -> Arithmetic:
        if not gradient:
            return Arithmetic({}, self.orders, self._groups(block, way))
        factor = 1.0
        if self.whole.pieces["expert"][row] and "ep" in self.shares:
            factor = 1 / self.whole.layout.ep  # words of all ranks meet in an expert, each with its rank's mean loss
        return Arithmetic(self.shares, self.orders, self._groups(block, way), factor)

    @cached_property
    def orders(self) -> dict[str, str]:
        """In which order pieces along an axis follow one another."""
        if self.whole.layout.cp == 1:
            return {}
        return {"cp": shared.order_of_sequences(self.whole, self.other, {} if self.optimizer else self.partner)}

    def _groups(self, block: Piece, way: Any) -> int:
        """Where batch and sequence are one dimension, as many stretches as the batch has sequences."""
        tokens, dim = self._tokens, way[AXES.index("cp")]
        if tokens is None or dim < 0 or block.shape is None or block.shape[dim] != prod(tokens):
            return 1
        return tokens[0]

    @cached_property
    def _tokens(self) -> Shape | None:
        return token_shape(next(iter(self.whole.ranks.values())).run)

    def _odd_axis(self, row: int, blocks: list[Piece], way: Any, role: int, gradient: bool) -> str:
        """The axis along which values that should be copies differ; "unknown" where it cannot be said; or nothing."""
        for at, axis in enumerate(AXES):
            if way[at] != SUM:
                continue
            if self.optimizer or role == PARAMETER:
                return axis
            if axis in BATCH_AXES:
                if gradient or blocks[0].shape == ():
                    continue
                # What one rank was given as golden has it (a mask) is a copy, and others are wrong; so is what no call
                # has made, if golden's is the mean of it (a buffer).
                goal = tuple(self.golden[stat][self.partner[row]] for stat in STATS) if row in self.partner else (None,)
                copied = role == INPUT and None not in goal and (
                    any(block.stats == goal for block in blocks)
                    or (signature(blocks) not in self.made and bool(sums.parts_of(goal, along(blocks, at)[0])))
                )  # fmt: skip
                return axis if copied else "unknown"
            if role in (INPUT, OUTPUT) and sums.parts_of_number(blocks, self.golden, self.partner.get(row)):
                continue  # a loss of which each rank makes its part
            if not all(self._is_partial(row, line, role) for line in along(blocks, at)):
                return axis
        return ""

    def _is_partial(self, row: int, line: list[Piece], role: int) -> bool:
        """Whether values of tensor parallel ranks are parts of a sum: a reduction takes them, or the sum of several.

        Gradients of parameters are (sequence parallel ranks add them up later), where optimizers tell what became of
        them or no collective was recorded; and there so is what a module around hands on as copies, unless another call
        takes it as it is. So is the gradient that leaves a module of which each rank has a part: backward adds several.
        """
        own, op = signature(line), self.whole.pieces["op"][row]
        if role == INPUT or (self.reduced is not None and own in self.reduced):
            return own in (self.partial if self.reduced is None else self.reduced)
        module = parse_op(op if is_module(op) else self.whole.parents.get(op) or op).body
        back, told = f".{BACKWARD}" in op, (self.whole.ranks[line[0].rank].folder / OPTIMIZER_FILE).is_file()
        partial = role == GRADIENT or (back and (module, line[0].shape) in self.parameters)
        partial = partial and (self.reduced is None or told)
        if not partial and own not in self.taken:
            shape, around = line[0].shape, (self.outputs, self.taken)
            copied = self.reduced is None and shared.handed_on_as_sums(self.whole, op, shape, *around)
            partial = copied or (back and module in self.cut)
        if partial:
            self.partial.add(own)
        return partial

    @cached_property
    def parameters(self) -> set[Any]:
        """Modules with the shapes of their parameters."""
        return {(parse_op(self.whole.pieces["op"][row]).body, self.whole.pieces_of(row)[0].shape)
                for row, role in enumerate(self.whole.table["role"].to_list()) if role == PARAMETER}  # fmt: skip

    @cached_property
    def cut(self) -> set[str]:
        """The paths of modules of which each rank has a part."""
        return shared.cut_modules(self.whole, self.other, self.partner)

    @cached_property
    def taken(self) -> set[Any]:
        """What calls take as it is, by the statistics of all ranks."""
        rows = [row for row, role in enumerate(self.whole.table["role"].to_list()) if role == INPUT]
        return {signature(line) for row in rows for line in along(self.whole.pieces_of(row), AXES.index("tp"))}

    @cached_property
    def made(self) -> set[Any]:
        """What calls return, by the statistics of all ranks."""
        return {signature(self.whole.pieces_of(row)) for row, role in enumerate(self.whole.table["role"].to_list())
                if role == OUTPUT}  # fmt: skip

    @cached_property
    def outputs(self) -> dict[str, int]:
        """The row of each call's first output."""
        rows = [*zip(self.whole.pieces["op"].to_list(), self.whole.table["role"].to_list(), strict=True)]
        return {rows[at][0]: at for at in reversed(range(len(rows))) if rows[at][1] == OUTPUT}

    @cached_property
    def of_ranks(self) -> dict[int, str]:
        """Values that mean nothing beyond a rank, and why."""
        split, both = any(axis in self.shares for axis in BATCH_AXES), self.goals is not None
        found = shared.own_positions(self.whole, self.other, self.partner) if split else {}
        told = both or (not self.optimizer and shared.told_by_optimizers(self.whole, self.other))
        if told:
            found |= shared.called_late(self.whole) | shared.of_tied_stages(self.whole, self.shared)
        return found | (shared.pieces_in_lists(self.whole) if both else {})

    @cached_property
    def own_parts(self) -> set[int]:
        """Values between a shard and the reduction that follows, of which each rank has another."""
        return shared.own_parts(self.whole, self.other, self.partner, self.reduced) if self.reduced else set()

    @cached_property
    def vocabulary(self) -> set[str]:
        """Lookups in a table of which each rank has some words."""
        return shared.cut_lookups(self.whole, self.other, self.partner) if self.whole.layout.tp > 1 else set()

    def _worst(
        self, row: int, partner: int | None, blocks: list[Piece], way: Any, axis: str, arithmetic: Arithmetic
    ) -> tuple[list[Piece], Any]:
        """Copies that differ: the finding, and the copy that is farthest from the other side's value stands for all."""
        at = AXES.index(axis)
        held = self.optimizer or self.whole.table["role"][row] == PARAMETER  # copies along all axes that are left over
        axes = {at, *(one for one, dim in enumerate(way) if held and dim == SUM)}
        lines, rest = along(blocks, at), tuple(COPIES if one in axes else dim for one, dim in enumerate(way))
        groups = [group for group in lines if not same(group)] or lines[:1]
        if max(rest) >= 0 and axes == {at} and not self.members:
            # What each copy makes with the parts beside it can be compared with the other side's value.
            sides = [put_together(line, rest, arithmetic) for line in zip(*lines, strict=True)]
            self.members = {own[0].rank: tuple(one.rank for one in own) for own in zip(*groups, strict=True)}
            known = [(piece, side.stats) for piece, side in zip(groups[0], sides, strict=True) if side is not None]
            groups = [[piece._replace(stats=stats) for piece, stats in known]] if None not in sides else groups
        odd = self._report(row, partner, groups)
        return [block for block in blocks if all(block.place[one] == odd.place[one] for one in axes)], rest

    def _one_of_each(
        self, row: int, partner: int | None, groups: list[list[Piece]], way: Any, gradient: bool
    ) -> list[Piece]:
        """Parts that several ranks hold: copies, of which the worst are judged; their gradients add up."""
        if gradient:
            blocks, self.exact = summed(groups)
            self.ways["added up over the ranks that share a head"] += 1
            return blocks
        goal = tuple(self.golden[stat][partner] if partner is not None else None for stat in STATS)
        said, blocks = worst_copies(groups, way, Arithmetic({}, self.orders), goal)  # type: ignore[arg-type]
        if said and partner is not None:
            self.whole.findings.append(f"{self.whole.table['name'][row]}: {said}")
        return blocks

    def _report(self, row: int, partner: int | None, groups: list[list[Piece]]) -> Piece:
        """Note which rank's copy differs; returns the worst one."""
        goal = tuple(self.golden[stat][partner] for stat in STATS) if partner is not None else None

        def parts_of(group: Sequence[Piece]) -> str:
            found = sums.parts_by_sketches(self.whole, row, self.other, -1 if partner is None else partner, group)
            return found or (sums.sum_and_bias(self.whole, row, goal, group) if goal is not None else "")

        said, odd = sums.odd_copies(groups, goal, self.members, parts_of)
        said = sums.other_parts(self.whole, groups[0], said) if NOTHING in said and self.reduced else said
        if said and partner is not None and len(self.whole.findings) < 1000:
            self.whole.findings.append(f"{self.whole.table['name'][row]}: {said}")
        return odd

    def _after_reduction(self, blocks: list[Piece], way: Any, found: Known, arithmetic: Arithmetic) -> Known:
        """Of partial sums that a recorded reduction took, the statistics of its result are known exactly."""
        at = AXES.index("tp")
        if way[at] != SUM or not self.reduced or all(found.exact):
            return found
        lines = along(blocks, at)
        rows = [self.reduced.get(signature(line), -1) for line in lines]
        extreme = any(signature(line) in self.extremes for line in lines)  # their sum is of no use
        unknown = Known(found.shape, (None,) * 4, EXACT, None) if extreme else found
        if -1 in rows or len(lines) > 1 or arithmetic.shares:
            return unknown
        result = self.whole.pieces_of(rows[0])
        known = not any(one is None or isnan(one) for one in result[0].stats)  # it may have come after the call
        if known and same(result) and prod(result[0].shape or ()) == prod(found.shape):
            return Known(found.shape, result[0].stats, EXACT, None if extreme else found.recipe)
        return unknown

    def _flat(self, row: int, blocks: list[Piece], goal: Shape) -> None:
        """Stretches of a flattened tensor, as FSDP1 has them; else there is no way."""
        counts = [0 if block.shape is None else prod(block.shape) for block in blocks]
        if all(block.shape is not None and len(block.shape) == 1 for block in blocks) and sum(counts) == prod(goal):
            stats = of_concatenation([block.stats for block in blocks], counts)
            self.ways["stretches of flat parameters"] += 1
            self._take(row, self.partner.get(row), Known(goal, stats, (True,) * 4, None))
            return
        missing = len(self.whole.pieces_of(row)) < self.whole.pieces["expected"][row]
        held = sorted(set(self.whole.ranks) - {block.rank for block in blocks})  # of ranks whose dumps are there
        if missing and held and self.optimizer and self.whole.pieces["suffix"][row] == ".input.0":
            self.whole.findings.append(f"{self.whole.table['name'][row]}: rank {numbers_of(held)} {NO_UPDATE}")
            zeros = prod(goal) - sum(counts)  # a parameter without a gradient stays as it is
            stats = of_concatenation([*(block.stats for block in blocks), (0.0, 0.0, 0.0, 0.0)], [*counts, zeros])
            self._take(row, self.partner.get(row), Known(goal, stats, (True,) * 4, None))
            return
        self._nothing(row, f"pieces of {shapes_of(blocks)} make no {list(goal)}", shape=not missing)
        op = self.whole.pieces["op"][row]
        if call_head(self.whole.parents.get(op) or "") in self.whole.exchanging:
            calls = op, op.replace(f".{FORWARD}", f".{BACKWARD}")
            self.of_pieces |= dict.fromkeys(calls, "it is made of the piece that each rank has itself")

    def _guess(self, row: int, blocks: list[Piece]) -> None:
        """Nobody on the other side: statistics as of shards, the shape left open."""
        counts = [0 if block.shape is None else prod(block.shape) for block in blocks]
        stats = of_concatenation([block.stats for block in blocks], counts)
        self._take(row, None, Known((), stats, (True,) * 4, None))
        self.changes["shape"][row] = None

    def _nothing(self, row: int, why: str, *, shape: bool = False) -> None:
        self.unfit.append(f"{self.whole.table['name'][row]}: {why}")
        if not shape:
            self.changes["shape"][row] = None
        for stat in STATS:
            self.changes[stat][row], self.changes[f"{stat}_kind"][row] = None, ABSENT
        self.changes["file"][row] = self.changes["digest"][row] = None

    def _take(self, row: int, partner: int | None, found: Known) -> None:
        """Write a whole value into its row. A statistic that is only a bound counts where the other side breaks it."""
        if row in self.shared:
            self.gradients.setdefault(row, found)
        self.changes["shape"][row] = str(list(found.shape))
        self.changes["file"][row] = found.recipe
        self.changes["digest"][row] = None
        for stat, value, exact in zip(STATS, found.stats, found.exact, strict=True):
            kind = self.kinds[stat][row]
            if kind not in (FLOAT, INT, BOOL):
                continue
            goal = self.golden[stat][partner] if partner is not None else None
            if value is None or (not exact and not breaks(stat, value, goal)):
                self.changes[stat][row], self.changes[f"{stat}_kind"][row] = None, ABSENT
                continue
            self.changes[stat][row] = value
            if kind == INT:
                even = value == round(value)
                self.changes[f"{stat}_text"][row] = str(int(value)) if even else None
                self.changes[f"{stat}_kind"][row] = INT if even else FLOAT
            elif kind == BOOL:
                self.changes[f"{stat}_text"][row] = str(bool(value))

    def _write(self) -> None:
        import polars as pl

        columns = []
        for name, values in self.changes.items():
            column = self.whole.table[name]
            whole = dict(enumerate(column.to_list())) | values
            columns.append(pl.Series(name, list(whole.values()), dtype=column.dtype))
        self.whole.table = self.whole.table.with_columns(columns)

    def _tell(self) -> None:
        whole = self.whole
        whole.assumed += [f"{self.ways[way]:,} value{'s' * (self.ways[way] > 1)} {way}" for way in sorted(+self.ways)]
        more = f", and {len(self.unfit) - 1:,} more" if len(self.unfit) > 1 else ""
        whole.assumed += [f"not put together: {self.unfit[0]}{more}"] if self.unfit else []
