"""msprobe.pytorch, answered by TwinProbe."""

from twinprobe.torch import PrecisionDebugger, module_dump, module_dump_end, register_custom_api, seed_all

__all__ = ["PrecisionDebugger", "module_dump", "module_dump_end", "register_custom_api", "seed_all"]

PrecisionDebugger.own_files = False  # a process that uses these names gets the files that they stand for, and no more
