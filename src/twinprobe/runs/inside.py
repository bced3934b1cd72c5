"""Names that a dump gives to its files must lead to files of that dump."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from stat import S_ISLNK

from twinprobe.errors import DamagedTensor
from twinprobe.runs.places import remote


def inside(folder: Path, name: str) -> Path:
    """Join ``name`` to ``folder``; refuse a name that leads, or links, to a place outside of the folder.

    A file that does not exist is no matter of this function: whoever opens it says so.
    """
    if not name or "\0" in name:
        raise _refused(name, "is empty or holds a NUL character")
    plain = "/" not in name and "\\" not in name
    if plain and name in (".", ".."):
        raise _refused(name, "names a folder, not a file")
    if not plain:
        _check_parts(name)
    if remote(folder) is not None:
        return folder / name  # there are no links, or they count as missing: the name alone tells where it leads
    root = _resolved(os.fspath(folder))
    try:
        linked = S_ISLNK(os.lstat(f"{root}{os.sep}{name}").st_mode) if plain else True
        if linked and not _stays(root, os.path.realpath(f"{root}{os.sep}{name}")):
            raise _refused(name, "leads to a place outside of the dump, through a symbolic link")
    except ValueError:
        raise _refused(name, "has characters that no file name can have") from None
    except OSError:
        pass  # missing, too long or not permitted: opening it tells which
    return folder / name


def _check_parts(name: str) -> None:
    if name[0] in "/\\" or os.path.splitdrive(name)[0]:
        raise _refused(name, "is an absolute path")
    if ".." in name.replace("\\", "/").split("/"):
        raise _refused(name, "climbs out of its folder with '..'")


@lru_cache(maxsize=256)
def _resolved(folder: str) -> str:
    return os.path.realpath(folder)


def _stays(root: str, target: str) -> bool:
    return target.startswith(root if root.endswith(os.sep) else root + os.sep)


def _refused(name: str, why: str) -> DamagedTensor:
    shown = name if name.isprintable() and len(name) <= 300 else repr(name[:300])
    return DamagedTensor(
        f"the name of the tensor file {why}", where=shown, hint="a dump may only name files in its own folder"
    )
