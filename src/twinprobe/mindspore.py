"""Record what a MindSpore program computes: ``from twinprobe.mindspore import PrecisionDebugger, record``."""

from __future__ import annotations

from twinprobe.errors import MissingPackage

try:
    from twinprobe._record.mindspore.recorder import (
        PrecisionDebugger,
        module_dump,
        module_dump_end,
        record,
        register_custom_api,
        save,
        seed_all,
    )
except ModuleNotFoundError as error:
    if error.name != "mindspore":
        raise
    raise MissingPackage("twinprobe.mindspore needs MindSpore", hint="pip install mindspore") from None

__all__ = ["PrecisionDebugger", "module_dump", "module_dump_end", "record", "register_custom_api", "save", "seed_all"]
