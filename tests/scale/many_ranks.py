"""Dumps of many ranks that talk to each other, and what comparing them must give."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from support import forward, tensor, write_dump
from twinprobe._cli import main


def ranks_at(folder: Path, count: int, *, off: dict[int, float] | None = None, calls: int = 1) -> Path:
    """Each rank computes, all reduce, each computes; ``off`` says by how much a rank's own first call is off."""
    off = off or {}
    group = {"type": "torch.ProcessGroup", "group_ranks": list(range(count)), "group_id": "0"}
    reduced = tensor(norm=5.0 + sum(off.values()))
    for rank in range(count):
        own = tensor(norm=2.0 + off.get(rank, 0.0))
        data: dict[str, Any] = {
            "Torch.a.0.forward": forward([tensor(norm=1.0)], [own]),
            "Distributed.all_reduce.0.forward": forward([own], [reduced], group=group),
        }
        for at in range(calls):
            data[f"Torch.b.{at}.forward"] = forward([reduced], [tensor(norm=3.0 + reduced["Norm"])])
        write_dump(folder / f"rank{rank}", data)
    return folder


def tensors_at(folder: Path, files: int, *, seed: int, scale: float = 1e-3) -> Path:
    """One rank that kept so many small tensors as npy files, of growing sizes."""
    store = folder / "dump_tensor_data"
    store.mkdir(parents=True)
    base, noise = np.random.default_rng(1), np.random.default_rng(seed)
    data = {}
    for at in range(files):
        shape = [16, 8 * (at + 1)]
        values = base.standard_normal(shape, dtype=np.float32)
        values += scale * noise.standard_normal(shape, dtype=np.float32)
        name = f"Torch.f.{at}.forward.output.0.npy"
        np.save(store / name, values)
        norm = float(np.linalg.norm(values))
        leaf = tensor(norm=norm, high=float(values.max()), low=float(values.min()), mean=float(values.mean()))
        data[f"Torch.f.{at}.forward"] = forward([], [leaf | {"shape": shape, "data_name": name}])
    write_dump(folder, data, task="tensor")
    return folder


def compare(target: Path, golden: Path, out: Path, *more: str) -> int:
    return main(["compare", "-tp", str(target), "-gp", str(golden), "-o", str(out), "--quiet", *more])


_PAUSING = """
import os, sys, time
from twinprobe._cli import main
from twinprobe._scale.ledger import Session
go, keep, kept = sys.argv.pop(1), Session.keep, []
def pausing(*words):
    keep(*words)
    kept.append(words)
    while len(kept) == 2 and not os.path.exists(go):
        time.sleep(0.01)
Session.keep = pausing
sys.exit(main())
"""


def begun(out: Path, *words: object) -> subprocess.Popen[str]:
    """A command in a process of its own that has finished two pieces; it goes on when a file ``out.go`` is there."""
    command = [sys.executable, "-c", _PAUSING, f"{out}.go", *map(str, words), "-o", str(out), "--workers", "1"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while child.poll() is None and len(list(out.glob(".twinprobe/*/done/*.json"))) < 2:
        time.sleep(0.01)
    return child


def tables(out: Path) -> dict[str, str]:
    """Every table below a folder: its name without the timestamp, and the hash of its bytes."""
    found = {}
    for path in sorted(out.rglob("*")):
        if path.suffix in (".parquet", ".csv") and not any(part.startswith(".") for part in path.parts):
            name = "/".join(part.rpartition("_20")[0] or part for part in path.relative_to(out).parts)
            found[f"{name} {path.suffix}"] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def leftovers(out: Path) -> list[Path]:
    """What a command that ends cleanly does not leave."""
    return [path for path in out.rglob("*") if path.name.endswith((".part", ".claim"))]
