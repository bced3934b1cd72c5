"""PrecisionDebugger, record, seeds and the small helpers, for MindSpore."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import mindspore as ms

from twinprobe.record.eager.context import Recording, recording
from twinprobe.record.eager.debugger import EagerDebugger
from twinprobe.record.eager.recorder import EagerRecorder
from twinprobe.record.eager.tools import custom_api, replace_dropout, seed_python, whole_module
from twinprobe.record.mindspore.adapter import make_recorder

_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout")


class PrecisionDebugger(EagerDebugger):
    """Records what a MindSpore program computes, between start() and stop(), step by step.

    Configured by ``config.json``, by keyword arguments, or both (the arguments win). One per process: creating it again
    returns the same one.
    """

    @staticmethod
    def make_recorder(config: Any) -> EagerRecorder:
        return make_recorder(config)


def record(
    model: Any, dump_path: str | Path, *, level: str = "L1", task: str = "statistics", **more: Any
) -> AbstractContextManager[Recording]:
    """Record everything inside the block. All keys of config.json may be given; files are complete when it ends."""
    return recording(make_recorder, model, dump_path, level=level, task=task, **more)


def save(variable: Any, name: str, save_backward: bool = True) -> None:
    """Save one value under a name, level ``debug``, with this process's debugger."""
    PrecisionDebugger.current().save(variable, name, save_backward)


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = True) -> None:
    """Seed Python, NumPy and MindSpore; ``mode`` asks for deterministic kernels, ``rm_dropout`` makes dropout pass its
    input on."""
    seed_python(seed)
    ms.set_seed(seed)
    if mode:
        setter = getattr(ms, "set_deterministic", None)
        setter(True) if setter is not None else ms.set_context(deterministic="ON")
    if rm_dropout:
        replace_dropout(ms.ops, _DROPOUTS, "p")
        if hasattr(ms, "mint"):
            replace_dropout(ms.mint.nn.functional, _DROPOUTS, "p")
        _silence_dropout_cells()


def _silence_dropout_cells() -> None:
    for name in ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d"):
        kind: Any = getattr(ms.nn, name, None)
        if kind is not None and not getattr(kind.construct, "_twinprobe_without_dropout", False):
            kind.construct = _passing


def _passing(_self: Any, x: Any) -> Any:
    return x


_passing._twinprobe_without_dropout = True  # type: ignore[attr-defined]


def module_dump(module: Any, dump_name: str) -> None:
    """Record this cell as a whole, under this name, and nothing inside it, until module_dump_end()."""
    whole_module(PrecisionDebugger.current(), module, dump_name)


def module_dump_end() -> None:
    """End what module_dump() began."""
    PrecisionDebugger.current().recorder.modules.end_whole()


def register_custom_api(module: Any, api_name: str, api_prefix: str | None = None) -> None:
    """Record a function that MindSpore does not know, as ``<api_prefix>.<api_name>``."""
    custom_api(PrecisionDebugger, module, api_name, api_prefix)
