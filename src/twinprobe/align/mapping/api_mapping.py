"""API mapping (-am): calls of APIs that compute the same, by the user's file and the built-in table."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import chain

from twinprobe.align.board import Board
from twinprobe.align.mapping.api_file import ApiFile, UserApis, user_apis
from twinprobe.align.mapping.api_names import family, torch_name
from twinprobe.align.side import Head, Side
from twinprobe.runs.names import BACKWARD, FORWARD

USER, BUILT_IN, SAME = "API mapping", "API table", "name"


@dataclass
class _Family:
    """All spellings of one function: unit (one API in common spelling) -> its heads on either side."""

    target: dict[str, list[Head]] = field(default_factory=lambda: defaultdict(list))
    golden: dict[str, list[Head]] = field(default_factory=lambda: defaultdict(list))


def link_apis(board: Board, file: ApiFile | None = None) -> None:
    """Link free API calls. One API against one pairs by call number, several against one in order of appearance."""
    _Linker(board, user_apis(board, file) if file else UserApis()).link()


class _Linker:
    def __init__(self, board: Board, users: UserApis) -> None:
        self._board = board
        self._users = users

    def link(self) -> None:
        families: dict[str, _Family] = defaultdict(_Family)
        for head in self._board.target.apis:
            unit = self._users.target.get(head.name) or self._common_name(self._board.target, head)
            families[family(unit)].target[unit].append(head)
        for head in self._board.golden.apis:
            unit = self._users.golden.get(head.name) or self._common_name(self._board.golden, head)
            families[family(unit)].golden[unit].append(head)
        both = [members for members in families.values() if members.target and members.golden]
        for direction in (FORWARD, BACKWARD):
            for members in both:
                self._link_family(members, direction)
            self._board.follow_forward()

    def _common_name(self, side: Side, head: Head) -> str:
        # Within one framework every API stays itself: only the user's file says otherwise.
        return torch_name(head, is_mindspore=True) if side.is_mindspore and self._board.across_frameworks else head.name

    def _link_family(self, members: _Family, direction: str) -> None:
        target = self._without_inner_primitives(members.target)
        golden = self._without_inner_primitives(members.golden)
        counts = self._counts(target, direction, golden=False), self._counts(golden, direction, golden=True)
        totals = sum(counts[0].values()), sum(counts[1].values())
        if counts[0] != counts[1] and totals[0] == totals[1]:
            self._link_group(list(chain(*target.values())), list(chain(*golden.values())), direction)
            return
        for unit in target.keys() & golden.keys():
            self._link_group(target[unit], golden[unit], direction)

    def _counts(self, units: dict[str, list[Head]], direction: str, *, golden: bool) -> dict[str, int]:
        counts = {unit: len(self._board.free(heads, direction, golden=golden)) for unit, heads in units.items()}
        return {unit: count for unit, count in counts.items() if count}

    @staticmethod
    def _without_inner_primitives(units: dict[str, list[Head]]) -> dict[str, list[Head]]:
        """Primitives are mostly parts of a Cell (MatMul of Dense), so they count only where nothing else does."""
        plain = {unit: [head for head in heads if head.prefix != "Primitive"] for unit, heads in units.items()}
        plain = {unit: heads for unit, heads in plain.items() if heads}
        return plain or units

    def _link_group(self, target: list[Head], golden: list[Head], direction: str) -> None:
        board = self._board
        mine, theirs = board.free(target, direction), board.free(golden, direction, golden=True)
        primitives = any(head.prefix == "Primitive" for head in target + golden)
        if primitives and board.across_frameworks and len(mine) != len(theirs):
            return
        if len(target) == 1 and len(golden) == 1:
            places = {board.golden.call[op]: op for op in theirs}
            by_number = [(op, places[board.target.call[op]]) for op in mine if board.target.call[op] in places]
            if by_number:
                self._link_pairs(by_number)
                return
        self._link_pairs(board.in_order(mine, theirs))

    def _link_pairs(self, pairs: list[tuple[int, int]]) -> None:
        board = self._board
        for op, other in pairs:
            if board.same_place(op, other):
                board.link(op, other, self._reason(board.target.head_of[op].name, board.golden.head_of[other].name))

    def _reason(self, target: str, golden: str) -> str:
        if self._users.target.get(target) == golden or self._users.golden.get(golden) == target:
            return USER
        return SAME if target == golden else BUILT_IN
