"""All mapping options at work. The order of the rules is the order of precedence: the first to link wins."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from twinprobe._align.auto.alignment import Alignment, read_alignment
from twinprobe._align.auto.row_links import (
    RowLinks,
    aligned_pairs,
    link_alignment,
    link_automatically,
    link_equal_modules,
)
from twinprobe._align.calls import Side, split
from twinprobe._align.links import Board, Pairs, link_equal_names, names_meet, needs_help
from twinprobe._align.mapping.api_mapping import ApiFile, link_apis, read_api_file
from twinprobe._align.mapping.api_names import torch_name
from twinprobe._align.mapping.cell_mapping import link_cells, read_cell_file
from twinprobe._align.mapping.data_mapping import link_data, read_data_file, write_data_mapping
from twinprobe._align.mapping.layer_mapping import link_layers
from twinprobe._align.mapping.layer_tree import LayerFile, read_layer_file
from twinprobe._align.mapping.yaml_files import FlatFile
from twinprobe._align.matcher import MappingOptions
from twinprobe._align.place import link_places
from twinprobe._align.rows import pairs_of
from twinprobe._runs.names import BACKWARD, FORWARD
from twinprobe._runs.run import Run

# Fuzzy matching (-fm): the same name whatever its call number, in order of appearance.

RULE = "fuzzy"
_Queues = dict[tuple[str, str], list[int]]  # (the module around, the name) -> calls in order


def link_fuzzy(board: Board) -> None:
    """Link free calls of equal name in order: inside one module, or anywhere where the runs share no such module."""
    around = _Around(board.target), _Around(board.golden)
    shared = around[0].modules & around[1].modules
    directions = dict.fromkeys([FORWARD, *board.target.direction])
    # Backward calls go with their forward calls, so these come first.
    for direction in sorted(directions, key=lambda name: name == BACKWARD):
        target = _queues(board, around[0], shared, direction, golden=False)
        golden = _queues(board, around[1], shared, direction, golden=True)
        for key, ops in target.items():
            for op, other in zip(ops, golden.get(key, ()), strict=False):
                board.link(op, other, RULE)
        if direction == FORWARD:
            board.follow_forward()


class _Around:
    """The module around each call of a run, by the module's name without call number."""

    def __init__(self, side: Side) -> None:
        self.side = side
        parents = side.run.parents
        heads = {parent: split(parent)[0] if parent else "" for parent in dict.fromkeys(parents.values())}
        self.of = [heads.get(parents.get(name), "") for name in side.ops] if parents else []
        self.modules = set(self.of)


def _queues(board: Board, around: _Around, shared: set[str], direction: str, *, golden: bool) -> _Queues:
    side = around.side
    names: dict[str, str] = {}
    queues: _Queues = defaultdict(list)
    for op in board.free(list(side.heads.values()), direction, golden=golden):
        head = side.head_of[op]
        if head.name not in names:
            common = head.whole if head.is_module else torch_name(head, is_mindspore=side.is_mindspore)
            names[head.name] = common if board.across_frameworks else head.name
        place = around.of[op] if around.of else ""
        queues[place if place in shared else "", names[head.name]].append(op)
    return queues


@dataclass
class MappedMatcher:
    """A matcher with its files already read; it can travel to worker processes."""

    options: MappingOptions
    data: FlatFile | None
    layer: LayerFile | None
    cell: FlatFile | None
    api: ApiFile | None
    alignment: Alignment | None = None

    def __call__(self, target: Run, golden: Run) -> Pairs:
        """Pair two runs."""
        board = Board(target, golden)
        if self.data is not None:
            link_data(board, self.data)
        if self.layer is not None:
            link_layers(board, self.layer)
        if self.cell is not None or self.options.cell:
            link_cells(board, self.cell)
        if self.api is not None or self.options.api:
            link_apis(board, self.api)
        links = self._link_the_rest(board)
        pairs = pairs_of(board) if links is None else aligned_pairs(board, links)
        if self.layer is not None and self.options.output is not None:
            parts = ["data_mapping", self.options.label, self.options.timestamp]
            file = self.options.output / f"{'_'.join(part for part in parts if part)}.yaml"
            write_data_mapping(file, target, golden, pairs)
        return pairs

    def _link_the_rest(self, board: Board) -> RowLinks | None:
        """Pair unmapped calls: by the user's alignment, automatically where names differ, then by equal names."""
        options = self.options
        if options.fuzzy:
            if board.across_frameworks:
                link_cells(board)
            link_fuzzy(board)
            return None
        by_place = options.pair == "place" and not board.target.run.single_points
        links = link_alignment(board, self.alignment, where=options.alignment) if self.alignment is not None else None
        tried = links is None and options.fills and needs_help(*_runs(board), by_place=by_place)
        if tried and not board.target.run.single_points:
            links = link_automatically(board, by_results=not options.any)
        if options.align == "none":
            return links
        if links is not None:
            link_equal_modules(board)
            return links
        if by_place and not board.across_frameworks:
            return link_places(board, grouped=options.align != "names")
        help_wanted = options.align == "auto" and self.layer is None
        if help_wanted and (board.across_frameworks or not names_meet(*_runs(board))):
            link_cells(board)
            link_apis(board)
        link_equal_names(board)
        return None


def read_mappings(options: MappingOptions) -> MappedMatcher:
    """Read all mapping files now, so that a bad one is met before any dump is opened.

    Precedence: data, layer, cell, API, an alignment (the user's, or found where names differ), then equal names
    (or fuzzy names). A later rule never changes what an earlier one has linked.
    """
    return MappedMatcher(
        options,
        data=read_data_file(options.data) if options.data else None,
        layer=read_layer_file(options.layer) if options.layer else None,
        cell=read_cell_file(options.cell) if options.cell and options.cell is not True else None,
        api=read_api_file(options.api) if options.api and options.api is not True else None,
        alignment=read_alignment(options.alignment) if options.alignment else None,
    )


def _runs(board: Board) -> tuple[Run, Run]:
    return board.target.run, board.golden.run
