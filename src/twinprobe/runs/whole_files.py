"""A single file that appears whole or not at all. Results of commands go by ``report/atomic``, which does more."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from twinprobe.runs.places import remote
from twinprobe.runs.temporary_names import temporary_name


def write_whole(path: Path, write: Callable[[Path], object], *, sync: bool = False) -> None:
    """Write under a temporary name, then rename; with ``sync`` once it is on the disk.

    What belongs to a URL is written there at once: it appears when it is sent.
    """
    if remote(path) is not None:
        write(path)
        return
    temporary = path.with_name(temporary_name(path.name))
    try:
        write(temporary)
        if sync:
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
