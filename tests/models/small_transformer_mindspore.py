"""The small transformer in MindSpore, with names of its own."""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
from mindspore import nn, ops

from models import small_weights as w


class Attention(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.qkv_proj = nn.Dense(w.WIDTH, 3 * w.WIDTH)
        self.out_proj = nn.Dense(w.WIDTH, w.WIDTH)

    def construct(self, x: ms.Tensor, mask: ms.Tensor) -> ms.Tensor:
        shape = (w.BATCH, w.TOKENS, w.HEADS, w.WIDTH // w.HEADS)
        q, k, v = ops.split(self.qkv_proj(x), w.WIDTH, axis=-1)
        q, k, v = (one.reshape(shape).permute(0, 2, 1, 3) for one in (q, k, v))
        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) * (1 / math.sqrt(w.WIDTH // w.HEADS))
        found = ops.matmul(ops.softmax(scores + mask, axis=-1), v)
        return self.out_proj(found.permute(0, 2, 1, 3).reshape(w.BATCH, w.TOKENS, w.WIDTH))


class FeedForward(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dense_in = nn.Dense(w.WIDTH, w.INNER)
        self.dense_out = nn.Dense(w.INNER, w.WIDTH)
        self.faulty = False  # a wrong activation, for tests that must find it

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        h = self.dense_in(x)
        return self.dense_out(ops.relu(h) if self.faulty else ms.mint.nn.functional.silu(h))


class Layer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.input_norm = nn.LayerNorm((w.WIDTH,), epsilon=w.EPSILON)
        self.attention = Attention()
        self.post_norm = nn.LayerNorm((w.WIDTH,), epsilon=w.EPSILON)
        self.feed_forward = FeedForward()

    def construct(self, x: ms.Tensor, mask: ms.Tensor) -> ms.Tensor:
        x = x + self.attention(self.input_norm(x), mask)
        return x + self.feed_forward(self.post_norm(x))


class Transformer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.word_embedding = nn.Embedding(w.VOCABULARY, w.WIDTH)
        self.layers = nn.CellList([Layer() for _ in range(w.LAYERS)])
        self.final_norm = nn.LayerNorm((w.WIDTH,), epsilon=w.EPSILON)
        self.output = nn.Dense(w.WIDTH, w.VOCABULARY)

    def construct(self, tokens: ms.Tensor, mask: ms.Tensor) -> ms.Tensor:
        x = self.word_embedding(tokens)
        for layer in self.layers:
            x = layer(x, mask)
        return self.output(self.final_norm(x))


NAMES = {
    "embedding": "word_embedding",
    "norm_1": "input_norm",
    "norm_2": "post_norm",
    "qkv": "attention.qkv_proj",
    "out": "attention.out_proj",
    "up": "feed_forward.dense_in",
    "down": "feed_forward.dense_out",
    "norm": "final_norm",
    "head": "output",
}
OWN_WORDS = {"embedding": {"weight": "embedding_table"}, "norm": {"weight": "gamma", "bias": "beta"}}


def model() -> Transformer:
    """The model with the shared weights."""
    made = Transformer()
    own = dict(made.parameters_and_names())
    for path, array in w.weights().items():
        *front, last = path.split(".")
        word = OWN_WORDS.get(front[-1].partition("_")[0], {}).get(last, last)
        name = ".".join([*(NAMES.get(part, part) for part in front), word])
        own[name].set_data(ms.Tensor(array))
    return made


def loss_of(net: nn.Cell) -> ms.Tensor:
    """The forward pass."""
    tokens, labels, mask = w.batch()
    logits = net(ms.Tensor(tokens.astype("int32")), ms.Tensor(mask))
    return ops.cross_entropy(logits.reshape(-1, w.VOCABULARY), ms.Tensor(labels.reshape(-1).astype("int32")))


def train_step(net: nn.Cell) -> tuple[ms.Tensor, Any]:
    """One forward and one backward pass; returns the loss and the gradients."""
    return ms.value_and_grad(lambda: loss_of(net), None, net.trainable_params())()
