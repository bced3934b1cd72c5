"""Is there an earlier dump where this one wants to go?"""

from __future__ import annotations

import os
from pathlib import Path

from twinprobe.errors import BadInput

_INDEXES = ("dump.json", "dump.json.part", "debug.json", "debug.json.part")


def refuse_earlier_dump(dump_path: Path, own: str) -> None:
    """Raise when ``dump_path`` holds a dump that this run would overwrite or mix with.

    ``own`` is this process's folder name: ``rank<R>``, or ``proc<PID>``, where folders of processes that are gone
    count as an earlier run. Folders of other ranks are this run's own.
    """
    if not dump_path.is_dir():
        return
    for step in sorted(dump_path.glob("step*")):
        for folder in sorted(step.iterdir()) if step.is_dir() else ():
            if _belongs_to_another_run(folder.name, own) and any((folder / name).exists() for name in _INDEXES):
                raise BadInput(
                    "holds an earlier dump, which is not overwritten", where=folder, hint="give another dump_path"
                )


def _belongs_to_another_run(name: str, own: str) -> bool:
    if name == own:
        return True
    process = name.removeprefix("proc")
    return own.startswith("proc") and process != name and process.isdecimal() and not _alive(int(process))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
