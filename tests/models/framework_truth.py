"""What is right about one GPT-2 in three frameworks, recorded in tests/data/frameworks (models: gpt_*.py)."""

from __future__ import annotations

from itertools import product

LAYERS = 4

_CELL = "network.backbone.blocks.{i}"
_MINDSPORE = {
    "network.backbone.embedding.word_embedding": "transformer.wte",
    "network.backbone.embedding.position_embedding": "transformer.wpe",
    "network.backbone": "transformer",
    _CELL: "transformer.h.{i}",
    f"{_CELL}.layernorm1": "transformer.h.{i}.ln_1",
    f"{_CELL}.attention": "transformer.h.{i}.attn",
    tuple(f"{_CELL}.attention.dense{part}" for part in "123"): "transformer.h.{i}.attn.c_attn",
    f"{_CELL}.attention.projection": "transformer.h.{i}.attn.c_proj",
    f"{_CELL}.layernorm2": "transformer.h.{i}.ln_2",
    f"{_CELL}.output": "transformer.h.{i}.mlp",
    f"{_CELL}.output.mapping": "transformer.h.{i}.mlp.c_fc",
    f"{_CELL}.output.projection": "transformer.h.{i}.mlp.c_proj",
    "network.backbone.layernorm": "transformer.ln_f",
    "network.head": "lm_head",
    f"{_CELL}.output:gelu": "transformer.h.{i}.mlp.act",
}

_LAYER = "gpt.decoder.layers.{i}"
_PADDLE = {
    "gpt.embeddings.word_embeddings": "transformer.wte",
    "gpt.embeddings.position_embeddings": "transformer.wpe",
    "gpt": "transformer",
    _LAYER: "transformer.h.{i}",
    f"{_LAYER}.norm1": "transformer.h.{i}.ln_1",
    f"{_LAYER}.self_attn": "transformer.h.{i}.attn",
    f"{_LAYER}.self_attn.qkv_proj": "transformer.h.{i}.attn.c_attn",
    f"{_LAYER}.self_attn.out_proj": "transformer.h.{i}.attn.c_proj",
    f"{_LAYER}.norm2": "transformer.h.{i}.ln_2",
    f"{_LAYER}.linear1": "transformer.h.{i}.mlp.c_fc",
    f"{_LAYER}.linear2": "transformer.h.{i}.mlp.c_proj",
    "gpt.decoder.norm": "transformer.ln_f",
    "lm_head": "lm_head",
    f"{_LAYER}:gelu": "transformer.h.{i}.mlp.act",
}


def _written_out(pairs: dict) -> set[tuple[str, str]]:
    found = set()
    for mine, theirs in pairs.items():
        for key, layer in product((mine,) if isinstance(mine, str) else mine, range(LAYERS)):
            found.add((key.format(i=layer), theirs.format(i=layer)))
    return found


MINDSPORE_TORCH, PADDLE_TORCH = _written_out(_MINDSPORE), _written_out(_PADDLE)
# What belongs to the same module of the third belongs together; the embeddings are a module of their own in both.
MINDSPORE_PADDLE = {
    (mine, theirs)
    for mine, one in MINDSPORE_TORCH
    for theirs, other in PADDLE_TORCH
    if one == other and not (":" in mine and ":" in theirs)
} | {("network.backbone.embedding", "gpt.embeddings")}
FRAMEWORK_PAIRS = (
    ("gpt2: MindSpore / PyTorch", "mindspore", "torch", MINDSPORE_TORCH),
    ("gpt2: Paddle / PyTorch", "paddle", "torch", PADDLE_TORCH),
    ("gpt2: MindSpore / Paddle", "mindspore", "paddle", MINDSPORE_PADDLE),
)
