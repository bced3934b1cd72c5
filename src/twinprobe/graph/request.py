"""What a user asks of the graph commands."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from twinprobe.align.matcher import MappingOptions
from twinprobe.graph.layout import Layouts
from twinprobe.judge.thresholds import Thresholds
from twinprobe.scale.engine import EngineOptions

VIS_FILE, DB_FILE, MERGED_DUMP = "vis", "db", "json"


@dataclass(frozen=True)
class GraphRequest:
    """What the user asked for; without ``golden`` single graphs are drawn."""

    target: Path
    golden: Path | None
    output: Path
    form: str
    timestamp: str
    mapping: MappingOptions = field(default_factory=MappingOptions)
    same_ancestors: bool = True
    overflow_check: bool = False
    log_calls: bool = False
    complete_stack: bool = False
    thresholds: Thresholds = field(default_factory=Thresholds)
    workers: int | None = None
    engine: EngineOptions = field(default_factory=EngineOptions)
    layouts: Layouts = (None, None)
    resume: bool = False

    def identity(self) -> str:
        """All that decides what is drawn, apart from what lies in the files."""
        mapping = replace(self.mapping, output=None, timestamp="", label="")
        flags = (self.same_ancestors, self.overflow_check, self.complete_stack)
        return repr((str(self.target), str(self.golden), self.form, mapping, flags, self.thresholds, self.layouts))

    @property
    def kind(self) -> str:
        """The first word of a result's name."""
        return "build" if self.golden is None else "compare"
