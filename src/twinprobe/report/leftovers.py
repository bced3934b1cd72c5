"""Clearing away what a killed command has left half written."""

from __future__ import annotations

import logging
import os
import re
import shutil
from pathlib import Path

from twinprobe.report.text import visible
from twinprobe.runs.temporary_names import OWNER, machine
from twinprobe.runs.whole_file import open_file

logger = logging.getLogger("twinprobe.report")
_TEMPORARY = re.compile(rf"\..*\.{OWNER}\.part", re.DOTALL)
_CLAIM = re.compile(r"\.twinprobe-\d{14}\.claim")
_MOST_SHOWN = 3


def claim_name(stamp: str) -> str:
    """The name of the file by which a command keeps a timestamp to itself; it holds the owner."""
    return f".twinprobe-{stamp}.claim"


def sweep(folder: Path) -> None:
    """Remove what dead processes of this machine have left half written in a folder, and say so.

    Whether a process of another machine still lives cannot be seen from here: its files are named and kept.
    """
    removed, foreign = [], []
    for name in _names(folder):
        found = _TEMPORARY.fullmatch(name)
        if _CLAIM.fullmatch(name):
            found = re.fullmatch(OWNER, _content(folder / name))
        if found is None:
            continue
        if found["machine"] != machine():
            foreign.append(name)
        elif not _alive(int(found["pid"])) and _remove(folder / name):
            removed.append(name)
    if removed:
        logger.warning("%s: removed what a killed command left half written: %s", _shown(folder), _listed(removed))
    if foreign:
        logger.warning(
            "%s: a command on another machine, or before a restart, has not finished: %s "
            "(kept; delete it if no such command runs any more)",
            _shown(folder),
            _listed(foreign),
        )


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []


def _content(path: Path) -> str:
    try:
        with open_file(path) as file:
            return file.read(100).decode("ascii", "replace")
    except OSError:
        return ""


def _remove(path: Path) -> bool:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError:
        return False
    return True


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return ", ".join(visible(name) for name in names[:_MOST_SHOWN]) + more


def _shown(path: Path) -> str:
    return visible(str(path))
