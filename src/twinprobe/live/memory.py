"""An engine for the recorders that keeps what they record in memory: no thread, no folder, no file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from twinprobe.live.live_rows import LiveRows
from twinprobe.record.config import RecordConfig
from twinprobe.record.engine import Engine, Framework, Step
from twinprobe.record.filters import NameFilter
from twinprobe.record.problems import Problems
from twinprobe.record.rows import Entry

_MODULES = ("Module.", "Cell.")
_PACKAGE = str(Path(__file__).resolve().parents[1]) + "/"


class MemoryEngine(Engine):
    """Takes entries as they come. ``rows``, ``parents`` and ``stacks`` are what a dump folder would hold.

    What runs outside the model (the loss, say) is not the model's, and no call is inside of it: it is left out.
    """

    def __init__(self, config: RecordConfig, framework: Framework, *, hidden: tuple[str, ...] = ()) -> None:
        # Engine's own __init__ opens the writer; nothing of that is wanted here.
        self.config = config
        self.framework = framework
        self.filter = NameFilter(config)
        self.problems = Problems()
        self.bench = None
        self.active = self.failed = self.begun = False
        self.step_number = 0
        step = self.step = Step(0, cast(Any, None), (_PACKAGE, *hidden))
        self.parents = step.construct  # the enclosing call of each call
        self._trees = True
        self.rows = LiveRows()

    def begin(self) -> bool:
        """Start taking entries."""
        self.begun = self.active = True
        return True

    def end(self) -> None:
        """Stop; what still lies on a device is brought to the host."""
        self.begun = self.active = False
        job = self.framework.collect()
        if job is not None:
            job()

    def next_step(self) -> None:
        """Runs are kept apart by their engines, so there is nothing to do."""

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is open."""

    def link(self, child: str, parent: str | None) -> None:
        """Note the enclosing call."""
        if parent or child.startswith(_MODULES):
            self.parents[child] = parent

    def emit(self, entry: Entry) -> None:
        """Keep a finished entry."""
        name = entry.name
        if name.startswith(_MODULES) or name in self.parents:
            self.rows.append(entry)
