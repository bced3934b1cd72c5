"""Record what a MindSpore program computes: ``from twinprobe.mindspore import PrecisionDebugger, record``."""

from __future__ import annotations

from twinprobe._record.debugger import needing

with needing("mindspore", "MindSpore", "mindspore"):
    from twinprobe._record.mindspore.recorder import (
        PrecisionDebugger,
        module_dump,
        module_dump_end,
        record,
        register_custom_api,
        save,
        seed_all,
    )

__all__ = ["PrecisionDebugger", "module_dump", "module_dump_end", "record", "register_custom_api", "save", "seed_all"]
