"""All mapping options as one matcher; what a run does not need is not even imported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from twinprobe._align.links import Pairs, match_names, match_updates, needs_help
from twinprobe._runs.run import OPTIMIZER_FILE, Run

# Which mappings a user can ask for.


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
    pair: Literal["place", "numbers"] = "place"
    align: Literal["auto", "names", "none"] = "auto"
    alignment: Path | None = None

    @property
    def any(self) -> bool:
        """Whether there is anything but equal names to go by."""
        named = self.fuzzy or self.api or self.cell or self.data or self.layer or self.alignment
        return bool(named) or self.align == "none"

    @property
    def fills(self) -> bool:
        """Whether unmapped calls may be aligned; bare -cm and -am align nothing."""
        return self.align == "auto" and self.cell is not True and self.api is not True


@dataclass
class NamesMatcher:
    """Pair equal names at the same place; where names differ, use everything else that TwinProbe knows."""

    options: MappingOptions

    def __call__(self, target: Run, golden: Run) -> Pairs:
        """Pair two runs."""
        by_place = self.options.pair == "place"
        if target.framework != golden.framework and target.path.name == golden.path.name == OPTIMIZER_FILE:
            return match_updates(target, golden)
        if target.ops == golden.ops or target.single_points:
            pairs = match_names(target, golden)
            alike = target.table["shape"].equals(golden.table["shape"], null_equal=True)
            return pairs if alike or not by_place or target.single_points else _fit_shapes(target, golden, pairs)
        if not by_place and (self.options.align == "names" or not needs_help(target, golden, by_place=False)):
            from twinprobe._align.place import note_of_other_places

            pairs = match_names(target, golden)
            pairs.notes += note_of_other_places(target, golden, pairs)
            return pairs
        from twinprobe._align.mapping.mapped import read_mappings

        pairs = read_mappings(self.options)(target, golden)
        return _fit_shapes(target, golden, pairs) if by_place else pairs


def _fit_shapes(target: Run, golden: Run, pairs: Pairs) -> Pairs:
    from twinprobe._align.rows import fit_shapes

    return fit_shapes(target, golden, pairs)


def build_matcher(options: MappingOptions) -> Callable[[Run, Run], Pairs]:
    """A matcher that can travel to worker processes.

    All mapping files are read now, so that a bad one is met before any dump is opened.
    """
    if not options.any:
        return NamesMatcher(options)
    from twinprobe._align.mapping.mapped import read_mappings

    return read_mappings(options)
