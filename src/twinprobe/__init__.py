"""Two runs of the same neural network give different numbers: where do they diverge, and why?"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twinprobe._live.differ import auto_diff
    from twinprobe._live.pairing.layer_map import LayerMap
    from twinprobe._live.weights.assigning import assign_weight
    from twinprobe._live.weights.special import add_special_init

__version__ = "0.2.0"
__all__ = ["LayerMap", "__version__", "add_special_init", "assign_weight", "auto_diff"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("twinprobe._live"), name)  # only when asked for: importing twinprobe stays light
