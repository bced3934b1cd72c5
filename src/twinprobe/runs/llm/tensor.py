"""Opening one tensor file of an inference dump, whatever wrote it: torch, numpy or ATB."""

from __future__ import annotations

import re
from pathlib import Path

from twinprobe.errors import DamagedTensor
from twinprobe.runs.host_tensor import HostTensor
from twinprobe.runs.inside import inside
from twinprobe.runs.llm.atb_file import AtbHeader, read_header, tensor_of
from twinprobe.runs.places import remote
from twinprobe.runs.scan import scan
from twinprobe.runs.tensor_files import contents, open_tensor

_MOST_ALIASES, _LONGEST_ALIAS = 8, 255
_ALIAS = re.compile(r"(?P<op>\d+(?:_\d+)*)_(?P<file>(?:in|out)tensor\d+\w*\.bin)")


def open_llm_tensor(root: Path, name: str, *, linked: bool = True, enough: int | None = None) -> HostTensor:
    """Open ``name`` under ``root``. Links must stay under the root; ATB aliases are followed there too.

    ``linked=False`` says that the name comes from a listing of the folder and is no link, which saves the check.
    ``enough`` says how many bytes of the elements will be looked at, if not all: no more of a remote file is fetched.
    """
    if not name.endswith(".bin"):
        return open_tensor(inside(root, name) if linked else root / name, enough=enough)
    path = _path(root, name, linked=linked)
    seen: list[str] = []
    while True:
        try:
            data = contents(path, enough=enough)
            header = read_header(data)
            if header.alias is None:
                return tensor_of(data, header)
        except DamagedTensor as error:
            raise DamagedTensor(error.what, where=path, hint=error.hint) from None
        except OSError as error:
            raise DamagedTensor(_trouble(error), where=path) from None
        except MemoryError:
            raise DamagedTensor("needs more memory than this machine has free", where=path) from None
        seen.append(name)
        name = alias_target(root, name, header.alias)
        if name in seen or len(seen) > _MOST_ALIASES:
            raise DamagedTensor(f"names another file for its elements, which leads back to {name}", where=path)
        path = inside(root, name)


def open_llm_header(root: Path, name: str, *, linked: bool = True) -> AtbHeader:
    """The header of an ATB file, for statistics and descriptions."""
    path = _path(root, name, linked=linked)
    try:
        return read_header(contents(path, enough=0))
    except DamagedTensor as error:
        raise DamagedTensor(error.what, where=path, hint=error.hint) from None
    except OSError as error:
        raise DamagedTensor(_trouble(error), where=path) from None


def _path(root: Path, name: str, *, linked: bool) -> Path | str:
    """Where a file is; a text on this machine, since there are very many of them."""
    if linked:
        return inside(root, name)
    return f"{root}/{name}" if remote(root) is None else root / name


def alias_target(root: Path, name: str, alias: str) -> str:
    """The file that an alias means: a path beside the file, or ``{op}_{child}_outtensor{i}.bin`` of the same round."""
    beside = f"{name.rpartition('/')[0]}/{alias}" if "/" in name else alias
    found = _ALIAS.fullmatch(alias) if len(alias) <= _LONGEST_ALIAS else None
    if found is None:
        return beside
    folder = root / _round_folder(name)
    path = folder
    for number in found["op"].split("_"):
        nested = [entry for entry in _folders(path) if entry.partition("_")[0] == number]
        if not nested:
            raise DamagedTensor(f"names {alias} for its elements, but there is no operation {found['op']}", where=name)
        path = path / nested[0]
    side = "before" if found["file"].startswith("intensor") else "after"
    other = "after" if side == "before" else "before"
    for place in (side, other):
        if (path / place / found["file"]).exists():
            side = place
            break
    return str((path / side / found["file"]).relative_to(root))


def _round_folder(name: str) -> str:
    """The path up to the first operation folder: ``tensors/0_123/0`` of ``tensors/0_123/0/1_Op/after/x.bin``."""
    kept: list[str] = []
    for part in name.split("/")[:-1]:
        if re.match(r"\d+_\D", part) and (not kept or kept[-1].isdecimal()):
            break
        kept.append(part)
    else:
        return "."
    return "/".join(kept)


def _folders(path: Path) -> list[str]:
    try:
        with scan(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _trouble(error: OSError) -> str:
    return "is missing" if isinstance(error, FileNotFoundError) else f"cannot be opened: {error.strerror}"
