"""Small networks that the recording tests train."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops


class Residual(nn.Cell):
    """Dropout, normalisation, views, a write to an element, and a cell called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Dense(8, 8)
        self.drop = nn.Dropout(p=0.3)
        self.norm = nn.LayerNorm((8,))
        self.last = nn.Dense(8, 8)

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        h = ops.relu(self.first(x))
        h = self.drop(h)
        h = self.norm(h)
        h = h + x
        h = h.reshape(-1, 4, 2).mul(1.5).reshape(-1, 8)
        h = ops.relu(self.first(h))
        return self.last(h + 1)


class Convolutional(nn.Cell):
    """A residual network for small pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.SequentialCell(nn.Conv2d(1, 4, 3, pad_mode="same"), nn.BatchNorm2d(4), nn.ReLU())
        self.body = nn.SequentialCell(nn.Conv2d(4, 4, 3, pad_mode="same"), nn.BatchNorm2d(4))
        self.head = nn.Dense(4, 8)

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        x = self.stem(x.reshape(-1, 1, 2, 4))
        return self.head(ops.relu(self.body(x) + x).mean((2, 3)))


class Attending(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Dense(8, 8), nn.Dense(8, 8), nn.Dense(8, 8)

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        return ops.matmul(ops.softmax(ops.matmul(self.q(x), self.k(x).T), -1), self.v(x))


class PostNorm(nn.Cell):
    """Four users of one tensor, three of them inside a cell: the order of their sum shows in the last bit."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.CellList([Attending() for _ in range(3)])
        self.norm = nn.LayerNorm((8,))

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        for attention in self.attention:
            x = self.norm(x + attention(x))
        return x


class TwoUsers(nn.Cell):
    """One tensor that two cells use: the gradient of either is its own share."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Dense(8, 4)
        self.left = nn.Dense(4, 4)
        self.right = nn.Dense(4, 4)

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        h = self.front(x)
        return self.left(h) + 2 * self.right(h)


class Jitted(nn.Cell):
    """A cell that runs as a compiled graph."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Dense(8, 8)

    @ms.jit
    def construct(self, x: Any) -> Any:
        return ops.relu(self.inner(x))


class WithJitted(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fast = Jitted()
        self.last = nn.Dense(8, 3)

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        return self.last(self.fast(x))


def seeded(make: Any) -> nn.Cell:
    """The same weights every time."""
    ms.set_seed(11)
    made = make()
    random = np.random.default_rng(12)
    for one in made.get_parameters():
        one.set_data(ms.Tensor((random.standard_normal(one.shape) * 0.4).astype(np.float32)))
    return made


def batch() -> ms.Tensor:
    """The same numbers every time."""
    return ms.Tensor(np.random.default_rng(3).standard_normal((6, 8)).astype(np.float32))
