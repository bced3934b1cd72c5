"""The same small training in three frameworks, recorded with what its optimizer sees and does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

WIDTHS = {"first": (12, 8), "norm": (12,), "last": (3, 12)}  # as PyTorch stores them
RATE, DECAY, MOST = 0.05, 0.25, 0.5


def _values(name: str, kind: str) -> np.ndarray:
    shape = WIDTHS[name] if kind == "weight" else WIDTHS[name][:1]
    random = np.random.default_rng([len(name), len(kind), shape[-1]])
    gain = 1.0 if (name, kind) == ("norm", "weight") else 0.0
    return (gain + 0.4 * random.standard_normal(shape)).astype(np.float32)


def _data() -> np.ndarray:
    return np.random.default_rng(7).standard_normal((6, 8)).astype(np.float32)


def _torch(rate: float, decay: float, most: float | None, _fault: str) -> tuple[Any, Callable[[], Any]]:
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = torch.nn.Linear(8, 12), torch.nn.LayerNorm(12), torch.nn.Linear(12, 3)

        def forward(self, x: Any) -> Any:
            h = torch.relu(self.norm(self.first(x)))
            return self.last(h + torch.matmul(torch.matmul(h, h.transpose(0, 1)), h) * 0.05)

    net = Net()
    for name, one in net.named_parameters():
        one.data.copy_(torch.from_numpy(_values(*name.split("."))))
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=decay)

    def step() -> None:
        optimizer.zero_grad()
        net(torch.from_numpy(_data())).pow(2).mean().backward()
        if most:
            torch.nn.utils.clip_grad_norm_(net.parameters(), most)
        optimizer.step()

    return net, step


def _paddle(rate: float, decay: float, most: float | None, fault: str) -> tuple[Any, Callable[[], Any]]:
    import paddle
    from paddle import nn

    eps = 1e-3 if fault == "eps" else 1e-5

    class Net(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(8, 12), nn.LayerNorm(12, eps), nn.Linear(12, 3)

        def forward(self, x: Any) -> Any:
            h = nn.functional.relu(self.norm(self.first(x)))
            return self.last(h + paddle.matmul(paddle.matmul(h, h, transpose_y=True), h) * 0.05)

    net = Net()
    for name, one in net.named_parameters():
        value = _values(*name.split(".")) * (name != fault)
        one.set_value(value.T.copy() if value.ndim == 2 else value)
    clip = nn.ClipGradByGlobalNorm(most) if most else None
    optimizer = paddle.optimizer.AdamW(rate, parameters=net.parameters(), weight_decay=decay, grad_clip=clip)

    def step() -> None:
        optimizer.clear_grad()
        net(paddle.to_tensor(_data())).pow(2).mean().backward()
        optimizer.step()

    return net, step


def _mindspore(rate: float, decay: float, most: float | None, fault: str) -> tuple[Any, Callable[[], Any]]:
    import mindspore as ms
    from mindspore import nn, ops
    from mindspore.experimental import optim

    eps = 1e-3 if fault == "eps" else 1e-5

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Dense(8, 12), nn.Dense(12, 3)
            self.norm = nn.LayerNorm((12,), epsilon=eps)

        def construct(self, x: Any) -> Any:
            h = ops.relu(self.norm(self.first(x)))
            return self.last(h + ops.matmul(ops.matmul(h, h.T), h) * 0.05)

    net = Net()
    for name, one in net.parameters_and_names():
        path, _, word = name.partition(".")
        one.set_data(ms.Tensor(_values(path, {"gamma": "weight", "beta": "bias"}.get(word, word)) * (name != fault)))
    optimizer = optim.AdamW(net.trainable_params(), lr=rate, weight_decay=decay)
    gradients = ms.grad(lambda x: ops.pow(net(x), 2).mean(), None, optimizer.parameters)

    def step() -> None:
        found = gradients(ms.Tensor(_data()))
        optimizer(ops.clip_by_global_norm(found, most) if most else found)

    return net, step


def parameters(framework: str, net: Any) -> dict[str, np.ndarray]:
    """By the names that the framework has for them."""
    named = net.parameters_and_names() if framework == "mindspore" else net.named_parameters()
    return {name: np.array(one.numpy() if framework == "paddle" else one.asnumpy()) for name, one in named}


def train(
    framework: str, folder: Path | None, *, rate: float = RATE, decay: float = DECAY, most: float | None = MOST,
    steps: int = 1, level: str = "mix", fault: str = "",
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:  # fmt: skip
    """Train, recorded into ``folder`` or not at all. Returns the parameters before and after (none of PyTorch's).

    ``fault``: ``eps`` of the normalisation, or the name of a parameter that is zero.
    """
    from importlib import import_module

    makers = {"torch": _torch, "paddle": _paddle, "mindspore": _mindspore}
    net, step = makers[framework](rate, decay, most, fault)
    before = {} if framework == "torch" else parameters(framework, net)
    record = import_module(f"twinprobe.{framework}").record
    with record(net, folder, level=level) if folder is not None else nullcontext():
        for _ in range(steps):
            step()
    return before, {} if framework == "torch" else parameters(framework, net)
