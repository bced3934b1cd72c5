"""The processor that compiled loops are made for and run on, and what they may call there."""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import binding  # type: ignore[import-untyped]

# What loops may call of the C library. Code that needs anything else is not kept: loading it would end the process.
LIBRARY = ("exp", "expm1", "memcpy", "memset", "sqrt")


def host_machine() -> Any:
    """The processor that code is made for and runs on."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=features(), opt=3, reloc="static", codemodel="jitdefault", jit=True
    )


@cache
def features() -> str:
    """What it can do beyond its kind."""
    try:
        features: str = binding.get_host_cpu_features().flatten()
    except RuntimeError:  # llvmlite cannot tell on some processors
        return ""
    return features
