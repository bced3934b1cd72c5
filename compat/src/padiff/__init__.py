"""padiff, answered by TwinProbe."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from msprobe import warn_of_the_real_tool

__all__ = [
    "LayerMap",
    "add_special_init",
    "assign_weight",
    "auto_diff",
    "check_dataloader",
    "check_grads",
    "check_params",
    "check_report",
    "check_weights",
    "create_model",
    "get_dump_root_path",
    "set_dump_root_path",
]
_ELSEWHERE = {
    "LayerMap": "twinprobe",
    "add_special_init": "twinprobe",
    "create_model": "padiff.proxy",
    "get_dump_root_path": "padiff.proxy",
    "set_dump_root_path": "padiff.proxy",
}

warn_of_the_real_tool("padiff", "padiff")


def __getattr__(name: str) -> Any:
    """Imported on first use: a framework is loaded by the script, not by its tool."""
    if name not in __all__:
        raise AttributeError(f"module 'padiff' has no attribute {name!r}")
    return getattr(import_module(_ELSEWHERE.get(name, "padiff.comparing")), name)
