"""What an optimizer of MindSpore saw and did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shared_updates import *  # noqa: F403

from twinprobe.mindspore import record


def test_a_parameter_of_the_model_itself_has_its_name(tmp_path: Path) -> None:
    import mindspore as ms
    from mindspore import nn

    class Scaled(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.scale = ms.Parameter(ms.Tensor([2.0, 3.0]))

        def construct(self, x: Any) -> Any:
            return (self.scale * x).sum()

    net = Scaled()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    with record(net, tmp_path, level="L0"):
        optimizer(ms.grad(net, None, optimizer.parameters)(ms.Tensor([1.0, 1.0])))
    assert next(iter(updates(tmp_path))) == "Optimizer.scale.SGD.0.forward"  # noqa: F405
