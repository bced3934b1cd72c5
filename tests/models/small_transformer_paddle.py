"""The small transformer in PaddlePaddle, with names of its own."""

from __future__ import annotations

import math

import paddle
from paddle import nn
from paddle.nn import functional

from models import small_weights as w


class Attention(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(w.WIDTH, 3 * w.WIDTH)
        self.out_proj = nn.Linear(w.WIDTH, w.WIDTH)

    def forward(self, x: paddle.Tensor, mask: paddle.Tensor) -> paddle.Tensor:
        shape = [w.BATCH, w.TOKENS, w.HEADS, w.WIDTH // w.HEADS]
        q, k, v = paddle.split(self.qkv(x), 3, axis=-1)
        q, k, v = (one.reshape(shape).transpose([0, 2, 1, 3]) for one in (q, k, v))
        scores = paddle.matmul(q, k, transpose_y=True) * (1 / math.sqrt(w.WIDTH // w.HEADS))
        found = paddle.matmul(functional.softmax(scores + mask, axis=-1), v)
        return self.out_proj(found.transpose([0, 2, 1, 3]).reshape([w.BATCH, w.TOKENS, w.WIDTH]))


class FeedForward(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(w.WIDTH, w.INNER)
        self.down = nn.Linear(w.INNER, w.WIDTH)
        self.faulty = False  # a wrong activation, for tests that must find it

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        h = self.up(x)
        return self.down(functional.relu(h) if self.faulty else functional.silu(h))


class Block(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(w.WIDTH, epsilon=w.EPSILON)
        self.attn = Attention()
        self.norm2 = nn.LayerNorm(w.WIDTH, epsilon=w.EPSILON)
        self.ffn = FeedForward()

    def forward(self, x: paddle.Tensor, mask: paddle.Tensor) -> paddle.Tensor:
        x = x + self.attn(self.norm1(x), mask)
        return x + self.ffn(self.norm2(x))


class Transformer(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(w.VOCABULARY, w.WIDTH)
        self.blocks = nn.LayerList([Block() for _ in range(w.LAYERS)])
        self.norm = nn.LayerNorm(w.WIDTH, epsilon=w.EPSILON)
        self.head = nn.Linear(w.WIDTH, w.VOCABULARY)

    def forward(self, tokens: paddle.Tensor, mask: paddle.Tensor) -> paddle.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


NAMES = {
    "layers": "blocks",
    "norm_1": "norm1",
    "norm_2": "norm2",
    "qkv": "attn.qkv",
    "out": "attn.out_proj",
    "up": "ffn.up",
    "down": "ffn.down",
}
LINEAR = ("qkv", "out", "up", "down", "head")


def model() -> Transformer:
    """The model with the shared weights; Linear weights are [in, out] here."""
    made = Transformer()
    own = dict(made.named_parameters())
    for path, array in w.weights().items():
        parts = path.split(".")
        turned = array.T if parts[-2] in LINEAR and parts[-1] == "weight" else array
        own[".".join(NAMES.get(part, part) for part in parts)].set_value(turned.copy())
    return made


def train_step(net: nn.Layer) -> paddle.Tensor:
    """One forward and one backward pass; returns the loss."""
    tokens, labels, mask = (paddle.to_tensor(one) for one in w.batch())
    logits = net(tokens.astype("int32"), mask)
    loss = functional.cross_entropy(logits.reshape([-1, w.VOCABULARY]), labels.reshape([-1]))
    loss.backward()
    return loss
