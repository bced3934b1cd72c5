"""PrecisionDebugger: the interface that training scripts already use."""

from __future__ import annotations

from typing import Any

from twinprobe.record.torch.recorder import TorchRecorder
from twinprobe.record.torch.single_points import TorchPoints
from twinprobe.record.verbs.debugger import Debugger


class PrecisionDebugger(Debugger):
    """Records what a PyTorch program computes, between start() and stop(), step by step.

    Configured by ``config.json``, by keyword arguments, or both (the arguments win). One per process: creating it again
    returns the same one.
    """

    recorder: TorchRecorder

    @staticmethod
    def make_recorder(config: Any) -> TorchRecorder:
        return TorchRecorder(config)

    @staticmethod
    def make_points(recorder: Any) -> TorchPoints:
        return TorchPoints(recorder)

    def watching(self) -> bool:
        """Whether anything is being watched now."""
        return self.recorder.mode.attached or self.recorder.modules.attached
