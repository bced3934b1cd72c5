"""PrecisionDebugger, record, seeds and the small helpers, for MindSpore."""

from __future__ import annotations

from typing import Any

import mindspore as ms

from twinprobe.record.eager.recorder import EagerRecorder
from twinprobe.record.eager.tools import EagerDebugger, Verbs
from twinprobe.record.mindspore.adapter import make_recorder
from twinprobe.record.verbs.tools import replace_dropout, seed_python

_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout")


class PrecisionDebugger(EagerDebugger):
    """Records what a MindSpore program computes, between start() and stop(), step by step."""

    @staticmethod
    def make_recorder(config: Any) -> EagerRecorder:
        return make_recorder(config)


_verbs = Verbs(PrecisionDebugger, make_recorder)
record, save = _verbs.record, _verbs.save
module_dump, module_dump_end = _verbs.module_dump, _verbs.module_dump_end
register_custom_api = _verbs.register_custom_api


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = True) -> None:
    """Seed Python, NumPy and MindSpore; ``mode`` asks for deterministic kernels, ``rm_dropout`` makes dropout pass its
    input on."""
    seed_python(seed)
    ms.set_seed(seed)
    if mode:
        setter = getattr(ms, "set_deterministic", None)
        setter(True) if setter is not None else ms.set_context(deterministic="ON")
    if rm_dropout:
        replace_dropout(ms.ops, _DROPOUTS)
        if hasattr(ms, "mint"):
            replace_dropout(ms.mint.nn.functional, _DROPOUTS)
        _silence_dropout_cells()


def _silence_dropout_cells() -> None:
    for name in ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d"):
        kind: Any = getattr(ms.nn, name, None)
        if kind is not None and not getattr(kind.construct, "_twinprobe_without_dropout", False):
            kind.construct = _passing


def _passing(_self: Any, x: Any) -> Any:
    return x


_passing._twinprobe_without_dropout = True  # type: ignore[attr-defined]
