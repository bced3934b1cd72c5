"""Record what a PyTorch program computes: ``from twinprobe.torch import PrecisionDebugger, record``."""

from __future__ import annotations

from twinprobe.record.torch.context import record
from twinprobe.record.torch.debugger import PrecisionDebugger
from twinprobe.record.torch.tools import module_dump, module_dump_end, register_custom_api, seed_all

__all__ = ["PrecisionDebugger", "module_dump", "module_dump_end", "record", "register_custom_api", "seed_all"]
