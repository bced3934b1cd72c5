"""Single-point saves in PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from twinprobe.record.torch.quiet import Quiet
from twinprobe.record.verbs.single_points import SinglePoints


class TorchPoints(SinglePoints):
    """One value under a name of the user's choosing, and its gradient when it comes."""

    @contextmanager
    def working(self, doing: str) -> Iterator[None]:
        try:
            with Quiet():
                yield
        except Exception as error:
            self._recorder.trouble(doing, error)

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def gets_gradient(self, tensor: Any) -> bool:
        return bool(tensor.requires_grad and torch.is_grad_enabled())

    def _gradient(self, gradient: Any, name: str) -> None:
        with torch.no_grad():
            super()._gradient(gradient, name)
