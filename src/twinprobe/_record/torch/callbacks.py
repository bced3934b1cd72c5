"""Recording driven by another training loop: a whole script, a Hugging Face or a Lightning Trainer."""

from __future__ import annotations

import functools
import os
import weakref
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from twinprobe._record.config import load_config
from twinprobe._record.engine import refuse_earlier_dump
from twinprobe._record.entries import logger
from twinprobe._record.torch.hooks import UpdateHooks, keep_hooks_out_of_copies
from twinprobe._record.torch.optimizer import Cycle
from twinprobe._record.torch.recorder import TorchRecorder
from twinprobe.errors import BadInput


class StepByStep:
    """One recording whose steps are announced from outside. Calling begin or end twice does no harm."""

    def __init__(self, config_path: str | Path | None = None, **options: Any) -> None:
        self.recorder = TorchRecorder.of(load_config(config_path, **options))

    @property
    def running(self) -> bool:
        """Whether a step has begun and not ended."""
        return bool(self.recorder.engine.begun)

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
        """No more steps follow: write what is left and log where it is."""
        if self.running:
            self.recorder.stop()
        self.recorder.engine.close()


class _HuggingFaceSteps:
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


class _LightningSteps:
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


@functools.cache
def trainer_callback(name: str) -> type:
    """HuggingFaceCallback or LightningCallback, made when asked for: each needs its trainer's package."""
    steps: type = _HuggingFaceSteps
    if name == "HuggingFaceCallback":
        base = import_module("transformers").TrainerCallback
    else:
        steps = _LightningSteps
        # Lightning has two package names; a program that uses one of them has that one's Trainer.
        home = "lightning.pytorch" if find_spec("lightning") else "pytorch_lightning"
        base = import_module(f"{home}.callbacks").Callback
    return type(name, (steps, base), {"__doc__": steps.__doc__, "__module__": "twinprobe.torch"})


class WholeScript:
    """Waits for the first call of a module with parameters, then records each of its training steps.

    A step begins with the model's first call and ends when the optimizers that hold its parameters have made a step;
    without an optimizer everything is one step.
    """

    def __init__(self, config_path: str) -> None:
        self._steps = StepByStep(config_path)
        if self._steps.recorder.config.level == "debug":
            raise BadInput("level debug saves what the script names: there is nothing to record", where=config_path)
        # The folder that this process will write to, as far as it can be known before torch.distributed is set up.
        rank = os.environ.get("RANK", "")
        own = f"rank{rank}" if rank.isdecimal() else f"proc{os.getpid()}"
        refuse_earlier_dump(self._steps.recorder.config.dump_path, own)
        self._model: torch.nn.Module | None = None
        self._cycle = Cycle()
        self._hooked: weakref.WeakSet[Any] = weakref.WeakSet()
        self._handles: list[Any] = [register_module_forward_pre_hook(self._first_call)]

    def close(self) -> None:
        """The script is over."""
        self._remove_hooks()
        self._steps.close()
        if self._model is None:
            logger.warning("no model with parameters was called: nothing was recorded")

    def _remove_hooks(self) -> None:
        keep_hooks_out_of_copies(self, False)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _first_call(self, module: torch.nn.Module, _inputs: Any) -> None:
        if next(module.parameters(), None) is None:
            return  # a loss function, a transformation of pictures
        self._remove_hooks()
        self._model = module
        self._cycle.follow(module.parameters())
        logger.info("the first model seen is %s", type(module).__name__)
        keep_hooks_out_of_copies(self)
        self._handles.append(module.register_forward_pre_hook(lambda *_: self._steps.begin(module), with_kwargs=True))
        self._handles.append(UpdateHooks(self._before_step))
        self._steps.begin(module)

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        if not self._cycle.holds(optimizer):
            return
        self._cycle.repeats(optimizer)  # then both make one step here: what the second one read is recorded already
        if optimizer not in self._hooked:
            self._hooked.add(optimizer)
            # On the optimizer itself: its own hooks run before the global ones, which ending a step takes away.
            self._handles.append(optimizer.register_step_post_hook(self._after_step))

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if not self._cycle.completes(optimizer):
            return
        recorder = self._steps.recorder
        if self._steps.running and isinstance(recorder, TorchRecorder):  # a watcher has hooks of its own, which stay
            recorder.optimizer.finish(optimizer)
        self._steps.end()
