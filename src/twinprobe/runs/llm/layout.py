"""Where the parts of an inference dump lie: torch and ATB folders of every generation, named at any level."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from twinprobe.errors import BadInput
from twinprobe.runs.places import remote
from twinprobe.runs.scan import scan

TORCH, ATB = "torch", "atb"
TREE = "model_tree.json"
_TORCH_DEVICE = re.compile(
    r"(?P<pid>\d+)_(?P<kind>[a-z]+)(?P<number>\d*)|(?P<kind2>[a-z]+)(?P<number2>\d*)_(?P<pid2>\d+)"
)
_ATB_DEVICE = re.compile(r"(?P<number>\d+)_(?P<pid>\d+)")
_OPERATOR = re.compile(r"\d+_[^\d].*")
_ATB_ROOT = ("msit_dump", "ait_dump", "atb_dump_data", "atb_temp")
STORES = ("tensors", "data")
_HINT = (
    "expected {pid}_npu{id}/{token}, msit_dump_*/torch_tensors/{device}_{pid}/{token} or "
    "ait_dump/tensors/{device}_{pid}/{token}"
)


@dataclass(frozen=True, slots=True)
class Device:
    """One process's share of a dump: its folder under the root, and the number of its device (-1 on a CPU)."""

    folder: str
    number: int
    pid: str

    @property
    def name(self) -> str:
        return self.folder.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Layout:
    """A recognised dump. Everything lies under ``root``; ``device`` and ``token`` are set where the user named one."""

    kind: str
    path: Path
    root: Path
    devices: tuple[Device, ...]
    device: Device | None = None
    token: str | None = None

    @property
    def chosen(self) -> tuple[Device, ...]:
        """The devices that the user asked for."""
        return (self.device,) if self.device is not None else self.devices


def find_layout(path: Path) -> Layout:
    """Recognise the dump that a path names: its top folder, a device's folder or one token's folder."""
    if not path.exists():
        raise BadInput("does not exist", where=path)
    if not path.is_dir():
        raise BadInput("is a file, not the folder of a dump", where=path, hint="give two folders or two tensor files")
    # Links stay as the user wrote them.
    whole = path if remote(path) is not None else Path(os.path.abspath(path))  # noqa: PTH100
    found = _atb(whole) or _torch(whole)
    if found is None:
        raise BadInput("is neither a torch dump nor an ATB dump", where=path, hint=_HINT)
    return found


def is_round(name: str) -> bool:
    """Whether a folder's name is the number of a token or of an execution round."""
    return name.isdecimal() and len(name) < 10


# -- ATB --------------------------------------------------------------------------------------------------------------


def _atb(path: Path) -> Layout | None:
    parents = [(path.parents[up], path.parts[-up - 1 :]) for up in range(min(5, len(path.parents)))]
    for root, below in [(path, ()), *parents]:
        for store in STORES:
            if below and below[0] != store:
                continue
            devices = _atb_devices(root, store)
            if devices:
                return _atb_layout(path, root, devices, below[1:])
    inside = [name for name in _folders(path) if name.startswith(_ATB_ROOT)]
    inside = [name for name in inside if any(_atb_devices(path / name, store) for store in STORES)]
    if not inside:
        return None
    beside = [str(folder.relative_to(path)) for folder in _torch_below(path)]
    if len(inside) + len(beside) > 1:
        names = ", ".join([*inside, *beside][:4])
        raise BadInput(f"holds several dumps: {names}", where=path, hint="name one of them")
    return _atb(path / inside[0])


def _atb_layout(path: Path, root: Path, devices: list[Device], below: tuple[str, ...]) -> Layout:
    if not below:
        return Layout(ATB, path, root, tuple(devices))
    device = next((one for one in devices if one.name == below[0]), None)
    if device is None:
        raise BadInput("is no device's folder of an ATB dump", where=path, hint=_HINT)
    token = below[1] if len(below) > 1 else None
    if token is not None and (not is_round(token) or len(below) > 2):
        raise BadInput("lies inside a token's folder", where=path, hint="name the token's folder itself")
    return Layout(ATB, path, root, tuple(devices), device, token)


def _atb_devices(root: Path, store: str) -> list[Device]:
    found = []
    for name in _folders(root / store):
        match = _ATB_DEVICE.fullmatch(name)
        if match is not None and _holds_operators(root / store / name):
            found.append(Device(f"{store}/{name}", int(match["number"]), match["pid"]))
    return sorted(found, key=lambda device: (device.number, int(device.pid)))


def _holds_operators(folder: Path) -> bool:
    """Whether rounds, or operators without a round (the oldest layout), lie in a device's folder."""
    return any(is_round(name) or _OPERATOR.fullmatch(name) for name in _folders(folder))


# -- torch ------------------------------------------------------------------------------------------------------------


def _torch(path: Path) -> Layout | None:
    for up, below in ((path, ()), (path.parent, (path.name,)), (path.parent.parent, (path.parent.name, path.name))):
        if (up / TREE).is_file() or _holds_modules(up):
            return _torch_layout(path, up, below)
    found = _torch_below(path)
    if not found:
        return None
    roots = {folder.parent for folder in found}
    if len(roots) > 1:
        names = ", ".join(sorted(str(root.relative_to(path)) for root in roots)[:4])
        raise BadInput(f"holds several dumps: {names}", where=path, hint="name one of them")
    root = roots.pop()
    return Layout(TORCH, path, root, tuple(_torch_devices(root, {folder.name for folder in found})))


def _torch_below(path: Path) -> list[Path]:
    patterns = (f"*/{TREE}", f"torch_tensors/*/{TREE}", f"msit_dump_*/torch_tensors/*/{TREE}")
    return sorted(file.parent for pattern in patterns for file in path.glob(pattern))


def _torch_layout(path: Path, folder: Path, below: tuple[str, ...]) -> Layout | None:
    root = folder.parent
    devices = _torch_devices(root, {folder.name})
    device = next(one for one in devices if one.name == folder.name)
    token = below[0] if below else None
    if token is not None and not is_round(token):
        return None
    if len(below) > 1:
        raise BadInput("lies inside a token's folder", where=path, hint="name the token's folder itself")
    return Layout(TORCH, path, root, tuple(devices), device, token)


def _torch_devices(root: Path, named: set[str]) -> list[Device]:
    """The device folders beside each other; a folder of any name counts if it was named."""
    found = []
    for name in _folders(root):
        match = _TORCH_DEVICE.fullmatch(name)
        if match is not None and (name in named or (root / name / TREE).is_file()):
            number = match["number"] or match["number2"] or "-1"
            found.append(Device(name, int(number), match["pid"] or match["pid2"]))
        elif name in named:
            found.append(Device(name, -1, ""))
    return sorted(found, key=lambda device: (device.number, device.name))


def _holds_modules(folder: Path) -> bool:
    """Whether tokens with modules lie here although the tree is missing: a recording that was killed early."""
    return any(
        is_round(token) and any(name == "root" or name.startswith("root.") for name in _folders(folder / token))
        for token in _folders(folder)[:4]
    )


def _folders(path: Path) -> list[str]:
    try:
        with scan(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
    except OSError:
        return []
