"""Small networks that the recording tests train."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
from paddle import nn
from paddle.distributed.fleet.utils import recompute
from paddle.nn import functional


class Residual(nn.Layer):
    """Dropout, an in-place activation, an in-place sum, views, and a sublayer called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.3)
        self.norm = nn.BatchNorm1D(8)
        self.last = nn.Linear(8, 8)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        h = functional.relu_(self.first(x))
        h = self.drop(h)
        h = self.norm(h)
        h = h + x
        h = h.reshape([-1, 4, 2]).scale_(1.5).reshape([-1, 8])
        h = functional.relu(self.first(h))
        h = h + 1
        h[:, 0] = 0.0
        return self.last(h)


class Recomputed(nn.Layer):
    """A block that is computed again in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Linear(8, 8)
        self.block = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 8))

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        x = self.front(x)
        return x + recompute(self.block, x)


class Convolutional(nn.Layer):
    """A residual network for small pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2D(1, 4, 3, padding=1, bias_attr=False), nn.BatchNorm2D(4), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2D(4, 4, 3, padding=1, bias_attr=False), nn.BatchNorm2D(4))
        self.pool = nn.MaxPool2D(2)
        self.head = nn.Linear(4, 8)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        x = self.stem(x.reshape([-1, 1, 2, 4]).repeat_interleave(2, 2))
        out = self.pool(functional.relu(self.body(x) + x))
        return self.head(out.mean([2, 3]))


class _Doubled(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx: Any, x: paddle.Tensor) -> paddle.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: paddle.Tensor) -> paddle.Tensor:
        return gradient * 2


class Attending(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return functional.softmax(self.q(x) @ self.k(x).t(), axis=-1) @ _Doubled.apply(self.v(x))


class PostNorm(nn.Layer):
    """Four users of one tensor, three of them inside a layer: the order of their sum shows in the last bit."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.LayerList([Attending() for _ in range(3)])
        self.norm = nn.LayerNorm(8)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        for attention in self.attention:
            x = self.norm(x + attention(x))
        return x


class TwoUsers(nn.Layer):
    """One tensor that two layers use: the gradient of either is its own share."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Linear(8, 4)
        self.left = nn.Linear(4, 4)
        self.right = nn.Linear(4, 4)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        h = self.front(x)
        return self.left(h) + 2 * self.right(h)


def batch() -> paddle.Tensor:
    """The same numbers every time."""
    return paddle.to_tensor(np.random.default_rng(3).standard_normal((6, 8)).astype("float32"))
