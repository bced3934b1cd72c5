"""GPT-2 in PaddlePaddle: the names of its model suite, fused qkv, linear weights stored [in, out].

Runs where PaddlePaddle is installed; ``copy_from_numpy`` takes the state of a GPT2LMHeadModel as numpy arrays.
"""

from __future__ import annotations

import math

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F


class MultiHeadAttention(nn.Layer):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv_proj, self.out_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, mask):
        batch, length, width = x.shape
        packed = self.qkv_proj(x).reshape([batch, length, 3, self.heads, -1]).transpose([2, 0, 3, 1, 4])
        scores = paddle.matmul(packed[0], packed[1], transpose_y=True) / math.sqrt(width // self.heads) + mask
        context = paddle.matmul(F.softmax(scores, axis=-1), packed[2])
        return self.out_proj(context.transpose([0, 2, 1, 3]).reshape([batch, length, width]))


class TransformerDecoderLayer(nn.Layer):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.self_attn = MultiHeadAttention(width, heads)
        self.linear1, self.linear2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width, epsilon=1e-5), nn.LayerNorm(width, epsilon=1e-5)

    def forward(self, x, mask):
        x = x + self.self_attn(self.norm1(x), mask)
        return x + self.linear2(F.gelu(self.linear1(self.norm2(x)), approximate=True))


class TransformerDecoder(nn.Layer):
    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.LayerList([TransformerDecoderLayer(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width, epsilon=1e-5)

    def forward(self, x, mask):
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


class GPTEmbeddings(nn.Layer):
    def __init__(self, vocabulary: int, places: int, width: int) -> None:
        super().__init__()
        self.word_embeddings, self.position_embeddings = nn.Embedding(vocabulary, width), nn.Embedding(places, width)

    def forward(self, tokens):
        return self.word_embeddings(tokens) + self.position_embeddings(paddle.arange(tokens.shape[1]))


class GPTModel(nn.Layer):
    def __init__(self, vocabulary: int, places: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embeddings = GPTEmbeddings(vocabulary, places, width)
        self.decoder = TransformerDecoder(width, heads, layers)

    def forward(self, tokens):
        mask = paddle.triu(paddle.full([tokens.shape[1]] * 2, -1e9), 1)
        return self.decoder(self.embeddings(tokens), mask)


class GPTPaddle(nn.Layer):
    def __init__(self, vocabulary: int, places: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.gpt = GPTModel(vocabulary, places, width, heads, layers)
        self.lm_head = nn.Linear(width, vocabulary, bias_attr=False)

    def forward(self, tokens):
        return self.lm_head(self.gpt(tokens))

    def copy_from_numpy(self, state: dict[str, np.ndarray]) -> None:
        """Take the weights of a GPT2LMHeadModel; both store linear weights [in, out], but for the head."""
        _set(self.gpt.embeddings.word_embeddings.weight, state["transformer.wte.weight"])
        _set(self.gpt.embeddings.position_embeddings.weight, state["transformer.wpe.weight"])
        _set(self.lm_head.weight, state["lm_head.weight"].T)
        _layer(self.gpt.decoder.norm, state, "transformer.ln_f")
        for at, layer in enumerate(self.gpt.decoder.layers):
            for mine, theirs in (
                (layer.norm1, "ln_1"), (layer.norm2, "ln_2"), (layer.self_attn.qkv_proj, "attn.c_attn"),
                (layer.self_attn.out_proj, "attn.c_proj"), (layer.linear1, "mlp.c_fc"), (layer.linear2, "mlp.c_proj"),
            ):  # fmt: skip
                _layer(mine, state, f"transformer.h.{at}.{theirs}")


def _layer(layer: nn.Layer, state: dict[str, np.ndarray], name: str) -> None:
    _set(layer.weight, state[f"{name}.weight"])
    _set(layer.bias, state[f"{name}.bias"])


def _set(parameter: paddle.Tensor, value: np.ndarray) -> None:
    parameter.set_value(np.ascontiguousarray(value))
