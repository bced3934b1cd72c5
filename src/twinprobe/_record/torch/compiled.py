"""torch.compile: compiled regions run untouched and are seen from outside only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from twinprobe._record.calls import outside_compiled
from twinprobe._record.torch.tensors import WatchMode

_HOOKS = "enter_exit_hooks"
_TORCH = Path(torch.__file__).parent
_COMPILED_CODE = tuple(str(_TORCH.joinpath(*path)) for path in (("_functorch", "_aot_autograd"), ("_inductor",)))


def watched_modules(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, bool]]:
    """The submodules to watch: path, module, and whether it is the boundary of a compiled region.

    Nothing inside a compiled region is watched. A model that is compiled as a whole is itself the boundary.
    """
    if is_compiled(model):
        return iter([("_orig_mod", model, True)])
    return outside_compiled(model.named_modules(), is_compiled)


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

    def remove(self) -> None:
        self._module._compiled_call_impl = self._original


class CompiledFunctions:
    """While recording, every call of compiled code puts the function mode aside, a compiled function's too.

    PyTorch runs the functions in ``enter_exit_hooks`` around each such call; where it has none (before 2.5), compiled
    functions are compiled anew under the mode.
    """

    def __init__(self, mode: WatchMode) -> None:
        self._mode = mode
        self._home: Any = None

    def attach(self) -> None:
        """Add our hook to every compiled function, those to come included."""
        frames = sys.modules.get("torch._dynamo.eval_frame")
        home = getattr(frames, "_TorchDynamoContext", None)
        if home is not None and _HOOKS not in vars(home):
            self._home = home
            setattr(home, _HOOKS, property(self._hooks_of, _set_hooks))

    def detach(self) -> None:
        """Compiled functions have only their own hooks again."""
        if self._home is not None:
            delattr(self._home, _HOOKS)
            self._home = None

    def _hooks_of(self, context: Any) -> Any:
        return _HooksAndOurs(vars(context)[_HOOKS], self._enter)

    def _enter(self) -> Callable[[], None]:
        self._mode.step_aside()
        return self._mode.step_back


class _HooksAndOurs:
    """A compiled function's own list of hooks, which can still be added to, and one more when it is gone through."""

    def __init__(self, own: list[Any], ours: Callable[..., Any]) -> None:
        self._own = own
        self._ours = ours

    def __iter__(self) -> Iterator[Any]:
        yield from self._own
        yield self._ours

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


def _set_hooks(context: Any, hooks: list[Any]) -> None:
    vars(context)[_HOOKS] = hooks


def in_compiled_code(frame: FrameType | None) -> bool:
    """Whether a call comes from the compiled backward of some region, or from its compilation."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(_COMPILED_CODE):
            return True
        frame = frame.f_back
    return False
