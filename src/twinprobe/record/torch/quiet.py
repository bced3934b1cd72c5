"""While the recorder works, nobody watches: no function mode, no dispatch mode sees its own tensor operations."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes


class Quiet:
    """A context in which neither this recorder's mode nor anyone else's (selective checkpointing has one) is active."""

    __slots__ = ("_dispatch", "_function")

    def __enter__(self) -> None:
        self._function: Any = torch._C.DisableTorchFunction()
        self._function.__enter__()
        self._dispatch: Any = None
        if torch._C._len_torch_dispatch_stack():
            self._dispatch = _disable_current_modes()
            self._dispatch.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self._dispatch is not None:
            self._dispatch.__exit__(*error)
        self._function.__exit__(*error)
