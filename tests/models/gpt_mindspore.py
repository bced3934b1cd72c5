"""GPT-2 in MindSpore: the names of its model zoo, Dense and LayerNorm with gamma and beta, a wrapper around the net.

Runs where MindSpore is installed; ``copy_from_numpy`` takes the state of a GPT2LMHeadModel as numpy arrays, so that the
two frameworks need not live in one process. Functions are those that have a CPU kernel.
"""

from __future__ import annotations

import math

import numpy as np
from mindspore import Parameter, Tensor, nn, ops


class Attention(nn.Cell):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.dense1, self.dense2, self.dense3 = (nn.Dense(width, width) for _ in range(3))
        self.projection = nn.Dense(width, width)

    def construct(self, x, mask):
        batch, length, width = x.shape
        parts = []
        for dense in (self.dense1, self.dense2, self.dense3):
            parts.append(ops.transpose(dense(x).reshape(batch, length, self.heads, -1), (0, 2, 1, 3)))
        scores = ops.matmul(parts[0], ops.transpose(parts[1], (0, 1, 3, 2))) / math.sqrt(width // self.heads) + mask
        context = ops.matmul(ops.softmax(scores, axis=-1), parts[2])
        return self.projection(ops.transpose(context, (0, 2, 1, 3)).reshape(batch, length, width))


class FeedForward(nn.Cell):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mapping, self.projection = nn.Dense(width, 4 * width), nn.Dense(4 * width, width)

    def construct(self, x):
        return self.projection(ops.gelu(self.mapping(x), approximate="tanh"))


class Block(nn.Cell):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.layernorm1, self.layernorm2 = (nn.LayerNorm((width,), epsilon=1e-5) for _ in range(2))
        self.attention, self.output = Attention(width, heads), FeedForward(width)

    def construct(self, x, mask):
        x = x + self.attention(self.layernorm1(x), mask)
        return x + self.output(self.layernorm2(x))


class EmbeddingLayer(nn.Cell):
    def __init__(self, vocabulary: int, places: int, width: int) -> None:
        super().__init__()
        self.word_embedding, self.position_embedding = nn.Embedding(vocabulary, width), nn.Embedding(places, width)

    def construct(self, tokens, places):
        return self.word_embedding(tokens) + self.position_embedding(places)


class Backbone(nn.Cell):
    def __init__(self, vocabulary: int, places: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embedding = EmbeddingLayer(vocabulary, places, width)
        self.blocks = nn.CellList([Block(width, heads) for _ in range(layers)])
        self.layernorm = nn.LayerNorm((width,), epsilon=1e-5)

    def construct(self, tokens, places, mask):
        x = self.embedding(tokens, places)
        for block in self.blocks:
            x = block(x, mask)
        return self.layernorm(x)


class GPT(nn.Cell):
    def __init__(self, vocabulary: int, places: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.backbone = Backbone(vocabulary, places, width, heads, layers)
        self.head = nn.Dense(width, vocabulary, has_bias=False)

    def construct(self, tokens, places, mask):
        return self.head(self.backbone(tokens, places, mask))


class GPTMindSpore(nn.Cell):
    """The net inside a wrapper, as training code has it; takes tokens as a numpy array."""

    def __init__(self, vocabulary: int, places: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.network = GPT(vocabulary, places, width, heads, layers)

    def construct(self, tokens, places, mask):
        return self.network(tokens, places, mask)

    def run(self, tokens: np.ndarray) -> Tensor:
        """One forward pass."""
        places = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
        mask = np.triu(np.full((tokens.shape[1],) * 2, -1e9, dtype=np.float32), 1)
        return self(Tensor(tokens.astype(np.int32)), Tensor(places.copy()), Tensor(mask))

    def copy_from_numpy(self, state: dict[str, np.ndarray]) -> None:
        """Take the weights of a GPT2LMHeadModel, whose linear layers are stored transposed."""
        backbone = self.network.backbone
        _set(backbone.embedding.word_embedding.embedding_table, state["transformer.wte.weight"])
        _set(backbone.embedding.position_embedding.embedding_table, state["transformer.wpe.weight"])
        _set(self.network.head.weight, state["lm_head.weight"])
        _norm(backbone.layernorm, state, "transformer.ln_f")
        for at, block in enumerate(backbone.blocks):
            source = f"transformer.h.{at}"
            _norm(block.layernorm1, state, f"{source}.ln_1")
            _norm(block.layernorm2, state, f"{source}.ln_2")
            weights = np.split(state[f"{source}.attn.c_attn.weight"], 3, axis=1)
            biases = np.split(state[f"{source}.attn.c_attn.bias"], 3)
            layers = block.attention.dense1, block.attention.dense2, block.attention.dense3
            for layer, weight, bias in zip(layers, weights, biases, strict=True):
                _set(layer.weight, weight.T)
                _set(layer.bias, bias)
            for layer, name in (
                (block.attention.projection, "attn.c_proj"),
                (block.output.mapping, "mlp.c_fc"),
                (block.output.projection, "mlp.c_proj"),
            ):
                _set(layer.weight, state[f"{source}.{name}.weight"].T)
                _set(layer.bias, state[f"{source}.{name}.bias"])


def _norm(layer: nn.LayerNorm, state: dict[str, np.ndarray], name: str) -> None:
    _set(layer.gamma, state[f"{name}.weight"])
    _set(layer.beta, state[f"{name}.bias"])


def _set(parameter: Parameter, value: np.ndarray) -> None:
    parameter.set_data(Tensor(np.ascontiguousarray(value)))
