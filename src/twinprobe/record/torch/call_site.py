"""How a call was written: PyTorch's Python functions repack their arguments before a mode sees them.

``F.embedding(x, weight, None)`` arrives with ``padding_idx=None`` as a keyword and every default filled in. The calling
instruction still says how many arguments were positional and which keywords were named.
"""

from __future__ import annotations

import dis
import inspect
import os
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

_TORCH = str(Path(torch.__file__).parent) + os.sep
_WRAPPERS = frozenset(
    _TORCH + name.replace("/", os.sep)
    for name in ("overrides.py", "nn/functional.py", "functional.py", "_tensor.py", "_jit_internal.py", "_ops.py")
)
_HANDLE = torch.overrides.handle_torch_function.__code__
Written = tuple[int, tuple[str, ...]]

_is_wrapper: dict[CodeType, bool] = {}
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
    parameters = _parameters(func)
    if parameters is None:
        return args, kwargs
    names = list(parameters)
    given = dict(zip(names, args, strict=False)) | kwargs
    written = _written_at(caller.f_code, caller.f_lasti)
    if written is not None and len(args) <= len(names):
        count, keywords = written
        positional = names[:count]
        if count <= len(names) and all(name in given for name in (*positional, *keywords)):
            return tuple(given[name] for name in positional), {name: given[name] for name in keywords}
    return args, {key: item for key, item in kwargs.items() if not _is_default(parameters.get(key), item)}


def _is_default(parameter: Any, item: Any) -> bool:
    if parameter is None or isinstance(item, torch.Tensor):
        return False
    default = parameter.default
    return default is item or (type(default) is type(item) and bool(default == item))


@lru_cache(maxsize=2048)
def _parameters(func: Any) -> dict[str, inspect.Parameter] | None:
    try:
        parameters = dict(inspect.signature(func).parameters)
    except (TypeError, ValueError):
        return None
    kinds = {one.kind for one in parameters.values()}
    starred = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    return None if kinds & starred else parameters


def _written_at(code: CodeType, at: int) -> Written | None:
    key = (id(code), at)  # hashing a code object itself is slow
    known = _written.get(key)
    if known is None:
        known = _written[key] = (code, _decode(code, at))
    return known[1]


def _decode(code: CodeType, at: int) -> Written | None:
    """The number of positional arguments and the keywords of the call instruction at an offset."""
    before: dis.Instruction | None = None
    call: dis.Instruction | None = None
    waiting: tuple[str, ...] = ()  # KW_NAMES belongs to the next CALL
    names: tuple[str, ...] = ()
    for instruction in dis.get_instructions(code):
        if instruction.offset > at:  # the offset may lie in the call's own cache
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
