"""Record what a PyTorch program computes: ``from twinprobe.torch import PrecisionDebugger, record``."""

from __future__ import annotations

from typing import Any

from twinprobe._record.debugger import needing

with needing("torch", "PyTorch", "torch"):
    from twinprobe._record.torch.recorder import (
        PrecisionDebugger,
        module_dump,
        module_dump_end,
        record,
        register_custom_api,
        save,
        seed_all,
    )

__all__ = [
    "PrecisionDebugger",
    "module_dump",
    "module_dump_end",
    "record",
    "register_custom_api",
    "save",
    "seed_all",
]


def __getattr__(name: str) -> Any:
    if name not in ("HuggingFaceCallback", "LightningCallback"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from twinprobe._record.torch.callbacks import trainer_callback

    return trainer_callback(name)
