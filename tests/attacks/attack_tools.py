"""What the attacks share: a dump with one bad part, the command run on it, and what it may have cost or changed."""

from __future__ import annotations

import csv
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from support import forward, tensor, tensor_dump, write_dump
from twinprobe._cli import main
from twinprobe.errors import TwinProbeError

GOOD = "Torch.good.0.forward"
BAD = "Torch.bad.0.forward"
ALLOWED_MEMORY = 64 << 20


def with_bad_tensor(folder: Path, content: bytes | None, suffix: str) -> tuple[Path, Path]:
    """Two tensor dumps, equal but for one file of the first, which holds ``content`` (or is not there)."""
    arrays = {"output.0": np.ones(4, np.float32)}
    target, golden = (tensor_dump(folder / side, {GOOD: arrays, BAD: arrays}) for side in ("target", "golden"))
    store = target.parent / "dump_tensor_data"
    (store / f"{BAD}.output.0.npy").unlink()
    name_file(target, f"{BAD}.output.0{suffix}")
    if content is not None:
        (store / f"{BAD}.output.0{suffix}").write_bytes(content)
    return target, golden


def name_file(dump: Path, name: str) -> None:
    """Let the bad call name another file."""
    document = json.loads(dump.read_text())
    document["data"][BAD]["output"][0]["data_name"] = name
    dump.write_text(json.dumps(document))


def statistics(folder: Path, data: dict[str, Any] | None = None, **more: Any) -> Path:
    """A small statistics dump."""
    return write_dump(folder, data or {GOOD: forward([tensor()], [tensor()])}, **more)


def compared(target: Path, golden: Path, out: Path, *more: str) -> list[dict[str, str]]:
    """The rows of a comparison that must succeed."""
    assert main(["compare", "-tp", str(target), "-gp", str(golden), "-o", str(out), "--format", "csv", *more]) == 0
    (path,) = out.glob("*.csv")
    csv.field_size_limit(1 << 30)
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def row_of(rows: list[dict[str, str]], op: str) -> dict[str, str]:
    """The one output row of a call."""
    (found,) = [row for row in rows if row["NPU Name"].startswith(f"{op}.output")]
    return found


def cost(read: Callable[[], object]) -> tuple[int, TwinProbeError | None]:
    """The most memory that Python and numpy took, and our own error, if that is how it ended."""
    tracemalloc.start()
    try:
        read()
    except TwinProbeError as error:
        return tracemalloc.get_traced_memory()[1], error
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak, None


def files_under(folder: Path) -> dict[str, bytes | None]:
    """Everything in a folder, links unfollowed, to see whether something was written."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() and not path.is_symlink() else None
        for path in sorted(folder.rglob("*"))
    }
