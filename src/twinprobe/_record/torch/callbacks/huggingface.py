"""Recording inside a Hugging Face Trainer: ``Trainer(..., callbacks=[HuggingFaceCallback(dump_path="run_a")])``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from twinprobe._record.torch.callbacks.whole_script import StepByStep


class HuggingFaceCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not followed by mypy
    """Records each training step, with all its gradient accumulation, as one step.

    Takes what PrecisionDebugger takes: ``config_path`` or the keys of config.json.
    """

    def __init__(self, config_path: str | Path | None = None, **options: Any) -> None:
        self._steps = StepByStep(config_path, **options)

    def on_step_begin(self, *_: Any, model: Any = None, **__: Any) -> None:
        """The first batch of an optimizer step is about to be computed."""
        self._steps.begin(model)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """The optimizer has made its step."""
        self._steps.end()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """The last files are written before train() returns."""
        self._steps.close()
