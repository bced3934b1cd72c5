"""Dumps for these tests, written locally first, so that the same ones can be compared here and there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from s3_server import S3Server

from support import forward, tensor, write_dump

_STAMP = re.compile(r"\d{14}")
CALLS = 6


def statistics_dump(folder: Path, *, shift: float = 0.0, digests: bool = False) -> Path:
    """Calls inside modules, with stack and construct; from the third call on the numbers are shifted."""
    data: dict[str, Any] = {}
    parents: dict[str, Any] = {"Module.top.Net.forward.0": None}
    data["Module.top.Net.forward.0"] = forward([tensor()], [tensor(mean=0.1 + shift)])
    for at in range(CALLS):
        moved = shift if at >= 2 else 0.0
        extra = {"md5": f"{at if not moved else at + 100:08x}"} if digests else {}
        name = f"Torch.add.{at}.forward"
        data[name] = forward([tensor(**extra)], [tensor(norm=2.0 + at + moved, mean=0.1 + moved, **extra)])
        parents[name] = "Module.top.Net.forward.0"
    stacks = {name: [f"File model.py, line {at}"] for at, name in enumerate(data)}
    return write_dump(folder, data, level="mix", stacks=stacks, parents=parents)


def tensor_files_dump(folder: Path, *, factor: float = 1.0, large: int = 300_000) -> Path:
    """One call per layout of a tensor file that readers treat in a way of its own."""
    rng = np.random.default_rng(0)
    store = folder / "dump_tensor_data"
    store.mkdir(parents=True)
    base = torch.from_numpy(rng.standard_normal((40, 30)).astype(np.float32))
    big = torch.from_numpy(rng.standard_normal(large).astype(np.float32))
    tensors: dict[str, torch.Tensor] = {
        "small": base, "large": big, "half": big.to(torch.bfloat16), "turned": big[: large // 2 * 2].reshape(2, -1).T,
        "part": big[1000:2000], "empty": torch.empty(0, 3), "scalar": torch.tensor(3.5),
    }  # fmt: skip
    data: dict[str, Any] = {}
    for at, (kind, value) in enumerate(tensors.items()):
        name = f"Torch.{kind}.{at}.forward"
        changed = value * factor if kind == "turned" else value
        torch.save(changed, store / f"{name}.output.0.pt")
        leaf = tensor(shape=list(value.shape), dtype=str(value.dtype), data_name=f"{name}.output.0.pt")
        data[name] = forward([], [leaf])
    for kind, array in {"npy": big.numpy() * factor, "columns": np.asfortranarray(base.numpy())}.items():
        name = f"Torch.{kind}.0.forward"
        np.save(store / f"{name}.output.0.npy", array)
        leaf = tensor(shape=list(array.shape), data_name=f"{name}.output.0.npy")
        data[name] = forward([], [leaf])
    return write_dump(folder, data, task="tensor")


def pair_of(kind: str, folder: Path) -> tuple[Path, Path]:
    """Two runs of a kind that differ: target and golden."""
    target, golden = folder / kind / "target", folder / kind / "golden"
    if kind == "tensor":
        tensor_files_dump(target, factor=1.01)
        tensor_files_dump(golden)
    else:
        statistics_dump(target, shift=0.5, digests=kind == "md5")
        statistics_dump(golden, digests=kind == "md5")
    return target, golden


def rank_folders(folder: Path, *, ranks: int = 3, steps: int = 2, shift: float = 0.0) -> Path:
    for step in range(steps):
        for rank in range(ranks):
            statistics_dump(folder / f"step{step}" / f"rank{rank}", shift=shift * (rank + 1))
    return folder


def local_results(folder: Path) -> dict[str, bytes]:
    """The files below a folder by name without the time in it; folders elsewhere have no index page."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "index.html")
    return {_STAMP.sub("T", path.relative_to(folder).as_posix()): path.read_bytes() for path in files}


def s3_results(server: S3Server, prefix: str) -> dict[str, bytes]:
    """The same for objects."""
    return {_STAMP.sub("T", name): server.get(f"{prefix}/{name}") for name in server.names(prefix)}


def outcome(said_out: str) -> dict[str, Any]:
    """What --json printed."""
    document: dict[str, Any] = json.loads(said_out)
    return document
