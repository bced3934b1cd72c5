"""PrecisionDebugger, record, seeds and the small helpers, for Paddle."""

from __future__ import annotations

from typing import Any

import paddle

from twinprobe.record.eager.recorder import EagerRecorder
from twinprobe.record.eager.tools import EagerDebugger, Verbs
from twinprobe.record.paddle.adapter import make_recorder
from twinprobe.record.verbs.tools import replace_dropout, seed_python

_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


class PrecisionDebugger(EagerDebugger):
    """Records what a Paddle program computes, between start() and stop(), step by step."""

    @staticmethod
    def make_recorder(config: Any) -> EagerRecorder:
        return make_recorder(config)


_verbs = Verbs(PrecisionDebugger, make_recorder)
record, save = _verbs.record, _verbs.save
module_dump, module_dump_end = _verbs.module_dump, _verbs.module_dump_end
register_custom_api = _verbs.register_custom_api


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = True) -> None:
    """Seed Python, NumPy and Paddle; ``mode`` asks for deterministic algorithms, ``rm_dropout`` makes dropout pass
    its input on."""
    seed_python(seed)
    paddle.seed(seed)
    if mode:
        wanted = ("FLAGS_cudnn_deterministic", "FLAGS_embedding_deterministic")
        known = {name: 1 for name in wanted if paddle.base.core.globals().is_public(name)}
        paddle.set_flags(known)
    if rm_dropout:
        replace_dropout(paddle.nn.functional, _DROPOUTS)
