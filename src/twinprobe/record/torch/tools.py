"""Small helpers that scripts call: seeds, whole-module records, custom APIs."""

from __future__ import annotations

import functools
import os
import random
import sys
from typing import Any

import numpy as np
import torch

from twinprobe.errors import BadInput
from twinprobe.record.torch.debugger import current_recorder
from twinprobe.record.torch.names import make_api

_whole: list[Any] = []
_wrapped: list[tuple[Any, str, Any]] = []


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = True) -> None:
    """Seed Python, NumPy and PyTorch; ``mode`` asks for deterministic algorithms, ``rm_dropout`` makes dropout pass
    its input on."""
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0 or seed > 0xFFFFFFFF:
        raise BadInput(f"seed is {seed!r}", hint="a number from 0 to 2^32 - 1")
    os.environ["PYTHONHASHSEED"] = str(seed)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
    if mode:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
    if rm_dropout:
        _remove_dropout()


def _remove_dropout() -> None:
    functional = torch.nn.functional
    for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"):
        original = getattr(functional, name)
        if getattr(original, "_twinprobe_without_dropout", False):
            continue

        @functools.wraps(original)
        def passing(input: Any, _p: float = 0.5, *args: Any, _original: Any = original, **kwargs: Any) -> Any:
            kwargs.pop("p", None)
            return _original(input, 0.0, *args, **kwargs)

        passing._twinprobe_without_dropout = True  # type: ignore[attr-defined]
        setattr(functional, name, passing)


def module_dump(module: torch.nn.Module, dump_name: str) -> None:
    """Record this module as a whole, under this name, and nothing inside it, until module_dump_end()."""
    if not isinstance(module, torch.nn.Module):
        raise BadInput(f"module_dump got {type(module).__name__}, which is no torch.nn.Module")
    if not isinstance(dump_name, str) or not dump_name:
        raise BadInput(f"module_dump needs a name, not {dump_name!r}")
    current_recorder().modules.watch_whole(module, dump_name)


def module_dump_end() -> None:
    """End what module_dump() began."""
    current_recorder().modules.end_whole()


def register_custom_api(module: Any, api_name: str, api_prefix: str | None = None) -> None:
    """Record a function that PyTorch does not know, as ``<api_prefix>.<api_name>``."""
    original = getattr(module, api_name, None)
    if not callable(original):
        raise BadInput(f"{module!r} has no function '{api_name}'")
    prefix = api_prefix or getattr(module, "__name__", type(module).__name__).rpartition(".")[2]
    api = make_api(prefix, api_name)
    if getattr(original, "_twinprobe_custom", None):
        return

    @functools.wraps(original)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        from twinprobe.record.torch.debugger import PrecisionDebugger

        debugger = PrecisionDebugger._current
        if debugger is None:
            return original(*args, **kwargs)
        return debugger.recorder.mode.custom(api, original, args, kwargs, sys._getframe(1))

    recorded._twinprobe_custom = True  # type: ignore[attr-defined]
    setattr(module, api_name, recorded)
