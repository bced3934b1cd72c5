"""torch.compile: compiled regions run untouched and are seen from outside only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch


def watched_modules(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, bool]]:
    """The submodules to watch: path, module, and whether it is the boundary of a compiled region.

    Nothing inside a compiled region is watched. A model that is compiled as a whole is itself the boundary.
    """
    if is_compiled(model):
        yield "_orig_mod", model, True
        return
    inside: list[str] = []
    for path, module in model.named_modules():
        if not path or any(path.startswith(f"{one}.") for one in inside):
            continue
        compiled = is_compiled(module)
        if compiled:
            inside.append(path)
        yield path, module, compiled


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether calling this module runs compiled code."""
    if getattr(module, "_compiled_call_impl", None) is not None:
        return True
    frames = sys.modules.get("torch._dynamo.eval_frame")
    return frames is not None and isinstance(module, frames.OptimizedModule)


class CompiledBoundary:
    """Stands before a module compiled in place (``module.compile()``): hooks would be compiled into it."""

    def __init__(self, module: torch.nn.Module, before: Callable[..., None], after: Callable[..., None]) -> None:
        self._module = module
        original: Any = module._compiled_call_impl
        self._original = original

        def call(*args: Any, **kwargs: Any) -> Any:
            before(module, args, kwargs)
            output = None
            try:
                output = original(*args, **kwargs)
            finally:
                after(module, args, kwargs, output)
            return output

        module._compiled_call_impl = call

    @staticmethod
    def fits(module: torch.nn.Module) -> bool:
        """Whether this module was compiled in place."""
        return getattr(module, "_compiled_call_impl", None) is not None

    def remove(self) -> None:
        self._module._compiled_call_impl = self._original
