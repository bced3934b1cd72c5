"""Aliases and hooks in Paddle's graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
from paddle.autograd import PyLayer

_transpose = paddle._C_ops.transpose
_register_hook = paddle.Tensor.register_hook
Heard = Callable[[Any], None]


class _Share(PyLayer):  # type: ignore[misc]  # paddle is not followed by mypy
    """The same memory as a new tensor; tells what flows back through it and hands it on unchanged."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, heard: Heard) -> Any:
        ctx.heard = heard
        return _transpose(tensor, list(range(tensor.ndim)))  # Paddle takes the tensor itself for an in-place result

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        ctx.heard(gradient)
        return gradient


class PaddleGraph:
    """Makes aliases and listens to gradients. ``guard`` keeps errors of the recorder away from the pass."""

    def __init__(self) -> None:
        self.guard: Any = None

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, paddle.Tensor)

    def differentiable(self, tensor: Any) -> bool:
        return bool(tensor.is_floating_point() or tensor.is_complex())

    def can_alias(self, tensor: Any) -> bool:
        return not tensor.stop_gradient and bool(tensor.is_dense())

    def alias(self, tensor: Any, heard: Heard) -> Any:
        return _Share.apply(tensor, self._guarded(heard))

    def listen(self, tensor: Any, heard: Heard) -> bool:
        """The hook stays, silent once its crossing is done: removing one inside a hook crashes."""
        if tensor.stop_gradient:
            return False
        _register_hook(tensor, self._guarded(heard))
        return True

    def _guarded(self, heard: Heard) -> Heard:
        def call(gradient: Any) -> None:
            with self.guard():
                heard(gradient)

        return call
