"""Launching cheaply: launch tables that are used again, and compiled kernels called without Triton's dispatch."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_LINES = 128
_WORDS = MOST_LINES * 3


class Table:
    """The lines of one launch: written to pinned memory, copied to the device by the stream."""

    __slots__ = ("_pinned", "_view", "device")

    def __init__(self, torch: Any, device: Any) -> None:
        self._pinned = torch.zeros(_WORDS, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._view: NDArray[np.int64] = self._pinned.numpy()
        self.device = torch.empty(_WORDS, dtype=torch.int64, device=device)

    def send(self, lines: list[int]) -> None:
        self._view[: len(lines)] = lines
        self.device.copy_(self._pinned, non_blocking=True)


class Tables:
    """Tables of one stream. One that was sent is used again only after the results of its launch have come."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._device = device
        self._free: deque[Table] = deque()
        self._used: list[Table] = []

    def send(self, lines: list[int]) -> Any:
        """Copy the lines on the current stream; returns the device's table."""
        table = self._free.popleft() if self._free else Table(self._torch, self._device)
        self._used.append(table)
        table.send(lines)
        return table.device

    def end_of_stretch(self) -> Callable[[], None]:
        """What to call, on any thread, when everything launched so far is known to be done."""
        used, self._used = self._used, []
        return lambda: self._free.extend(used)


class Kernel:
    """One Triton function with its constants. The first launch compiles; later ones call the compiled kernel itself,
    which takes bare addresses and costs a tenth of Triton's own dispatch."""

    def __init__(
        self, function: Any, more: tuple[Any, ...], constants: dict[str, Any], options: dict[str, Any]
    ) -> None:
        self._function = function
        self._more = more
        self._constants = constants
        self._options = options
        self._tail = (*(one.data_ptr() for one in more), *constants.values())
        self._compiled: Any = None
        self._plain = False

    def __call__(self, grid: tuple[int, int, int], stream: int, table: Any, slots: Any) -> None:
        """Queue the kernel on the current stream. All buffers start at multiples of 16, as they did when compiling."""
        if self._compiled is not None:
            try:
                self._compiled[grid](table.data_ptr(), slots.data_ptr(), *self._tail, stream=stream)
                return
            except (TypeError, AttributeError, ValueError, KeyError) as error:  # another Triton with another launcher
                logging.getLogger(__name__).info("Triton's compiled kernels are called its own way: %s", error)
                self._compiled, self._plain = None, True
        done = self._function[grid](table, slots, *self._more, **self._constants, **self._options)
        if not self._plain:
            done = done.result() if hasattr(done, "result") else done
            self._compiled = done if hasattr(done, "__getitem__") else None
