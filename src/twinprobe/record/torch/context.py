"""``with record(model, "run_a"):`` -- the short way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from twinprobe.record.config import load_config
from twinprobe.record.torch.recorder import TorchRecorder


class Recording:
    """What ``record`` hands out: call ``step()`` at the end of each training step."""

    def __init__(self, recorder: TorchRecorder, model: Any) -> None:
        self._recorder = recorder
        self._model = model
        self.path = recorder.config.dump_path

    def step(self) -> None:
        """Close this step and go on with the next."""
        self._recorder.next_step()
        self._recorder.start(self._model)


@contextmanager
def record(
    model: torch.nn.Module | list[torch.nn.Module] | None,
    dump_path: str | Path,
    *,
    level: str = "L1",
    task: str = "statistics",
    **more: Any,
) -> Iterator[Recording]:
    """Record everything inside the block. All keys of config.json may be given; files are complete when it ends."""
    recorder = TorchRecorder(load_config(dump_path=dump_path, level=level, task=task, **more))
    recorder.start(model)
    try:
        yield Recording(recorder, model)
    finally:
        if recorder.engine.begun:
            recorder.stop()
        recorder.engine.close()
