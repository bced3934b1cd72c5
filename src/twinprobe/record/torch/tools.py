"""Small helpers that scripts call: seeds, whole-module records, custom APIs."""

from __future__ import annotations

import os
from types import FrameType
from typing import Any

import torch

from twinprobe.record.torch.debugger import PrecisionDebugger
from twinprobe.record.torch.names import make_api
from twinprobe.record.verbs.tools import custom_api, replace_dropout, seed_python, whole_module

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
    """End what module_dump() began."""
    PrecisionDebugger.current().recorder.modules.end_whole()


def save(variable: Any, name: str, save_backward: bool = True) -> None:
    """Record one value, and its gradient, under a name (level debug)."""
    PrecisionDebugger.current().save(variable, name, save_backward)


def register_custom_api(module: Any, api_name: str, api_prefix: str | None = None) -> None:
    """Record a function that PyTorch does not know, as ``<api_prefix>.<api_name>``."""
    custom_api(module, api_name, api_prefix, _custom)


def _custom(prefix: str, name: str) -> Any:
    api = make_api(prefix, name)

    def record(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
        debugger = PrecisionDebugger._current
        if debugger is None:
            return original(*args, **kwargs)
        return debugger.recorder.mode.custom(api, original, args, kwargs, frame)

    return record
