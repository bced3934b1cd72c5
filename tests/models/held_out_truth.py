"""What is right about ERNIE in PaddlePaddle and PyTorch (tests/data/held_out), written before it was first aligned."""

from __future__ import annotations

from itertools import product

_MINE, _THEIRS = "encoder.layers.{i}", "encoder.layer.{i}"
# Paddle's self_attn ends with its output projection, and no module of the other side does; its dropout after the
# activation has no partner either.
_ERNIE = {
    "embeddings": "embeddings",
    "embeddings.word": "embeddings.word_embeddings",
    "embeddings.position": "embeddings.position_embeddings",
    "embeddings.sentence": "embeddings.token_type_embeddings",
    "embeddings.task": "embeddings.task_type_embeddings",
    "embeddings.layer_norm": "embeddings.LayerNorm",
    "embeddings.dropout": "embeddings.dropout",
    "encoder": "encoder",
    _MINE: _THEIRS,
    f"{_MINE}.self_attn.q_proj": f"{_THEIRS}.attention.self.query",
    f"{_MINE}.self_attn.k_proj": f"{_THEIRS}.attention.self.key",
    f"{_MINE}.self_attn.v_proj": f"{_THEIRS}.attention.self.value",
    f"{_MINE}.self_attn.out_proj": f"{_THEIRS}.attention.output.dense",
    f"{_MINE}.dropout1": f"{_THEIRS}.attention.output.dropout",
    f"{_MINE}.norm1": f"{_THEIRS}.attention.output.LayerNorm",
    f"{_MINE}.linear1": f"{_THEIRS}.intermediate.dense",
    f"{_MINE}:gelu": f"{_THEIRS}.intermediate.intermediate_act_fn",
    f"{_MINE}.linear2": f"{_THEIRS}.output.dense",
    f"{_MINE}.dropout2": f"{_THEIRS}.output.dropout",
    f"{_MINE}.norm2": f"{_THEIRS}.output.LayerNorm",
    "pool": "pooler.dense",
    ":tanh": "pooler.activation",
}
ERNIE = {(mine.format(i=at), theirs.format(i=at)) for (mine, theirs), at in product(_ERNIE.items(), range(4))}
HELD_OUT_RECORDED = (("ernie: Paddle / PyTorch", "paddle", "torch", ERNIE),)
