"""While the recorder works, nobody watches: no function mode, no dispatch mode sees its own tensor operations."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

_no_functions: Any = torch._C.DisableTorchFunction
_dispatch_modes: Any = torch._C._len_torch_dispatch_stack


def Quiet() -> Any:  # noqa: N802  # a context, used as one
    """A context in which neither this recorder's mode nor anyone else's (selective checkpointing has one) is active."""
    return _Deaf() if _dispatch_modes() else _no_functions()


class _Deaf:
    """Dispatch modes off too."""

    __slots__ = ("_dispatch", "_function")

    def __enter__(self) -> None:
        self._function: Any = _no_functions()
        self._function.__enter__()
        self._dispatch: Any = _disable_current_modes()
        self._dispatch.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._dispatch.__exit__(*error)
        self._function.__exit__(*error)
