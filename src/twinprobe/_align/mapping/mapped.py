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
from twinprobe._align.calls import RunCalls, split
from twinprobe._align.links import CallLinks, Pairs, link_equal_names, names_meet, needs_help
from twinprobe._align.mapping import MappingOptions
from twinprobe._align.mapping.api_mapping import ApiFile, link_apis, read_api_file
from twinprobe._align.mapping.api_names import torch_name
from twinprobe._align.mapping.flat_mapping import (
    link_cells,
    link_data,
    read_cell_file,
    read_data_file,
    write_data_mapping,
)
from twinprobe._align.mapping.layer_mapping import link_layers
from twinprobe._align.mapping.layer_tree import LayerFile, read_layer_file
from twinprobe._align.mapping.yaml_files import FlatFile
from twinprobe._align.place import link_places
from twinprobe._align.rows import pairs_of
from twinprobe._runs.names import BACKWARD, FORWARD
from twinprobe._runs.run import Run

# Fuzzy matching (-fm): the same name whatever its call number, in order of appearance.

RULE = "fuzzy"
_Queues = dict[tuple[str, str], list[int]]  # (the module around, the name) -> calls in order


def link_fuzzy(call_links: CallLinks) -> None:
    """Link free calls of equal name in order: inside one module, or anywhere where the runs share no such module."""
    around = _Around(call_links.target), _Around(call_links.golden)
    shared = around[0].modules & around[1].modules
    directions = dict.fromkeys([FORWARD, *call_links.target.direction])
    # Backward calls go with their forward calls, so these come first.
    for direction in sorted(directions, key=lambda name: name == BACKWARD):
        target = _queues(call_links, around[0], shared, direction, golden=False)
        golden = _queues(call_links, around[1], shared, direction, golden=True)
        for key, ops in target.items():
            for op, other in zip(ops, golden.get(key, ()), strict=False):
                call_links.link(op, other, RULE)
        if direction == FORWARD:
            call_links.follow_forward()


class _Around:
    """The module around each call of a run, by the module's name without call number."""

    def __init__(self, side: RunCalls) -> None:
        self.side = side
        parents = side.run.parents
        callees = {parent: split(parent)[0] if parent else "" for parent in dict.fromkeys(parents.values())}
        self.of = [callees.get(parents.get(name), "") for name in side.ops] if parents else []
        self.modules = set(self.of)


def _queues(call_links: CallLinks, around: _Around, shared: set[str], direction: str, *, golden: bool) -> _Queues:
    side = around.side
    names: dict[str, str] = {}
    queues: _Queues = defaultdict(list)
    for op in call_links.free(list(side.callees.values()), direction, golden=golden):
        callee = side.callee_of[op]
        if callee.name not in names:
            common = callee.whole if callee.is_module else torch_name(callee, is_mindspore=side.is_mindspore)
            names[callee.name] = common if call_links.across_frameworks else callee.name
        place = around.of[op] if around.of else ""
        queues[place if place in shared else "", names[callee.name]].append(op)
    return queues


@dataclass
class MappedMatcher:
    """A matcher with its files already read; it can travel to worker processes."""

    options: MappingOptions
    data: FlatFile | None
    layer: LayerFile | None
    cell: FlatFile | None
    api: ApiFile | None
    alignment: Alignment | None
    by_results: bool
    """Whether calls of other names may be paired because they give the same: where a user maps nothing."""

    def __call__(self, target: Run, golden: Run) -> Pairs:
        """Pair two runs."""
        call_links = CallLinks(target, golden)
        if self.data is not None:
            link_data(call_links, self.data)
        if self.layer is not None:
            link_layers(call_links, self.layer)
        if self.cell is not None or self.options.cell:
            link_cells(call_links, self.cell)
        if self.api is not None or self.options.api:
            link_apis(call_links, self.api)
        links = self._link_the_rest(call_links)
        pairs = pairs_of(call_links) if links is None else aligned_pairs(call_links, links)
        if self.layer is not None and self.options.output is not None:
            parts = ["data_mapping", self.options.label, self.options.timestamp]
            file = self.options.output / f"{'_'.join(part for part in parts if part)}.yaml"
            write_data_mapping(file, target, golden, pairs)
        return pairs

    def _link_the_rest(self, call_links: CallLinks) -> RowLinks | None:
        """Pair unmapped calls: by the user's alignment, automatically where names differ, then by equal names."""
        options = self.options
        if options.fuzzy:
            if call_links.across_frameworks:
                link_cells(call_links)
            link_fuzzy(call_links)
            return None
        by_place = options.pair == "place" and not call_links.target.run.single_points
        links = (
            link_alignment(call_links, self.alignment, where=options.alignment) if self.alignment is not None else None
        )
        # Bare -cm and -am align nothing.
        fills = options.align == "auto" and options.cell is not True and options.api is not True
        tried = links is None and fills and needs_help(*_runs(call_links), by_place=by_place)
        if tried and not call_links.target.run.single_points:
            links = link_automatically(call_links, by_results=self.by_results)
        if options.align == "none":
            return links
        if links is not None:
            link_equal_modules(call_links)
            return links
        if by_place and not call_links.across_frameworks:
            return link_places(call_links, grouped=options.align != "names")
        help_wanted = options.align == "auto" and self.layer is None
        if help_wanted and (call_links.across_frameworks or not names_meet(*_runs(call_links))):
            link_cells(call_links)
            link_apis(call_links)
        link_equal_names(call_links)
        return None


def read_mappings(options: MappingOptions, *, by_results: bool) -> MappedMatcher:
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
        by_results=by_results,
    )


def _runs(call_links: CallLinks) -> tuple[Run, Run]:
    return call_links.target.run, call_links.golden.run
