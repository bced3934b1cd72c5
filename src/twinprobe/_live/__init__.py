"""Two models side by side: run both on the same inputs, and say which layer is the first to differ."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twinprobe._live.differ import (
        auto_diff,
        check_dataloader,
        check_grads,
        check_params,
        check_report,
        check_weights,
    )
    from twinprobe._live.pairing.layer_map import LayerMap
    from twinprobe._live.result import Result
    from twinprobe._live.weights.assigning import assign_weight
    from twinprobe._live.weights.special import add_special_init

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
    "LayerMap": "pairing.layer_map",
    "Result": "result",
    "add_special_init": "weights",
    "assign_weight": "weights",
    "auto_diff": "differ",
    "check_dataloader": "differ",
    "check_grads": "differ",
    "check_params": "differ",
    "check_report": "differ",
    "check_weights": "differ",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"twinprobe._live.{_HOMES[name]}"), name)
