"""Dumps that say how their calls are nested: without that there is no graph."""

from __future__ import annotations

from pathlib import Path

from twinprobe.errors import BadInput
from twinprobe.graph.folders import check_dump
from twinprobe.runs.run import Run, open_run


def open_dump(folder: Path) -> Run:
    """Open one rank's dump and make sure that it says how its calls are nested."""
    check_dump(folder)
    return nested(open_run(folder))


def nested(run: Run) -> Run:
    """The run itself, if it says how its calls are nested."""
    if not run.parents:
        damaged = [note for note in run.notes if "construct.json" in note]
        raise BadInput(
            damaged[0] if damaged else "construct.json is empty: the hierarchy was not recorded",
            where=run.folder, hint="record with level L0 or mix",
        )  # fmt: skip
    return run
