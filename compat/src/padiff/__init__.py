"""padiff, answered by TwinProbe."""

from __future__ import annotations

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

warn_of_the_real_tool("padiff", "padiff")


def __getattr__(name: str) -> Any:
    """Imported on first use: a framework is loaded by the script, not by its tool."""
    if name not in __all__:
        raise AttributeError(f"module 'padiff' has no attribute {name!r}")
    if name in ("assign_weight", "auto_diff", "create_model", "get_dump_root_path", "set_dump_root_path"):
        import padiff.proxy

        return getattr(padiff.proxy, name)
    import twinprobe.live

    return getattr(twinprobe.live, name)
