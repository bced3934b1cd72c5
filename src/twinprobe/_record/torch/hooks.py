"""Module calls: hooks around forward, the stack of enclosing calls, parameters, the borders of compiled regions."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from twinprobe._record.calls import ModuleCall, ModuleInfo, ModuleWatch, outside_compiled
from twinprobe._record.entries import Leaf, logger
from twinprobe._record.torch.tensors import WatchMode, silence

_HOOKS = "enter_exit_hooks"
_TORCH = Path(torch.__file__).parent
_COMPILED_CODE = tuple(str(_TORCH.joinpath(*path)) for path in (("_functorch", "_aot_autograd"), ("_inductor",)))


# Whether PyTorch is compiling the code that asks. torch.compiler has it since 2.3.
is_compiling: Callable[[], bool] = getattr(torch.compiler, "is_compiling", torch._utils.is_compiling)


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


_CALLS_HOOKS = torch.optim.Optimizer.profile_hook_step(torch.optim.Optimizer.step).__code__


class UpdateHooks:
    """Hooks before and after each step of every optimizer.

    Some versions of PyTorch, 2.2 among them, no longer call any hooks of their optimizers once something was compiled:
    there the optimizers call them again for as long as ours stay.
    """

    def __init__(self, before: Callable[..., Any], after: Callable[..., Any] | None = None) -> None:
        self._handles = [register_optimizer_step_pre_hook(before)]
        if after is not None:
            self._handles.append(register_optimizer_step_post_hook(after))
        self._muted: list[tuple[Any, Any]] = []
        for kind in vars(torch.optim).values():
            step = vars(kind).get("step") if isinstance(kind, type) else None
            if getattr(step, "hooked", False) and _CALLS_HOOKS not in _layers(step):
                self._muted.append((kind, step))
                kind.step = torch.optim.Optimizer.profile_hook_step(step)

    def remove(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()
        for kind, step in self._muted:
            kind.step = step
        self._muted.clear()


def _layers(function: Any) -> Iterator[Any]:
    """The code of a function and of those that it wraps."""
    while function is not None:
        yield getattr(function, "__code__", None)
        function = getattr(function, "__wrapped__", None)


# Modules whose fast path PyTorch itself switches off when anything watches them: warned of, and marked in the dump.

REMARK = "PyTorch left its fast path because the module is watched"
_NAMED = 6
_KINDS = (nn.TransformerEncoderLayer, nn.TransformerEncoder, nn.MultiheadAttention)


def has_fast_path(module: nn.Module) -> bool:
    """Whether this kind of module computes differently when it is not watched."""
    return isinstance(module, _KINDS)


def leaves_fast_path(module: nn.Module) -> bool:
    """Whether a call made now would have taken the fast path: no training, no gradients, not switched off."""
    if module.training or not _is_switched_on():
        return False
    return not (torch.is_grad_enabled() and any(parameter.requires_grad for parameter in module.parameters()))


def _is_switched_on() -> bool:
    switch = getattr(torch.backends, "mha", None)  # torch 2.2 has none
    return switch is None or bool(switch.get_fastpath_enabled())


class FastPaths:
    """Says once per module that its result may differ from an unwatched run."""

    def __init__(self) -> None:
        self._said: set[nn.Module] = set()

    def mark(self, module: nn.Module, prefix: str, parts: dict[str, Any]) -> None:
        """Put the remark into the entry of a call that leaves the fast path."""
        if leaves_fast_path(module):
            parts["remark"] = Leaf({"type": "str", "value": REMARK})
            self._say({prefix.rstrip("."): module})

    def look_over(self, models: Iterable[nn.Module]) -> None:
        """Warn of all modules that would take the fast path as things stand when recording starts."""
        self._say(
            {
                f"{path}.{type(module).__name__}".lstrip("."): module
                for model in models
                for path, module in model.named_modules()
                if has_fast_path(module) and not module.training and _is_switched_on()
            }
        )

    def _say(self, modules: dict[str, nn.Module]) -> None:
        new = [name for name, module in modules.items() if module not in self._said]
        if not new:
            return
        self._said.update(modules.values())
        more = f" and {len(new) - _NAMED} more" if len(new) > _NAMED else ""
        logger.warning(
            "without gradients, watched modules leave PyTorch's fast path; results may differ in the last digits, and "
            "at masked places, from an unwatched run: %s%s",
            ", ".join(new[:_NAMED]),
            more,
        )


# Copies of a model, in memory or on disk, are made without our hooks, which belong to this process and this recording.

_TABLES = ("_forward_pre_hooks", "_forward_hooks")
_FLAGS = ("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")
_owners: set[int] = set()


def keep_hooks_out_of_copies(owner: Any, hooked: bool = True) -> None:
    """While any owner has hooks on modules, copy, pickle and torch.save leave out every hook that is ours."""
    if hooked:
        if (
            id(owner) not in _owners
        ):  # writing to a class is slow: all of its subclasses forget what they have looked up
            _owners.add(id(owner))
            nn.Module.__reduce_ex__ = _reduce_without_hooks
    else:
        _owners.discard(id(owner))
        if not _owners and vars(nn.Module).get("__reduce_ex__") is _reduce_without_hooks:
            del nn.Module.__reduce_ex__


def _reduce_without_hooks(module: nn.Module, protocol: Any) -> Any:
    reduced = object.__reduce_ex__(module, protocol)
    if not isinstance(reduced, tuple) or len(reduced) < 3 or not isinstance(reduced[2], dict):
        return reduced
    state = dict(reduced[2])
    for table in _TABLES:
        ours = {
            key
            for key, hook in state.get(table, {}).items()
            if str(getattr(hook, "__module__", "")).startswith("twinprobe.")
        }
        if ours:
            for name in (table, *(flags for flags in _FLAGS if flags.startswith(table))):
                kept = state.get(name, {})
                state[name] = type(kept)((key, value) for key, value in kept.items() if key not in ours)
    return (*reduced[:2], state, *reduced[3:])


class ModuleHooks(ModuleWatch):
    """Watches modules by hooks on each of them."""

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._handles: list[Any] = []
        self._hooked: list[Any] = []
        self._key = RemovableHandle(OrderedDict()).id  # a number that no other hook has
        self._boundaries: list[CompiledBoundary] = []
        self.fast_paths = FastPaths()

    @property
    def attached(self) -> bool:
        return bool(self._hooked or self._handles)

    def watch(self, module: torch.nn.Module, prefix: str, compiled: bool = False) -> ModuleInfo:
        """Register hooks on one module under the given name."""
        info = super().watch(module, prefix, compiled)
        keep_hooks_out_of_copies(self)
        if compiled and getattr(module, "_compiled_call_impl", None) is not None:
            self._boundaries.append(CompiledBoundary(module, self._before, self._after))
            return info
        # What register_forward_pre_hook and register_forward_hook do, which scripted modules refuse.
        module._forward_pre_hooks[self._key] = self._before
        module._forward_hooks[self._key] = self._after
        for name in _FLAGS:
            getattr(module, name)[self._key] = True
        self._hooked.append(module)
        return info

    def watch_tokens(self, models: list[torch.nn.Module], token_range: Any) -> None:
        """Record only while the model runs for the tokens first..last of a generation loop."""
        self._token = -1
        first, last = token_range

        def count(*_: Any) -> None:
            self._token += 1
            self._recorder.paused = not first <= self._token <= last

        def pause(*_: Any) -> None:
            self._recorder.paused = True

        if models:
            keep_hooks_out_of_copies(self)
            self._handles.append(models[0].register_forward_pre_hook(count, with_kwargs=True))
            self._handles.append(models[0].register_forward_hook(pause, with_kwargs=True, always_call=True))

    def detach(self) -> None:
        """Remove every hook."""
        keep_hooks_out_of_copies(self, False)
        for handle in self._handles:
            handle.remove()
        for module in self._hooked:
            for name in (*_TABLES, *_FLAGS):
                getattr(module, name).pop(self._key, None)
        self._hooked.clear()
        for boundary in self._boundaries:
            boundary.remove()
        self._handles.clear()
        self._boundaries.clear()
        self.infos.clear()
        self.calls.clear()

    # -- the hooks --------------------------------------------------------------------------------------------------

    def _before(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        recorder = self._recorder
        if not recorder.active or recorder.muted:
            return
        info = self.infos.get(id(module))
        if info is None:
            return  # a replica
        if not recorder.mode.attached:
            recorder.work("watching calls again", recorder.mode.wake)
        with silence():
            try:
                number = recorder.engine.count(info.prefix)
            except Exception as error:
                recorder.trouble("counting a module's calls", error)
                return
            call = ModuleCall(info, number, self.calls[-1] if self.calls else None)
            call.error = sys.exc_info()[1]
            self.calls.append(call)
            try:
                if recorder.perturbation is not None and recorder.perturbs_module(info):
                    recorder.perturbation.before((args, kwargs, [*module.parameters(), *module.buffers()]))
                self._enter(call, args, kwargs, sys._getframe(1))
            except Exception as error:
                call.parts = recorder.mark("recording a module's inputs", error, call.parts)
        call.whole = info.whole
        if call.whole:
            recorder.muted += 1
        if info.compiled:
            recorder.mode.step_aside()

    def _enter(self, call: ModuleCall, args: Any, kwargs: Any, frame: FrameType) -> None:
        super()._enter(call, args, kwargs, frame)
        if call.parts is not None and has_fast_path(call.info.module) and not call.info.compiled:
            self.fast_paths.mark(call.info.module, call.info.prefix, call.parts)

    def _place(self, call: ModuleCall, frame: FrameType) -> None:
        parent = call.parent
        base, stop = (parent.stack, parent.frame) if parent else (None, 0)
        stack = self._recorder.engine.stack(call.name, frame, base, stop, apart=True)
        if stack is not None:
            call.stack, call.frame = stack.base, id(frame.f_back)

    def _after(self, module: torch.nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
        recorder = self._recorder
        calls = self.calls
        if not calls or (
            calls[-1].info.module is not module and not any(call.info.module is module for call in reversed(calls))
        ):
            return
        while calls[-1].info.module is not module:
            calls.pop()  # left by an exception that the hooks did not see
        call = calls.pop()
        if call.whole:
            recorder.muted -= 1
        if call.info.compiled:
            recorder.mode.step_back()
        with silence():
            try:
                failed = output is None and sys.exc_info()[1] is not call.error
                if recorder.perturbation is not None and recorder.perturbs_module(call.info):
                    recorder.registry.settle()  # a tensor that waits to be measured may share this memory
                    recorder.perturbation.after(output, ())
                self._leave(call, output, failed)
            except Exception as error:
                recorder.trouble("recording a module's outputs", error)
            if not calls:
                recorder.graph.outermost_call_ended()
