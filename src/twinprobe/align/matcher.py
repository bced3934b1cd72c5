"""All mapping options as one matcher; what a run does not need is not even imported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from twinprobe.align.exact import match_names
from twinprobe.align.meeting import needs_help
from twinprobe.align.options import MappingOptions
from twinprobe.align.pairs import Pairs
from twinprobe.runs.run import Run

__all__ = ["MappingOptions", "build_matcher"]


@dataclass
class NamesMatcher:
    """Equal names; where they do not meet, everything else that TwinProbe knows."""

    options: MappingOptions

    def __call__(self, target: Run, golden: Run) -> Pairs:
        """Pair two runs."""
        if self.options.align == "names" or not needs_help(target, golden):
            return match_names(target, golden)
        from twinprobe.align.mapping.mapped import read_mappings

        return read_mappings(self.options)(target, golden)


def build_matcher(options: MappingOptions) -> Callable[[Run, Run], Pairs]:
    """A matcher that can travel to worker processes.

    All mapping files are read now, so that a bad one is met before any dump is opened.
    """
    if not options.any:
        return NamesMatcher(options)
    from twinprobe.align.mapping.mapped import read_mappings

    return read_mappings(options)
