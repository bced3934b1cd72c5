"""What runs inside an optimizer's step or gradient clipping, and what an optimizer does to memory."""

from __future__ import annotations

from types import FrameType
from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

if TYPE_CHECKING:
    from twinprobe.record.torch.recorder import TorchRecorder

OPTIMIZER = "optimizer"
CLIP_GRAD = "clip_grad"


class OptimizerScope:
    """Knows whether an optimizer is at work. Parameters change there, so rows are forgotten afterwards."""

    def __init__(self, recorder: TorchRecorder) -> None:
        self._recorder = recorder
        self._handles: list[Any] = []
        self._inside = 0

    def attach(self) -> None:
        self._handles = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._inside = 0

    def loose_parent(self, frame: FrameType | None = None) -> str | None:
        """The parent of a call outside every module: the optimizer, clipping, a recomputing backward, or none."""
        if self._inside:
            self._recorder.engine.link(OPTIMIZER, None)
            return OPTIMIZER
        if frame is not None and frame.f_code.co_filename.endswith("clip_grad.py"):
            self._recorder.engine.link(CLIP_GRAD, None)
            return CLIP_GRAD
        return self._recorder.graph.enclosing()

    def _before(self, *_: Any) -> None:
        self._inside += 1
        self._recorder.safely("measuring before an optimizer's step", self._recorder.book.settle)

    def _after(self, *_: Any) -> None:
        self._inside = max(0, self._inside - 1)
        self._recorder.safely("measuring after an optimizer's step", self._recorder.book.forget)
