"""ERNIE in PaddlePaddle, on the framework's own TransformerEncoder; the other side is transformers' ErnieModel.

Runs where PaddlePaddle is installed; tests/data/held_out/remake.py records it.
"""

from __future__ import annotations

import numpy as np
import paddle
from paddle import nn

WIDTH, HEADS, INNER, VOCABULARY, PLACES, LAYERS = 32, 4, 64, 64, 32, 4


class ErnieEmbeddings(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(PLACES, WIDTH)
        self.sentence = nn.Embedding(2, WIDTH)
        self.task = nn.Embedding(3, WIDTH)
        self.layer_norm = nn.LayerNorm(WIDTH, epsilon=1e-12)
        self.dropout = nn.Dropout(0.1)

    def forward(self, tokens):
        places = paddle.arange(tokens.shape[1]).unsqueeze(0)
        nothing = paddle.zeros_like(tokens)
        total = self.word(tokens) + self.sentence(nothing) + self.position(places) + self.task(nothing)
        return self.dropout(self.layer_norm(total))


class ErniePaddle(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = ErnieEmbeddings()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, dropout=0.1, activation="gelu", act_dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, LAYERS)
        self.pool = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens):
        hidden = self.encoder(self.embeddings(tokens))
        return hidden, paddle.tanh(self.pool(hidden[:, 0]))

    def copy_from_numpy(self, state: dict[str, np.ndarray]) -> None:
        """Take the weights of an ErnieModel; Paddle's linear weights are stored the other way round."""
        parts = self.embeddings
        for table, name in (
            (parts.word, "word_embeddings"), (parts.position, "position_embeddings"),
            (parts.sentence, "token_type_embeddings"), (parts.task, "task_type_embeddings"),
        ):  # fmt: skip
            table.weight.set_value(state[f"embeddings.{name}.weight"])
        _take(parts.layer_norm, state, "embeddings.LayerNorm")
        _take(self.pool, state, "pooler.dense")
        for at, layer in enumerate(self.encoder.layers):
            layer.norm1._epsilon = layer.norm2._epsilon = 1e-12
            for mine, theirs in (
                (layer.self_attn.q_proj, "attention.self.query"), (layer.self_attn.k_proj, "attention.self.key"),
                (layer.self_attn.v_proj, "attention.self.value"), (layer.self_attn.out_proj, "attention.output.dense"),
                (layer.norm1, "attention.output.LayerNorm"), (layer.linear1, "intermediate.dense"),
                (layer.linear2, "output.dense"), (layer.norm2, "output.LayerNorm"),
            ):  # fmt: skip
                _take(mine, state, f"encoder.layer.{at}.{theirs}")


def _take(layer: nn.Layer, state: dict[str, np.ndarray], name: str) -> None:
    weight = state[f"{name}.weight"]
    layer.weight.set_value(np.ascontiguousarray(weight.T if weight.ndim == 2 else weight))
    layer.bias.set_value(state[f"{name}.bias"])
