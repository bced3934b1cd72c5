"""Results are named by the second: two commands that start in the same one must not share their names."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from twinprobe.report.leftovers import claim_name
from twinprobe.runs.places import remote
from twinprobe.runs.temporary_names import owner

_FORMAT = "%Y%m%d%H%M%S"
_MOST = 600


@contextmanager
def own_timestamp(folder: Path, wanted: str) -> Iterator[str]:
    """The wanted timestamp, or the next that no other command uses for its results in this folder.

    A command holds its claim until its results are there, so whoever comes later meets one or the other.
    """
    stamp, claim = wanted, None
    for _ in range(_MOST):
        claim = folder / claim_name(stamp)
        if _claimed(claim):
            if not _is_used(folder, stamp):
                break
            claim.unlink(missing_ok=True)
        claim, stamp = None, _next(stamp)
    try:
        yield stamp
    finally:
        if claim is not None:
            with suppress(OSError):
                claim.unlink()


def _claimed(claim: Path) -> bool:
    elsewhere = remote(claim)
    if elsewhere is not None:
        with suppress(OSError):
            return elsewhere.create(owner().encode())
        return True
    try:
        handle = os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except FileExistsError:
        return False
    except OSError:
        return True  # a folder that cannot be written to is reported when the results are
    with suppress(OSError), os.fdopen(handle, "w") as file:
        file.write(owner())
    return True


def _is_used(folder: Path, stamp: str) -> bool:
    """Whether a result has this timestamp, here or in the folder of a step."""
    for place in (folder, *folder.glob("step*/")):
        with suppress(OSError):
            if any(stamp in path.name and not path.name.startswith(".") for path in place.iterdir()):
                return True
    return False


def _next(stamp: str) -> str:
    try:
        return time.strftime(_FORMAT, time.localtime(time.mktime(time.strptime(stamp, _FORMAT)) + 1))
    except ValueError:
        return stamp
