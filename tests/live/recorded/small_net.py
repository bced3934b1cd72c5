"""One small network in Paddle and in MindSpore, and the recordings of it that lie beside this file.

Paddle and MindSpore ask for different versions of NumPy and so cannot share an environment here: each is compared with
a recording of the other. To make the recordings anew, run this file once where each framework is installed:

    python tests/live/recorded/small_net.py paddle
    python tests/live/recorded/small_net.py mindspore
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
RUNS = {name: HERE / f"{name}_run" for name in ("paddle", "mindspore")}
X = np.random.default_rng(5).standard_normal((2, 6)).astype(np.float32)

Change = Callable[[Any], Any]


def paddle_net(change: Change | None = None) -> Any:
    """The network; ``change`` comes in before the last layer."""
    import paddle

    class Net(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.first = paddle.nn.Linear(6, 4)
            self.act = paddle.nn.ReLU()
            self.norm = paddle.nn.LayerNorm(4)
            self.last = paddle.nn.Linear(4, 3)

        def forward(self, x: Any) -> Any:
            h = self.norm(self.act(self.first(x)))
            return self.last(change(h) if change is not None else h)

    return Net()


def mindspore_net(change: Change | None = None) -> Any:
    """The same network."""
    from mindspore import nn

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Dense(6, 4)
            self.act = nn.ReLU()
            self.norm = nn.LayerNorm((4,), epsilon=1e-5)
            self.last = nn.Dense(4, 3)

        def construct(self, x: Any) -> Any:
            h = self.norm(self.act(self.first(x)))
            return self.last(change(h) if change is not None else h)

    return Net()


def _record_paddle(folder: Path) -> None:
    import paddle

    from twinprobe.paddle import record

    paddle.seed(3)
    net = paddle_net()
    with record(net, folder, level="L0", task="tensor"):
        net(paddle.to_tensor(X)).mean().backward()


def _record_mindspore(folder: Path) -> None:
    import mindspore as ms

    from twinprobe.mindspore import record

    ms.set_seed(3)
    net, x = mindspore_net(), ms.Tensor(X)
    with record(net, folder, level="L0", task="tensor"):
        ms.value_and_grad(lambda: net(x).mean(), None, net.trainable_params())()


def _without_this_machine(folder: Path) -> None:
    """What tells of the place where it was made is left out."""
    for file in folder.rglob("stack.json"):
        file.unlink()
    for file in folder.rglob("dump.json"):
        text = re.sub(
            r'"dump_data_dir": "[^"]*"', '"dump_data_dir": "dump_tensor_data"', file.read_text(encoding="utf-8")
        )
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    name = sys.argv[1]
    shutil.rmtree(RUNS[name], ignore_errors=True)
    {"paddle": _record_paddle, "mindspore": _record_mindspore}[name](RUNS[name])
    for made in RUNS[name].glob("step0/proc*"):
        made.rename(made.with_name("proc0"))
    _without_this_machine(RUNS[name])
