"""Record what a PyTorch program computes: ``from twinprobe.torch import PrecisionDebugger, record``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
def __getattr__(name: str) -> Any:
    if name == "swap":
        from twinprobe._replay.swap import swap

        return swap
    if name not in ("HuggingFaceCallback", "LightningCallback"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from twinprobe._record.torch.callbacks import trainer_callback

    return trainer_callback(name)
