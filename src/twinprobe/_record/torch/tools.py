"""Small helpers that scripts call: seeds, whole-module records, custom APIs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from twinprobe._record.debugger import Debugger, Recording, recording
from twinprobe._record.tools import SinglePoints, custom_api, replace_dropout, seed_python, whole_module
from twinprobe._record.torch.names import make_api
from twinprobe._record.torch.recorder import TorchRecorder
from twinprobe._record.torch.tensors import Quiet

# Single-point saves in PyTorch.


class TorchPoints(SinglePoints):
    """One value under a name of the user's choosing, and its gradient when it comes."""

    @contextmanager
    def working(self, doing: str) -> Iterator[None]:
        try:
            with Quiet():
                yield
        except Exception as error:
            self._recorder.trouble(doing, error)

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def gets_gradient(self, tensor: Any) -> bool:
        return bool(tensor.requires_grad and torch.is_grad_enabled())

    def _gradient(self, gradient: Any, name: str) -> None:
        with torch.no_grad():
            super()._gradient(gradient, name)


# PrecisionDebugger: the interface that training scripts already use.


class PrecisionDebugger(Debugger):
    """Records what a PyTorch program computes, between start() and stop(), step by step.

    Configured by ``config.json``, by keyword arguments, or both (the arguments win). One per process: creating it again
    returns the same one.
    """

    recorder: TorchRecorder

    @staticmethod
    def make_recorder(config: Any) -> TorchRecorder:
        return TorchRecorder(config)

    @staticmethod
    def make_points(recorder: Any) -> TorchPoints:
        return TorchPoints(recorder)

    def watching(self) -> bool:
        """Whether anything is being watched now."""
        return self.recorder.mode.attached or self.recorder.modules.attached


_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = True) -> None:
    """Seed Python, NumPy and PyTorch; ``mode`` asks for deterministic algorithms, ``rm_dropout`` makes dropout pass
    its input on."""
    seed_python(seed)
    torch.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
    if mode:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
    if rm_dropout:
        replace_dropout(torch.nn.functional, _DROPOUTS)


def module_dump(module: torch.nn.Module, dump_name: str) -> None:
    """Record this module as a whole, under this name, and nothing inside it, until module_dump_end()."""
    whole_module(PrecisionDebugger.current().recorder, module, dump_name, torch.nn.Module, "torch.nn.Module")


def module_dump_end() -> None:
    """End the recording that module_dump() started."""
    PrecisionDebugger.current().recorder.modules.end_whole()


def save(variable: Any, name: str, save_backward: bool = True) -> None:
    """Record one value, and its gradient, under a name (level debug)."""
    PrecisionDebugger.current().save(variable, name, save_backward)


def register_custom_api(module: Any, api_name: str, api_prefix: str | None = None) -> None:
    """Record a function that is not part of PyTorch, as ``<api_prefix>.<api_name>``."""
    custom_api(module, api_name, api_prefix, _custom)


def _custom(prefix: str, name: str) -> Any:
    api = make_api(prefix, name)

    def record(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
        debugger = PrecisionDebugger._current
        if debugger is None:
            return original(*args, **kwargs)
        return debugger.recorder.mode.custom(api, original, args, kwargs, frame)

    return record


# ``with record(model, "run_a"):`` -- the short way.


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
