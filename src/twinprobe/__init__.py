"""Two runs of the same neural network give different numbers: where do they diverge, and why?"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twinprobe._api import (
        align,
        check_weights,
        compare,
        compare_kernels,
        compare_logprobs,
        draw,
        find,
        merge_results,
        open,
        record,
        replay,
        reproduce,
        sketch,
    )
    from twinprobe._live.auto_diff import auto_diff
    from twinprobe._live.checks import check_dataloader, check_grads, check_params, check_report
    from twinprobe._live.pairing.layer_map import LayerMap
    from twinprobe._live.weights.copying import assign_weight, copy_aligned, copy_weights
    from twinprobe._live.weights.matching import add_special_init

__version__ = "0.2.0"

# Where each public name lives: imported when it is asked for, so that importing twinprobe stays light.
_HOMES = {
    "_api": (
        "align", "check_weights", "compare", "compare_kernels", "compare_logprobs", "draw", "find", "merge_results",
        "open", "record", "replay", "reproduce", "sketch",
    ),
    "_live.auto_diff": ("auto_diff",),
    "_live.checks": ("check_dataloader", "check_grads", "check_params", "check_report"),
    "_live.pairing.layer_map": ("LayerMap",),
    "_live.weights.copying": ("assign_weight", "copy_aligned", "copy_weights"),
    "_live.weights.matching": ("add_special_init",),
}  # fmt: skip
__all__ = [
    "LayerMap",
    "__version__",
    "add_special_init",
    "align",
    "assign_weight",
    "auto_diff",
    "check_dataloader",
    "check_grads",
    "check_params",
    "check_report",
    "check_weights",
    "compare",
    "compare_kernels",
    "compare_logprobs",
    "copy_aligned",
    "copy_weights",
    "draw",
    "find",
    "merge_results",
    "open",
    "record",
    "replay",
    "reproduce",
    "sketch",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            found = globals()[name] = getattr(import_module(f"twinprobe.{home}"), name)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
