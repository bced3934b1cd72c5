"""Small helpers that scripts call: seeds, whole-module records, custom APIs."""

from __future__ import annotations

import functools
import os
import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np

from twinprobe.errors import BadInput

Record = Callable[[Any, tuple[Any, ...], dict[str, Any], FrameType], Any]


def seed_python(seed: int) -> None:
    """Check the seed; seed Python and NumPy."""
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0 or seed > 0xFFFFFFFF:
        raise BadInput(f"seed is {seed!r}", hint="a number from 0 to 2^32 - 1")
    os.environ["PYTHONHASHSEED"] = str(seed)
    random.seed(seed)
    np.random.seed(seed)


def replace_dropout(functional: Any, names: tuple[str, ...], rate: str = "p") -> None:
    """Make the dropout functions of a namespace pass their input on: their rate becomes 0."""
    for name in names:
        original = getattr(functional, name, None)
        if original is not None and not getattr(original, "_twinprobe_without_dropout", False):
            setattr(functional, name, _without_rate(original, rate))


def _without_rate(original: Any, rate: str) -> Any:
    @functools.wraps(original)
    def passing(*args: Any, **kwargs: Any) -> Any:
        if len(args) > 1:
            args = (args[0], 0.0, *args[2:])
        else:
            kwargs[rate] = 0.0
        return original(*args, **kwargs)

    passing._twinprobe_without_dropout = True  # type: ignore[attr-defined]
    return passing


def whole_module(recorder: Any, module: Any, dump_name: str, kind: type, called: str) -> None:
    """Record this module as a whole, under this name, and nothing inside it."""
    if not isinstance(module, kind):
        raise BadInput(f"module_dump got {type(module).__name__}, which is no {called}")
    if not isinstance(dump_name, str) or not dump_name:
        raise BadInput(f"module_dump needs a name, not {dump_name!r}")
    recorder.modules.watch_whole(module, dump_name)


def custom_api(module: Any, api_name: str, api_prefix: str | None, make: Callable[[str, str], Record]) -> None:
    """Record a function that the framework does not know, as ``<api_prefix>.<api_name>``.

    ``make`` gets prefix and name and gives what calls and records the function.
    """
    original = getattr(module, api_name, None)
    if not callable(original):
        raise BadInput(f"{module!r} has no function '{api_name}'")
    if getattr(original, "_twinprobe_custom", False):
        return
    record = make(api_prefix or getattr(module, "__name__", type(module).__name__).rpartition(".")[2], api_name)

    @functools.wraps(original)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        return record(original, args, kwargs, sys._getframe(1))

    recorded._twinprobe_custom = True  # type: ignore[attr-defined]
    setattr(module, api_name, recorded)
