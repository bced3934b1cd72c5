"""Record what a PyTorch program computes: ``from twinprobe.torch import PrecisionDebugger, record``."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from twinprobe.errors import MissingPackage

try:
    from twinprobe._record.torch.tools import (
        PrecisionDebugger,
        module_dump,
        module_dump_end,
        record,
        register_custom_api,
        save,
        seed_all,
    )
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise MissingPackage("twinprobe.torch needs PyTorch", hint="pip install torch") from None

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
_CALLBACKS = {"HuggingFaceCallback": "huggingface", "LightningCallback": "lightning"}


def __getattr__(name: str) -> Any:
    if name not in _CALLBACKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"twinprobe._record.torch.callbacks.{_CALLBACKS[name]}"), name)
