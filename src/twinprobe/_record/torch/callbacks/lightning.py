"""Recording inside a Lightning Trainer: ``Trainer(..., callbacks=[LightningCallback(dump_path="run_a")])``."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from twinprobe._record.torch.callbacks.whole_script import StepByStep

# Lightning has two package names; a program that uses one of them has that one's Trainer.
_HOME = "lightning.pytorch" if find_spec("lightning") else "pytorch_lightning"
_Callback: Any = import_module(f"{_HOME}.callbacks").Callback


class LightningCallback(_Callback):  # type: ignore[misc]  # the base is only known when it is imported
    """Records each training step, with all its gradient accumulation, as one step.

    Takes what PrecisionDebugger takes: ``config_path`` or the keys of config.json.
    """

    def __init__(self, config_path: str | Path | None = None, **options: Any) -> None:
        super().__init__()
        self._steps = StepByStep(config_path, **options)
        self._seen = 0

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """A batch is about to be computed; the step goes on if the optimizer has not moved since the last one."""
        if not self._steps.running:
            self._seen = trainer.global_step
        self._steps.begin(pl_module)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """The step is over once the optimizer has moved."""
        if trainer.global_step != self._seen:
            self._steps.end()

    def on_train_end(self, *_: Any) -> None:
        """The last files are written before fit() returns."""
        self._steps.close()

    def on_exception(self, *_: Any) -> None:
        """Nothing stays attached to the model."""
        self._steps.close()
