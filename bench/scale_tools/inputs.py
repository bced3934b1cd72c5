"""Dumps of any size that take little disk: most files are hard links to a few."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from make_dumps import statistics_run, write_run

KINDS = 4  # different statistics dumps among the ranks
EACH = 32 << 20  # bytes of a tensor
SIDES = ("t", "g")


def make_ranks(folder: Path, ranks: int, calls: int) -> None:
    """Both sides; every rank is one of a few recorded runs, and names itself in a file of its own."""
    for side in SIDES:
        for kind in range(min(KINDS, ranks)):
            shift = calls // 2 + kind if side == "t" else None
            statistics_run(folder / side / f"rank{kind}", calls, shift_from=shift)
        for rank in range(KINDS, ranks):
            target = folder / side / f"rank{rank}"
            target.mkdir()
            for path in (folder / side / f"rank{rank % KINDS}").iterdir():
                if path.name != "construct.json":
                    os.link(path, target / path.name)
            (target / "construct.json").write_text(json.dumps({f"Rank.{rank}": None}))


@dataclass(frozen=True)
class Tensors:
    """What was made: bytes by name and on disk, on both sides together, and the ranks that share no file."""

    ranks: int
    pairs: int
    named: int
    on_disk: int
    apart: int


def fitting_gb(folder: Path, wanted: float) -> float:
    """As much as is wanted, but no more than half of the free disk and a third of the free memory."""
    free = shutil.disk_usage(folder).free / 2
    memory = next(int(line.split()[1]) << 10 for line in _meminfo() if line.startswith("MemAvailable")) / 3
    return min(wanted, free / 1e9, memory / 1e9)


def make_tensors(folder: Path, gigabytes: float, on_disk: float) -> Tensors:
    """Two ranks a side with .npy tensors of their own, the golden side changed in every file; the others are links."""
    apart = 2
    files = max(1, round(on_disk * 1e9 / EACH / 2 / apart))
    ranks = max(apart, round(gigabytes * 1e9 / EACH / 2 / files))
    for side in SIDES:
        for rank in range(apart):
            _tensor_rank(folder / side / f"rank{rank}", files, changed=side == "t", first=rank * files)
        for rank in range(apart, ranks):
            source, target = (folder / side / f"rank{at}" for at in (rank % apart, rank))
            (target / "dump_tensor_data").mkdir(parents=True)
            for path in source.rglob("*"):
                if path.is_file():
                    os.link(path, target / path.relative_to(source))
    return Tensors(ranks, ranks * files, 2 * ranks * files * EACH, 2 * apart * files * EACH, apart)


def tensor_files(folder: Path, tensors: Tensors) -> list[Path]:
    """The files that are on disk."""
    ranks = [folder / side / f"rank{rank}" for side in SIDES for rank in range(tensors.apart)]
    return [path for rank in ranks for path in sorted((rank / "dump_tensor_data").iterdir())]


def forget(files: list[Path]) -> None:
    """Have the system drop files from its memory, so that the next reader meets the disk."""
    os.sync()
    for path in files:
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def read_all(files: list[Path]) -> int:
    """Read files as fast as the system gives them; the bytes."""
    buffer = memoryview(bytearray(16 << 20))
    total = 0
    for path in files:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
    return total


def _tensor_rank(folder: Path, files: int, *, changed: bool, first: int) -> None:
    import numpy as np

    store = folder / "dump_tensor_data"
    store.mkdir(parents=True)
    base = np.random.default_rng(7).standard_normal(EACH // 4, dtype=np.float32).reshape(1024, -1)
    leaf = {
        "type": "torch.Tensor", "dtype": "torch.float32", "shape": list(base.shape), "Max": float(base.max()),
        "Min": float(base.min()), "Mean": float(base.mean()), "Norm": float(np.linalg.norm(base)),
        "requires_grad": False,
    }  # fmt: skip
    data: dict[str, object] = {}
    for at in range(files):
        values = base.copy()
        values.ravel()[:: 1000 + first + at] *= 1.5 if changed else 1.0
        name = f"Torch.f.{at}.forward.output.0.npy"
        np.save(store / name, values)
        data[f"Torch.f.{at}.forward"] = {"input_args": [], "input_kwargs": {}, "output": [leaf | {"data_name": name}]}
    write_run(folder, data, task="tensor")


def _meminfo() -> list[str]:
    return Path("/proc/meminfo").read_text().splitlines()
