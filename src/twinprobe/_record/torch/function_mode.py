"""API calls, seen through a TorchFunctionMode: names imported before the recorder are seen too."""

from __future__ import annotations

import dis
import inspect
import os
import sys
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch._jit_internal import boolean_dispatched
from torch.nn import functional

from twinprobe._record.calls import SCALARS, Api, ApiCall
from twinprobe._record.entries import without_values
from twinprobe._record.perturb import computes
from twinprobe._record.torch.collectives import COLLECTIVE_NAMES, as_written
from twinprobe._record.torch.hooks import in_compiled_code
from twinprobe._record.torch.tensors import WatchMode, silence
from twinprobe._record.torch.values import UNSEEN, ApiTable, make_api
from twinprobe._runs.names import LISTS

# How a call was written: PyTorch's Python functions repack their arguments before a mode sees them.
#
# ``F.embedding(x, weight, None)`` arrives with ``padding_idx=None`` as a keyword and every default filled in. The
# calling instruction still says how many arguments were positional and which keywords were named.

_TORCH = str(Path(torch.__file__).parent) + os.sep
_WRAPPERS = frozenset(
    _TORCH + name.replace("/", os.sep)
    for name in ("overrides.py", "nn/functional.py", "functional.py", "_tensor.py", "_jit_internal.py", "_ops.py")
)
_HANDLE = torch.overrides.handle_torch_function.__code__
Written = tuple[int, tuple[str, ...]]

_written: dict[tuple[int, int], tuple[CodeType, Written | None]] = {}


def caller_of(frame: FrameType) -> FrameType:
    """The frame that wrote the call: the first one outside PyTorch's own wrapping functions."""
    if frame.f_code is not _HANDLE:
        return frame
    outer: FrameType | None = frame
    while outer is not None and outer.f_code.co_filename in _WRAPPERS:
        outer = outer.f_back
    return outer or frame


def arguments_as_written(func: Any, args: Any, kwargs: Any, caller: FrameType) -> tuple[Any, dict[str, Any]]:
    """Undo the repacking as far as the call site tells; otherwise only drop keywords that repeat a default."""
    defaults = _defaults(func)
    if defaults is None:
        return args, kwargs
    names = list(defaults)
    given = dict(zip(names, args, strict=False)) | kwargs
    written = _written_at(caller.f_code, caller.f_lasti)
    if written is not None and len(args) <= len(names):
        count, keywords = written
        # ``x.split(2)`` has one argument less than ``Tensor.split(x, 2)``, and its instruction looks the same.
        for size in (count + 1, count) if names[:1] == ["self"] else (count,):
            shown = (*names[:size], *keywords)
            # A call through partial() or map() has more arguments than its instruction: none may be lost.
            if (
                size <= len(names)
                and len(set(shown)) == len(shown)
                and all(name in given for name in shown)
                and all(name in shown or _is_default(defaults.get(name, _NONE), item) for name, item in given.items())
            ):
                return tuple(given[name] for name in names[:size]), {name: given[name] for name in keywords}
    return args, {key: item for key, item in kwargs.items() if not _is_default(defaults.get(key, _NONE), item)}


def _is_default(default: Any, item: Any) -> bool:
    return default is item or (type(default) is type(item) and type(item) in SCALARS and bool(default == item))


_NONE = inspect.Parameter.empty


@lru_cache(maxsize=2048)
def _defaults(func: Any) -> dict[str, Any] | None:
    """The parameters of a function and their defaults; None where they cannot be known or are any number."""
    while func in boolean_dispatched:  # max_pool2d, unique: several functions behind one name, of the same parameters
        func = boolean_dispatched[func]["if_false"]
    try:
        parameters = inspect.signature(func).parameters.values()
    except (TypeError, ValueError):
        return None
    starred = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    return (
        None
        if {parameter.kind for parameter in parameters} & starred
        else {parameter.name: parameter.default for parameter in parameters}
    )


def _written_at(code: CodeType, offset: int) -> Written | None:
    key = (id(code), offset)  # hashing a code object itself is slow
    cached = _written.get(key)
    if cached is None:
        cached = _written[key] = (code, _decode(code, offset))
    return cached[1]


def _decode(code: CodeType, offset: int) -> Written | None:
    """The number of positional arguments and the keywords of the call instruction at an offset."""
    before: dis.Instruction | None = None
    call: dis.Instruction | None = None
    waiting: tuple[str, ...] = ()  # KW_NAMES belongs to the next CALL
    names: tuple[str, ...] = ()
    for instruction in dis.get_instructions(code):
        if instruction.offset > offset:  # the offset may lie in the call's own cache
            break
        if instruction.opname == "KW_NAMES":
            waiting = tuple(code.co_consts[instruction.arg or 0])
        elif instruction.opname != "PRECALL":
            before, call = call, instruction
            if instruction.opname == "CALL":
                names, waiting = waiting, ()
    return None if call is None else _arguments(call, before, names)


def _arguments(call: dis.Instruction, before: dis.Instruction | None, names: tuple[str, ...]) -> Written | None:
    count = call.arg or 0
    if call.opname in {"CALL", "CALL_FUNCTION", "CALL_METHOD"}:
        return count - len(names), names
    if call.opname in {"CALL_KW", "CALL_FUNCTION_KW"} and before is not None and isinstance(before.argval, tuple):
        return count - len(before.argval), before.argval
    return None


# ``x + y`` or ``x.add(y)``? PyTorch shows both as Tensor.add; the caller's instruction tells them apart.

_SPELLED = {
    f"Tensor.{name}.": make_api("Tensor", operator)
    for name, operator in (
        ("add", "__add__"), ("sub", "__sub__"), ("mul", "__mul__"), ("div", "__truediv__"), ("remainder", "__mod__"),
        ("matmul", "__matmul__"), ("gt", "__gt__"), ("lt", "__lt__"), ("ge", "__ge__"), ("le", "__le__"),
        ("ne", "__ne__"), ("eq", "__eq__"), ("neg", "__neg__"), ("add_", "__iadd__"), ("sub_", "__isub__"),
        ("mul_", "__imul__"), ("div_", "__itruediv__"), ("remainder_", "__imod__"),
    )
}  # fmt: skip
_OPERATORS = frozenset(
    number
    for name, number in dis.opmap.items()
    if name.startswith(("BINARY_", "INPLACE_", "COMPARE_OP", "UNARY_")) and "SUBSCR" not in name
)
# F.sigmoid and F.tanh call the method of the tensor: the code of these functions is the caller then.
_FUNCTIONAL = {
    f"Tensor.{name}.": (getattr(functional, name).__code__, make_api("Functional", name))
    for name in ("sigmoid", "tanh")
}
_is_operator: dict[tuple[int, int], tuple[CodeType, bool]] = {}


def spelled_as(api: Api, frame: FrameType) -> Api:
    """The Api under which this call is recorded, named as its source wrote it; ``frame`` is the caller."""
    code = frame.f_code
    operator = _SPELLED.get(api.prefix)
    if operator is not None:
        key = (id(code), frame.f_lasti)  # hashing a code object itself is slow
        cached = _is_operator.get(key)
        if cached is None:
            cached = _is_operator[key] = (code, code.co_code[frame.f_lasti] in _OPERATORS)
        return operator if cached[1] else api
    inside, named = _FUNCTIONAL.get(api.prefix, (None, api))
    return named if code is inside else api


_is_grad_enabled: Any = torch.is_grad_enabled


# Collectives as DTensor issues them: their results are written while the program goes on, until it waits for them.
_ON_THEIR_WAY = frozenset(
    f"_c10d_functional.{name}."
    for name in (
        "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast",
        "all_reduce_coalesced", "all_gather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced",
        "_wrap_tensor_autograd",
    )
)  # fmt: skip


_WRAPS = "_c10d_functional._wrap_tensor_autograd."  # takes such a result before the program waits for it


class ApiMode(WatchMode):
    """Records each API call's arguments, result and gradients, and passes the call on unchanged."""

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self.table = ApiTable()
        self._tree_rank = recorder.tree_rank
        self._known: dict[Any, tuple[int, Api | None]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        recorder = self._recorder
        try:
            cached = self._known.get(func)
            if cached is None or _is_grad_enabled() is not self._gradients:
                cached = self._known[func] = self.effect(func), self.table(func)
            effect, api = cached
        except Exception as error:
            recorder.trouble("looking a function up", error)
            effect, api = UNSEEN, None
        if api is None and not effect and not kwargs:
            return func(*args)
        idle = not recorder.engine.active or recorder.paused or recorder.muted or recorder.collectives.inside
        if api is None or idle or api.rank > self._tree_rank:
            if effect == UNSEEN and not idle and getattr(func, "__name__", None) in COLLECTIVE_NAMES:
                return self._collective(func, args, kwargs)
            if effect >= UNSEEN:
                return self.pass_on(effect, func, args, kwargs)
            self.settle_before(effect, args, kwargs)
            return func(*args, **kwargs)
        frame = caller = sys._getframe(1)
        written = None
        try:
            if torch._C._current_graph_task_id() >= 0 and in_compiled_code(frame):
                api = None
            else:
                caller = caller_of(frame)
                if caller is frame:
                    api = spelled_as(api, frame)
                else:
                    written = arguments_as_written(func, args, kwargs, caller)
        except Exception as error:
            recorder.trouble("asking how a call was written", error)
        if api is None:
            return func(*args, **kwargs)
        return self._record(effect, api, func, args, kwargs, caller, written)

    def _collective(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = COLLECTIVE_NAMES[func.__name__]
        written = as_written(func, kwargs)
        return self._recorder.collectives.record(name, func, args, kwargs, sys._getframe(1), written)

    def custom(self, api: Api, func: Any, args: Any, kwargs: Any, frame: FrameType) -> Any:
        """Record a function that was registered by hand; nothing inside it is recorded."""
        recorder = self._recorder
        if not self.attached or not recorder.active or recorder.muted:
            return func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            return self._record(UNSEEN, api, func, args, kwargs, frame)

    def _record(
        self, effect: int, api: Api, func: Any, args: Any, kwargs: Any, frame: FrameType, written: Any = None
    ) -> Any:
        try:
            call = ApiCall(self._recorder, api, frame)
        except Exception as error:
            self._recorder.trouble("counting an API's calls", error)
            return self.pass_on(UNSEEN, func, args, kwargs)
        perturbation = self._recorder.perturbation
        try:
            with silence():
                if perturbation is not None:
                    perturbation.before((args, kwargs))
                call.before(*(written or (args, kwargs)))
                if api.prefix == _WRAPS and call.parts is not None:
                    call.parts["input_args"] = [without_values(item) for item in call.parts.get("input_args", ())]
                    self._recorder.registry.forget()
        except Exception as error:
            call.parts = self._recorder.mark("recording an API's inputs", error, call.parts)
        try:
            if effect == UNSEEN:
                output = self.pass_on(effect, func, args, kwargs)
            else:
                if effect or kwargs:
                    self.settle_before(effect, args, kwargs)
                output = func(*args, **kwargs)
        except BaseException:
            self._recorder.work("recording an API that failed", call.emit)
            raise
        try:
            with silence():
                given = output
                if output is None and args and LISTS in api.prefix:
                    given = args[0]  # as later versions of PyTorch return it, 2.2 does not
                if perturbation is not None and computes(api):
                    perturbation.after(given, ())
                pending = effect == UNSEEN and api.prefix in _ON_THEIR_WAY
                call.after(given, pending)
                if pending:
                    self._recorder.registry.forget()
        except Exception as error:
            self._recorder.trouble("recording an API's outputs", error)
        return output
