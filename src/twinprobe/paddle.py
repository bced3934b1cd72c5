"""Record what a PaddlePaddle program computes: ``from twinprobe.paddle import PrecisionDebugger, record``."""

from __future__ import annotations

from twinprobe._record.debugger import needing

with needing("paddle", "PaddlePaddle", "paddlepaddle"):
    from twinprobe._record.paddle.recorder import (
        PrecisionDebugger,
        module_dump,
        module_dump_end,
        record,
        register_custom_api,
        save,
        seed_all,
    )

__all__ = ["PrecisionDebugger", "module_dump", "module_dump_end", "record", "register_custom_api", "save", "seed_all"]
