"""From a loop in Python to the machine code of this processor."""

from __future__ import annotations

from collections.abc import Callable, Collection
from inspect import signature
from typing import Any

from llvmlite import binding  # type: ignore[import-untyped]
from numba import cfunc, config, types

from twinprobe._measure.loops.elements import CHECKSUMS
from twinprobe._measure.loops.inference import INFERENCE
from twinprobe._measure.loops.pairs import GAPS, PAIRS, TENSORS
from twinprobe._measure.loops.sketches import SKETCHES

LOOPS: dict[str, Callable[..., None]] = {**PAIRS, **TENSORS, **GAPS, **SKETCHES, **INFERENCE, **CHECKSUMS}


def machine_code_of(name: str, machine: Any, library: Collection[str]) -> bytes:
    """The object code of a loop for a processor. It needs nothing of numba, and calls nothing but ``library``."""
    if config.DISABLE_JIT:
        raise RuntimeError("numba is switched off")
    function = LOOPS[name]
    compiled = cfunc(types.void(*[types.int64] * len(signature(function).parameters)), error_model="numpy")(function)
    module = binding.parse_assembly(compiled.inspect_llvm())
    # The loop itself, without the wrapper that would print its exceptions.
    entry = module.get_function(compiled.native_name.removeprefix("cfunc."))
    _leave_only(module, entry, library)
    entry.name = name
    code: bytes = machine.emit_object(module)
    return code


def _leave_only(module: Any, entry: Any, library: Collection[str]) -> None:
    """Take out what the entry does not call; RuntimeError if it calls what only numba has."""
    functions = {function.name: function for function in module.functions}
    called, ahead = {entry.name}, [entry]
    while ahead:
        text = str(ahead.pop()).replace('"', "")
        for name, function in functions.items():
            if name not in called and f"@{name}(" in text:
                called.add(name)
                ahead.append(function)
    for name, function in functions.items():
        if function.is_declaration:
            if name in called and not name.startswith("llvm.") and name not in library:
                raise RuntimeError(f"{entry.name} calls {name}")
        elif function != entry:
            function.linkage = "internal" if name in called else "available_externally"
