"""Which engine computes: numpy at first, compiled kernels as soon as the work is worth loading them."""

from __future__ import annotations

import logging
from threading import Lock

from twinprobe.measure.blocks import Engine
from twinprobe.measure.plain import PlainEngine

# Up to about this many bytes (both sides) numpy is as quick as fetching the kernels is, or compiling them once.
KERNEL_BYTES = 64 << 20

PLAIN = PlainEngine()


class _Choice:
    """Counts the bytes measured by numpy and changes over to the kernels once those would have paid."""

    def __init__(self) -> None:
        self._kernels: Engine | None = None
        self._unusable = False
        self._measured = 0
        self._lock = Lock()

    def engine(self, upcoming: int) -> Engine:
        if self._kernels is not None:
            return self._kernels
        if self._unusable:
            return PLAIN
        with self._lock:
            self._measured += upcoming
            if self._measured >= KERNEL_BYTES:
                self._load()
        return self._kernels or PLAIN

    def _load(self) -> None:
        if self._kernels is not None or self._unusable:
            return
        try:
            from twinprobe.measure.kernels import KernelEngine

            self._kernels = KernelEngine()
        except Exception as problem:  # numba raises many kinds where it does not fit the installed numpy
            self._unusable = True
            logging.getLogger(__name__).warning("numba cannot be used, measuring with numpy: %s", problem)


_choice = _Choice()


def engine_for(upcoming_bytes: int) -> Engine:
    """The engine for the next piece of work of this many bytes."""
    return _choice.engine(upcoming_bytes)


def engine_of(total_bytes: int) -> Engine:
    """The engine for work of this size in all, whatever was measured before: equal work gives equal digits."""
    return _choice.engine(total_bytes) if worth_kernels(total_bytes) else PLAIN


def worth_kernels(total_bytes: int) -> bool:
    """Whether this much work gains more from the kernels than loading them costs."""
    return total_bytes >= KERNEL_BYTES


def announce(total_bytes: int) -> None:
    """Say how much work lies ahead, so that a large run has the kernels from its first tensor."""
    if worth_kernels(total_bytes):
        _choice.engine(total_bytes)
