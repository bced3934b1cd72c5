"""PrecisionDebugger, record, seeds and the small functions beside them, for PyTorch."""

from __future__ import annotations

import os

import torch

from twinprobe._record.debugger import Debugger, Verbs, replace_dropout, seed_python
from twinprobe._record.torch.recorder import TorchRecorder


class PrecisionDebugger(Debugger):
    """Records what a PyTorch program computes, between start() and stop(), step by step.

    Configured by ``config.json``, by keyword arguments, or both (the arguments win). One per process: creating it again
    returns the same one.
    """

    recorder_class = TorchRecorder


_verbs = Verbs(PrecisionDebugger)
record, save = _verbs.record, _verbs.save
module_dump, module_dump_end = _verbs.module_dump, _verbs.module_dump_end
register_custom_api = _verbs.register_custom_api

_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = True) -> None:
    """Seed Python, NumPy and PyTorch; ``mode`` asks for deterministic algorithms, ``rm_dropout`` makes dropout pass
    its input on."""
    seed_python(seed)
    torch.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
    if mode:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
    if rm_dropout:
        replace_dropout(torch.nn.functional, _DROPOUTS)
