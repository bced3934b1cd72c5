"""One small training in each framework, with equal weights and data: watched, its series are the same in all."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

BATCHES = np.random.default_rng(0).integers(0, 12, (8, 4, 6))
RATE, CHANGED = 0.1, 0.4
# By PyTorch's names, and with PyTorch's layouts.
SHAPES = {
    "embed.weight": (12, 8), "blocks.0.weight": (8, 8), "blocks.0.bias": (8,), "blocks.1.weight": (8, 8),
    "blocks.1.bias": (8,), "norm.weight": (8,), "norm.bias": (8,), "head.weight": (12, 8), "head.bias": (12,),
}  # fmt: skip


def weights() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(1)
    return {name: generator.normal(0, 0.3, shape).astype(np.float32) for name, shape in SHAPES.items()}


def train(
    framework: str, folder: Path | None, *, steps: int = 6, change: int | None = None, **options: Any
) -> list[np.ndarray]:
    """Train, watched if there is a folder, with another learning rate at one step; gives the parameters at the end."""
    return {"torch": _torch, "paddle": _paddle, "mindspore": _mindspore}[framework](folder, steps, change, options)


def _torch(folder: Path | None, steps: int, change: int | None, options: Any) -> list[np.ndarray]:
    import torch

    from twinprobe.torch import record

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(12, 8)
            self.blocks = torch.nn.ModuleList([torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)])
            self.norm, self.head = torch.nn.LayerNorm(8), torch.nn.Linear(8, 12)

        def forward(self, tokens: Any) -> Any:
            x = self.embed(tokens)
            for block in self.blocks:
                x = x + torch.relu(block(x))
            return self.head(self.norm(x))

    network = Network()
    network.load_state_dict({name: torch.from_numpy(value) for name, value in weights().items()})
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
    with nullcontext() if folder is None else record(network, folder, level="watch", **options):
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = CHANGED if step == change else RATE
            tokens = torch.from_numpy(BATCHES[step])
            torch.nn.functional.cross_entropy(network(tokens).reshape(-1, 12), tokens.reshape(-1)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return [one.detach().numpy().copy() for one in network.parameters()]


def _paddle(folder: Path | None, steps: int, change: int | None, options: Any) -> list[np.ndarray]:
    import paddle
    from paddle import nn

    from twinprobe.paddle import record

    class Network(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(12, 8)
            self.blocks = nn.LayerList([nn.Linear(8, 8), nn.Linear(8, 8)])
            self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 12)

        def forward(self, tokens: Any) -> Any:
            x = self.embed(tokens)
            for block in self.blocks:
                x = x + nn.functional.relu(block(x))
            return self.head(self.norm(x))

    network = Network()
    given = weights()
    for name, one in network.named_parameters():
        turned = name.endswith("weight") and name.startswith(("blocks", "head"))
        one.set_value(given[name].T if turned else given[name])
    optimizer = paddle.optimizer.SGD(learning_rate=RATE, parameters=network.parameters())
    with nullcontext() if folder is None else record(network, folder, level="watch", **options):
        for step in range(steps):
            optimizer.set_lr(CHANGED if step == change else RATE)
            tokens = paddle.to_tensor(BATCHES[step])
            nn.functional.cross_entropy(network(tokens).reshape([-1, 12]), tokens.reshape([-1])).backward()
            optimizer.step()
            optimizer.clear_grad()
            with paddle.no_grad():
                network(tokens)  # an evaluation, which is no part of a step
    return [one.numpy().copy() for one in network.parameters()]


def _mindspore(folder: Path | None, steps: int, change: int | None, options: Any) -> list[np.ndarray]:
    import mindspore as ms
    from mindspore import nn, ops

    from twinprobe.mindspore import record

    class Network(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(12, 8)
            self.blocks = nn.CellList([nn.Dense(8, 8), nn.Dense(8, 8)])
            self.norm, self.head = nn.LayerNorm((8,), epsilon=1e-5), nn.Dense(8, 12)

        def construct(self, tokens: Any) -> Any:
            x = self.embed(tokens)
            for block in self.blocks:
                x = x + ops.relu(block(x))
            return self.head(self.norm(x))

    network = Network()
    words = {"embedding_table": "weight", "gamma": "weight", "beta": "bias"}
    given = weights()
    for name, one in network.parameters_and_names():
        module, _, last = name.rpartition(".")
        one.set_data(ms.Tensor(given[f"{module}.{words.get(last, last)}"]))
    rates = [CHANGED if step == change else RATE for step in range(steps)]
    optimizer = nn.SGD(network.trainable_params(), learning_rate=rates)

    def loss_of(tokens: Any) -> Any:
        return ops.cross_entropy(network(tokens).reshape(-1, 12), tokens.reshape(-1))

    differentiate = ms.value_and_grad(loss_of, None, optimizer.parameters)
    with nullcontext() if folder is None else record(network, folder, level="watch", **options):
        for step in range(steps):
            tokens = ms.Tensor(BATCHES[step].astype(np.int32))
            _, gradients = differentiate(tokens)
            optimizer(gradients)
            network(tokens)  # an evaluation, which is no part of a step
    return [one.asnumpy().copy() for one in network.trainable_params()]


def train_with_two_optimizers(framework: str, folder: Path, *, change: int | None = None, kept: float = 0.9) -> None:
    """A convolution's norm in training, and an optimizer each for matrices and vectors; the second one's rate changes
    at one step. ``kept`` is the share of the norm's running statistics that a step keeps."""
    given = np.random.default_rng(2).normal(0, 1, (5, 8, 6)).astype(np.float32)
    {"torch": _two_torch, "paddle": _two_paddle, "mindspore": _two_mindspore}[framework](folder, given, change, kept)


def _first_weights() -> list[np.ndarray]:
    generator = np.random.default_rng(3)
    return [generator.normal(0, 0.3, shape).astype(np.float32) for shape in ((6, 6), (6,), (6,), (6,), (4, 6), (4,))]


def _two_torch(folder: Path, given: np.ndarray, change: int | None, kept: float) -> None:
    import torch
    from torch import nn

    from twinprobe.torch import record

    net = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, momentum=1 - kept), nn.Linear(6, 4))
    for one, value in zip(net.parameters(), _first_weights(), strict=True):
        one.data.copy_(torch.from_numpy(value))
    optimizers = [
        torch.optim.SGD([one for one in net.parameters() if (one.dim() > 1) == wide], lr=RATE) for wide in (1, 0)
    ]
    with record(net, folder, level="watch"):
        for step, batch in enumerate(given):
            optimizers[1].param_groups[0]["lr"] = CHANGED if step == change else RATE
            net(torch.from_numpy(batch)).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()


def _two_paddle(folder: Path, given: np.ndarray, change: int | None, kept: float) -> None:
    import paddle
    from paddle import nn

    from twinprobe.paddle import record

    net = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1D(6, momentum=kept), nn.Linear(6, 4))
    for one, value in zip([one for one in net.parameters() if one.trainable], _first_weights(), strict=True):
        one.set_value(value.T)
    optimizers = [
        paddle.optimizer.SGD(RATE, [one for one in net.parameters() if one.trainable and (one.ndim > 1) == wide])
        for wide in (1, 0)
    ]
    with record(net, folder, level="watch"):
        for step, batch in enumerate(given):
            optimizers[1].set_lr(CHANGED if step == change else RATE)
            net(paddle.to_tensor(batch)).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.clear_grad()


def _two_mindspore(folder: Path, given: np.ndarray, change: int | None, kept: float) -> None:
    import mindspore as ms
    from mindspore import nn

    from twinprobe.mindspore import record

    net = nn.SequentialCell(nn.Dense(6, 6), nn.BatchNorm1d(6, momentum=kept), nn.Dense(6, 4)).set_train()
    trained = list(net.trainable_params())
    for one, value in zip(trained, _first_weights(), strict=True):
        one.set_data(ms.Tensor(value))
    rates = [CHANGED if step == change else RATE for step in range(len(given))]
    held = [[one for one in trained if (one.ndim > 1) == wide] for wide in (1, 0)]
    optimizers = [nn.SGD(held[0], RATE), nn.SGD(held[1], rates)]
    differentiate = ms.value_and_grad(lambda x: net(x).square().mean(), None, trained)
    with record(net, folder, level="watch"):
        for batch in given:
            _, gradients = differentiate(ms.Tensor(batch))
            for wide, optimizer in zip((1, 0), optimizers, strict=True):
                optimizer(tuple(grad for one, grad in zip(trained, gradients, strict=True) if (one.ndim > 1) == wide))
