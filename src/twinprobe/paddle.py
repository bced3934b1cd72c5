"""Record what a PaddlePaddle program computes: ``from twinprobe.paddle import PrecisionDebugger, record``."""

from __future__ import annotations

from twinprobe.errors import MissingPackage

try:
    from twinprobe._record.paddle.recorder import (
        PrecisionDebugger,
        module_dump,
        module_dump_end,
        record,
        register_custom_api,
        save,
        seed_all,
    )
except ModuleNotFoundError as error:
    if error.name != "paddle":
        raise
    raise MissingPackage("twinprobe.paddle needs PaddlePaddle", hint="pip install paddlepaddle") from None

__all__ = ["PrecisionDebugger", "module_dump", "module_dump_end", "record", "register_custom_api", "save", "seed_all"]
