"""msprobe.mindspore, answered by TwinProbe."""

from twinprobe.mindspore import PrecisionDebugger, module_dump, module_dump_end, register_custom_api, seed_all

__all__ = ["PrecisionDebugger", "module_dump", "module_dump_end", "register_custom_api", "seed_all"]
