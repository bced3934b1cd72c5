"""``with record(model, "run_a"):`` -- the short way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from twinprobe.record.config import RecordConfig, load_config


class Recording:
    """What ``record`` hands out: call ``step()`` at the end of each training step."""

    def __init__(self, recorder: Any, model: Any) -> None:
        self._recorder = recorder
        self._model = model
        self.path = recorder.config.dump_path

    def step(self) -> None:
        """Close this step and go on with the next."""
        self._recorder.next_step()
        self._recorder.start(self._model)


@contextmanager
def recording(
    make: Callable[[RecordConfig], Any], model: Any, dump_path: str | Path, **options: Any
) -> Iterator[Recording]:
    """Record everything inside the block; files are complete when it ends."""
    recorder = make(load_config(dump_path=dump_path, **options))
    recorder.start(model)
    try:
        yield Recording(recorder, model)
    finally:
        if recorder.engine.begun:
            recorder.engine.drop_unused_step()  # which the last step() began
            recorder.stop()
        recorder.engine.close()
