"""Names that moved between MindSpore versions, found once."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def first_of(*places: str) -> Any:
    """The first of these ``module:name`` that exists; None if none does."""
    for place in places:
        module, _, name = place.partition(":")
        try:
            found = getattr(import_module(module), name, None)
        except ImportError:
            continue
        if found is not None:
            return found
    return None


executor = first_of("mindspore.graph.api:_pynative_executor", "mindspore.common.api:_pynative_executor")
JitExecutor = first_of(
    "mindspore.graph.api:_JitExecutor",
    "mindspore.common.api:_JitExecutor",
    "mindspore.common.api:_MindsporeFunctionExecutor",
)
GraphExecutor = first_of("mindspore.graph.api:_CellGraphExecutor", "mindspore.common.api:_CellGraphExecutor")
