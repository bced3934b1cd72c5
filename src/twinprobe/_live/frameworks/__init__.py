"""One adapter per framework, with the same verbs; chosen by what a model is, imported when it is needed."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from typing import cast

from twinprobe._live.frameworks.adapter import Adapter
from twinprobe.errors import BadInput

# What a model derives from: (package, base class).
FRAMEWORKS = {"torch": ("torch.nn", "Module"), "paddle": ("paddle.nn", "Layer"), "mindspore": ("mindspore.nn", "Cell")}


def framework_of(value: object) -> str | None:
    """Which framework a model belongs to; None where it is no model. Imports nothing: a model's framework is loaded."""
    for name, (package, base) in FRAMEWORKS.items():
        module = sys.modules.get(package)
        if module is not None and isinstance(value, getattr(module, base)):
            return name
    return None


def adapter_of(model: object) -> Adapter:
    """The adapter of a model's framework."""
    name = framework_of(model)
    if name is None:
        raise BadInput(
            f"{type(model).__name__} is no model",
            hint="expected a torch.nn.Module, paddle.nn.Layer or mindspore.nn.Cell, or the folder of a recording",
        )
    return adapter_named(name)


@cache
def adapter_named(framework: str) -> Adapter:
    """The adapter of torch, paddle or mindspore."""
    return cast(Adapter, import_module(f"twinprobe._live.frameworks.{framework}").adapter)
