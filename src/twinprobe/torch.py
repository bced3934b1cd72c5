"""Record what a PyTorch program computes: ``from twinprobe.torch import PrecisionDebugger, record``."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from twinprobe.record.torch.context import record
from twinprobe.record.torch.debugger import PrecisionDebugger
from twinprobe.record.torch.tools import module_dump, module_dump_end, register_custom_api, save, seed_all

__all__ = [
    "PrecisionDebugger",
    "module_dump",
    "module_dump_end",
    "record",
    "register_custom_api",
    "save",
    "seed_all",
]

# Each needs a package of its own, so it is imported when it is asked for.
_CALLBACKS = {"HuggingFaceCallback": "hf_callback", "LightningCallback": "lightning_callback"}


def __getattr__(name: str) -> Any:
    if name not in _CALLBACKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"twinprobe.record.torch.{_CALLBACKS[name]}"), name)
