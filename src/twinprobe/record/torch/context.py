"""``with record(model, "run_a"):`` -- the short way."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from twinprobe.record.torch.recorder import TorchRecorder
from twinprobe.record.verbs.context import Recording, recording


def record(
    model: torch.nn.Module | list[torch.nn.Module] | None,
    dump_path: str | Path,
    *,
    level: str = "L1",
    task: str = "statistics",
    **more: Any,
) -> AbstractContextManager[Recording]:
    """Record everything inside the block. All keys of config.json may be given; files are complete when it ends."""
    return recording(TorchRecorder, model, dump_path, level=level, task=task, **more)
