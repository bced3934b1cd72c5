"""Is there an earlier dump where this one wants to go?"""

from __future__ import annotations

import os
from pathlib import Path

from twinprobe.errors import BadInput

_INDEXES = ("dump.json", "debug.json", "dump.json.part", "debug.json.part")


def refuse_earlier_dump(dump_path: Path, own: str) -> None:
    """Raise when ``dump_path`` holds a dump that this run would overwrite or mix with.

    ``own`` is this process's folder name: ``rank<R>``, or ``proc<PID>``, where folders of processes that are gone
    count as an earlier run. Folders of other ranks are this run's own.
    """
    if not dump_path.is_dir():
        return
    for step in sorted(dump_path.glob("step*")):
        for folder in sorted(step.iterdir()) if step.is_dir() else ():
            found = [name for name in _INDEXES if (folder / name).exists()]
            if found and _belongs_to_another_run(folder.name, own):
                unfinished = "" if not found[0].endswith(".part") else f" that was not finished ({found[0]})"
                raise BadInput(
                    f"holds an earlier dump{unfinished}, which is not overwritten",
                    where=folder, hint="give another dump_path",
                )  # fmt: skip


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
