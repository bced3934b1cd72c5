"""What programs call to have the inference of a model recorded."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any

from twinprobe._record.llm.config import DETERMINISTIC, DumpConfig
from twinprobe.errors import BadInput


class DumpHandle:
    """What register_hook returns. Removing it takes every hook off the model and finishes the files."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder

    @property
    def path(self) -> Path:
        """The folder of this process's tokens."""
        return Path(self._recorder.folder)

    def flush(self) -> None:
        """Wait until everything recorded so far is on disk."""
        self._recorder.engine.flush()

    def remove(self) -> None:
        """Stop recording this model."""
        self._recorder.detach()

    def __enter__(self) -> DumpHandle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def register_hook(model: Any, config: DumpConfig, hook_type: str = "dump_data") -> DumpHandle:
    """Record the calls of ``model`` as ``config`` says. Several models and configurations may be active at a time."""
    import torch

    from twinprobe._record.llm.recorder import LlmRecorder
    from twinprobe._record.torch.recorder import seed_all

    if not isinstance(model, torch.nn.Module):
        raise BadInput(f"the model is {type(model).__name__}, not a torch.nn.Module", where="register_hook")
    if not isinstance(config, DumpConfig):
        raise BadInput(f"the configuration is {type(config).__name__}, not a DumpConfig", where="register_hook")
    if hook_type != "dump_data":
        raise BadInput(f"hook_type is {hook_type!r}", where="register_hook", hint='only "dump_data" is known')
    if config.seed is not None:
        os.environ |= DETERMINISTIC
        seed_all(config.seed, mode=True, rm_dropout=False)
    try:
        recorder = LlmRecorder(model, config)
        recorder.attach()
    except OSError as error:
        raise BadInput(f"cannot be written to: {error.strerror}", where=config.dump_path) from error
    return DumpHandle(recorder)
