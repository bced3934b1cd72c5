"""All mapping options at work. The order of the rules is the order of precedence: the first to link wins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from twinprobe.align.auto import Alignment, aligned_pairs, link_alignment, read_alignment
from twinprobe.align.auto.link import link_automatically, link_equal_modules
from twinprobe.align.auto.row_links import RowLinks
from twinprobe.align.board import Board
from twinprobe.align.mapping.api_file import ApiFile, read_api_file
from twinprobe.align.mapping.api_mapping import link_apis
from twinprobe.align.mapping.cell_mapping import CellFile, link_cells, read_cell_file
from twinprobe.align.mapping.data_mapping import DataFile, link_data, read_data_file
from twinprobe.align.mapping.equal_names import link_equal_names
from twinprobe.align.mapping.fuzzy import link_fuzzy
from twinprobe.align.mapping.layer_file import LayerFile, read_layer_file
from twinprobe.align.mapping.layer_mapping import link_layers
from twinprobe.align.mapping.written_mapping import write_data_mapping
from twinprobe.align.meeting import names_meet, needs_help
from twinprobe.align.options import MappingOptions
from twinprobe.align.pairs import Pairs
from twinprobe.align.rows import pairs_of
from twinprobe.runs.run import Run


@dataclass
class MappedMatcher:
    """A matcher with its files already read; it can travel to worker processes."""

    options: MappingOptions
    data: DataFile | None
    layer: LayerFile | None
    cell: CellFile | None
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
            write_data_mapping(self._data_mapping_path(self.options.output), target, golden, pairs)
        return pairs

    def _link_the_rest(self, board: Board) -> RowLinks | None:
        """What no option has linked: by the user's alignment, automatically where names do not meet, by equal names."""
        options = self.options
        if options.fuzzy:
            if board.across_frameworks:
                link_cells(board)
            link_fuzzy(board)
            return None
        links = link_alignment(board, self.alignment, where=options.alignment) if self.alignment is not None else None
        if links is None and options.fills and not board.target.run.single_points and needs_help(*_runs(board)):
            links = link_automatically(board, by_results=not options.any)
        if options.align == "none":
            return links
        if links is not None:
            link_equal_modules(board)
            return links
        help_wanted = options.align == "auto" and self.layer is None
        if help_wanted and (board.across_frameworks or not names_meet(*_runs(board))):
            link_cells(board)
            link_apis(board)
        link_equal_names(board)
        return None

    def _data_mapping_path(self, folder: Path) -> Path:
        parts = ["data_mapping", self.options.label, self.options.timestamp]
        return folder / ("_".join(part for part in parts if part) + ".yaml")


def read_mappings(options: MappingOptions) -> MappedMatcher:
    """Read all mapping files now, so that a bad one is met before any dump is opened.

    Precedence: data, layer, cell, API, an alignment (the user's, or found where names do not meet), then equal names
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
