"""Where this program keeps what it can compute again: folders that nobody but this user can write to."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from pathlib import Path


def private_folder(name: str) -> Path | None:
    """A folder of this name in the user's cache or, failing that, in a temporary one of the user's own; None where
    neither can be written, or another user could write to it."""
    for base in (_user_cache(), _temporary()):
        if _is_private_and_writable(base / name):
            return base / name
    return None


def _user_cache() -> Path:
    if os.name == "nt":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path("~/Library/Caches").expanduser()
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(base) / "twinprobe"


def _temporary() -> Path:
    user = os.getuid() if hasattr(os, "getuid") else "user"
    return Path(tempfile.gettempdir()) / f"twinprobe-{user}"


def _is_private_and_writable(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if hasattr(os, "getuid"):
            for part in (folder, folder.parent):
                status = part.lstat()
                if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o022 or part.is_symlink():
                    return False
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
