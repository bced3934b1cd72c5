"""Reading both runs at once, each on its own core, where they are large enough to be worth it."""

from __future__ import annotations

from pathlib import Path

from twinprobe.errors import NothingRecorded, NothingToCompare
from twinprobe.runs.handing_over import hand_over, take_over
from twinprobe.runs.places import remote
from twinprobe.runs.run import Run, find_run, open_run
from twinprobe.scale.beside import Beside, can_fork

_LARGE = 2 << 20  # bytes of a dump.json from which a second process pays


def open_both(target: Path, golden: Path) -> tuple[Run, Run]:
    """Read two runs; the order of errors is as if one were read after the other."""
    if not worth_two(target, golden):
        return _open_first(target, golden), open_run(golden)
    with Beside(lambda file: hand_over(open_run(golden), file)) as other:
        first = open_run(target)
        read = other.result()
        return first, take_over(read) if read else open_run(golden)


def _open_first(target: Path, golden: Path) -> Run:
    """Read the target; where it holds nothing, see whether the golden run does."""
    try:
        return open_run(target)
    except NothingToCompare as empty:
        try:
            open_run(golden)
        except NothingToCompare:
            raise NothingRecorded(empty.what, where=empty.where) from empty
        raise


def worth_two(target: Path, golden: Path) -> bool:
    """Whether a second process for the second run pays, and may be started here."""
    return _is_large(target) and _is_large(golden) and can_fork()


def _is_large(path: Path) -> bool:
    return remote(path) is None and path.exists() and find_run(path).stat().st_size >= _LARGE
