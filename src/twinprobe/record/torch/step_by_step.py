"""Recording driven by somebody else's training loop: a step begins, a step ends, the training ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twinprobe.record.config import load_config
from twinprobe.record.torch.recorder import TorchRecorder


class StepByStep:
    """One recording whose steps are announced from outside. Begin and end may be said more often than needed."""

    def __init__(self, config_path: str | Path | None = None, **options: Any) -> None:
        self.recorder = TorchRecorder(load_config(config_path, **options))

    @property
    def running(self) -> bool:
        """Whether a step has begun and not ended."""
        return self.recorder.engine.begun

    def begin(self, model: Any) -> None:
        """A step begins, unless one is running already."""
        if not self.running:
            self.recorder.start(model)

    def end(self) -> None:
        """The step that is running is over."""
        if self.running:
            self.recorder.stop()
            self.recorder.next_step()

    def close(self) -> None:
        """No more steps come: write what is left and say where it is."""
        if self.running:
            self.recorder.stop()
        self.recorder.engine.close()
