"""Record what a PyTorch program computes: ``from twinprobe.torch import PrecisionDebugger, record``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from twinprobe._replay.swap import swap

__all__ = [
    "PrecisionDebugger",
    "module_dump",
    "module_dump_end",
    "record",
    "register_custom_api",
    "save",
    "seed_all",
    "swap",
]

# Imported when they are asked for: callbacks need a package of their own, and who records does not read recordings.
_LATER = {
    "HuggingFaceCallback": "_record.torch.callbacks.huggingface",
    "LightningCallback": "_record.torch.callbacks.lightning",
    "swap": "_replay.swap",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"twinprobe.{_LATER[name]}"), name)
