"""All mapping options as one matcher. The order of the rules is the order of precedence: the first to link wins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from twinprobe.align.api_file import ApiFile, read_api_file
from twinprobe.align.api_mapping import link_apis
from twinprobe.align.auto import Alignment, aligned_pairs, link_alignment, read_alignment
from twinprobe.align.auto.link import link_automatically, link_equal_modules, modules_meet
from twinprobe.align.auto.row_links import RowLinks
from twinprobe.align.board import Board
from twinprobe.align.cell_mapping import CellFile, link_cells, read_cell_file
from twinprobe.align.data_mapping import DataFile, link_data, read_data_file
from twinprobe.align.equal_names import link_equal_names
from twinprobe.align.exact import match_names
from twinprobe.align.fuzzy import link_fuzzy
from twinprobe.align.layer_file import LayerFile, read_layer_file
from twinprobe.align.layer_mapping import link_layers
from twinprobe.align.pairs import Pairs
from twinprobe.align.rows import pairs_of
from twinprobe.align.side import MINDSPORE
from twinprobe.align.written_mapping import write_data_mapping
from twinprobe.runs.run import Run

# Names meet where at least one call in twenty of the smaller run has its like.
_MEETING = 20


@dataclass
class MappingOptions:
    """Which mappings a user asks for. ``True`` stands for an option without a file.

    ``output`` is the folder that receives ``data_mapping_{timestamp}.yaml`` when ``layer`` is given; ``label`` (a rank
    folder's name, say) keeps the files of several ranks apart.
    """

    fuzzy: bool = False
    api: Path | Literal[True] | None = None
    cell: Path | Literal[True] | None = None
    data: Path | None = None
    layer: Path | None = None
    output: Path | None = None
    timestamp: str = ""
    label: str = ""
    align: Literal["auto", "names", "none"] = "auto"
    alignment: Path | None = None

    @property
    def any(self) -> bool:
        """Whether there is anything but equal names to go by."""
        named = self.fuzzy or self.api or self.cell or self.data or self.layer or self.alignment
        return bool(named) or self.align == "none"

    @property
    def fills(self) -> bool:
        """Whether what no file speaks of may be aligned; bare -cm and -am mean what they say."""
        return self.align == "auto" and self.cell is not True and self.api is not True


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
        if not self.options.any and (self.options.align == "names" or not _needs_help(target, golden)):
            return match_names(target, golden)
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
        if links is None and options.fills and not board.target.run.single_points and _needs_help(*_runs(board)):
            links = link_automatically(board)
        if options.align == "none":
            return links
        if links is not None:
            link_equal_modules(board)
            return links
        help_wanted = options.align == "auto" and self.layer is None
        if help_wanted and (board.across_frameworks or not _names_meet(*_runs(board))):
            link_cells(board)
            link_apis(board)
        link_equal_names(board)
        return None

    def _data_mapping_path(self, folder: Path) -> Path:
        parts = ["data_mapping", self.options.label, self.options.timestamp]
        return folder / ("_".join(part for part in parts if part) + ".yaml")


def build_matcher(options: MappingOptions) -> MappedMatcher:
    """Read all mapping files now, so that a bad one is met before any dump is opened.

    Precedence: data, layer, cell, API, an alignment (the user's, or found where names do not meet), then equal names
    (or fuzzy names). A later rule never changes what an earlier one has linked.
    """
    return MappedMatcher(
        options,
        data=read_data_file(options.data) if options.data else None,
        layer=read_layer_file(options.layer) if options.layer else None,
        cell=read_cell_file(options.cell) if isinstance(options.cell, Path) else None,
        api=read_api_file(options.api) if isinstance(options.api, Path) else None,
        alignment=read_alignment(options.alignment) if options.alignment else None,
    )


def _runs(board: Board) -> tuple[Run, Run]:
    return board.target.run, board.golden.run


def _needs_help(target: Run, golden: Run) -> bool:
    across = (target.framework == MINDSPORE) != (golden.framework == MINDSPORE)
    return across or not _names_meet(target, golden) or not modules_meet(target.ops, golden.ops)


def _names_meet(target: Run, golden: Run) -> bool:
    common = len(set(target.ops) & set(golden.ops))
    return common * _MEETING >= min(len(target.ops), len(golden.ops))
