"""Two models side by side: run both on the same inputs, and say which layer is the first to differ."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twinprobe.live.checks import check_grads, check_params, check_report, check_weights
    from twinprobe.live.dataloader import check_dataloader
    from twinprobe.live.differ import auto_diff
    from twinprobe.live.layer_map import LayerMap
    from twinprobe.live.result import Result
    from twinprobe.live.weights import add_special_init, assign_weight

__all__ = [
    "LayerMap",
    "Result",
    "add_special_init",
    "assign_weight",
    "auto_diff",
    "check_dataloader",
    "check_grads",
    "check_params",
    "check_report",
    "check_weights",
]

_HOMES = {
    "LayerMap": "layer_map",
    "Result": "result",
    "add_special_init": "weights",
    "assign_weight": "weights",
    "auto_diff": "differ",
    "check_dataloader": "dataloader",
    "check_grads": "checks",
    "check_params": "checks",
    "check_report": "checks",
    "check_weights": "checks",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"twinprobe.live.{_HOMES[name]}"), name)
