"""Small helpers that scripts call, the same for every eager framework: seeds, whole-module records, custom APIs."""

from __future__ import annotations

import functools
import os
import random
import sys
from typing import Any

import numpy as np

from twinprobe.errors import BadInput
from twinprobe.record.eager.adapter import FOCUS, Api


def seed_python(seed: int) -> None:
    """Check the seed; seed Python and NumPy."""
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0 or seed > 0xFFFFFFFF:
        raise BadInput(f"seed is {seed!r}", hint="a number from 0 to 2^32 - 1")
    os.environ["PYTHONHASHSEED"] = str(seed)
    random.seed(seed)
    np.random.seed(seed)


def replace_dropout(functional: Any, names: tuple[str, ...], rate: str) -> None:
    """Make the dropout functions of a namespace pass their input on: their rate becomes 0."""
    for name in names:
        original = getattr(functional, name, None)
        if original is None or getattr(original, "_twinprobe_without_dropout", False):
            continue

        @functools.wraps(original)
        def passing(x: Any, _rate: float = 0.5, *args: Any, _original: Any = original, **kwargs: Any) -> Any:
            kwargs.pop(rate, None)
            return _original(x, 0.0, *args, **kwargs)

        passing._twinprobe_without_dropout = True  # type: ignore[attr-defined]
        setattr(functional, name, passing)


def whole_module(debugger: Any, module: Any, dump_name: str) -> None:
    """Record this module as a whole, under this name, and nothing inside it."""
    adapter = debugger.recorder.adapter
    if not isinstance(module, adapter.module_class):
        raise BadInput(f"module_dump got {type(module).__name__}, which is no {adapter.module_class.__name__}")
    if not isinstance(dump_name, str) or not dump_name:
        raise BadInput(f"module_dump needs a name, not {dump_name!r}")
    debugger.recorder.modules.watch_whole(module, dump_name)


def custom_api(debugger_class: Any, module: Any, api_name: str, api_prefix: str | None) -> None:
    """Record a function that the framework does not know, as ``<api_prefix>.<api_name>``."""
    original = getattr(module, api_name, None)
    if not callable(original):
        raise BadInput(f"{module!r} has no function '{api_name}'")
    if getattr(original, "_twinprobe_custom", False):
        return
    prefix = api_prefix or getattr(module, "__name__", type(module).__name__).rpartition(".")[2]
    api = Api(f"{prefix}.{api_name}.", FOCUS, False)

    @functools.wraps(original)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        debugger = debugger_class._current
        recorder = debugger.recorder if debugger is not None else None
        if (
            recorder is None
            or recorder.busy
            or recorder.in_api
            or not recorder.patches.attached
            or not recorder.listening()
        ):
            return original(*args, **kwargs)
        return recorder.apis.record(api, original, args, kwargs, sys._getframe(1))

    recorded._twinprobe_custom = True  # type: ignore[attr-defined]
    setattr(module, api_name, recorded)
