"""What is right about the reference dumps: the MindSpore/PyTorch pair, and the renamed PyTorch model."""

from __future__ import annotations

_CELL, _MODULE = "module.module.language_model.encoder.layers.{i}", "model.module.decoder.layers.{i}"
# 28 cells against 27 modules: language_model is a level of its own.
_MINDSPORE = {
    "module": "model",
    "module.module": "model.module",
    "module.module.language_model.embedding": "model.module.embedding",
    "module.module.language_model.embedding.word_embeddings": "model.module.embedding.word_embeddings",
    "module.module.language_model.embedding.position_embeddings": "model.module.embedding.position_embeddings",
    "module.module.language_model.embedding.dropout": "model.module.embedding.embedding_dropout",
    "module.module.language_model.encoder": "model.module.decoder",
    _CELL: _MODULE,
    f"{_CELL}.input_norm": f"{_MODULE}.input_layernorm",
    f"{_CELL}.attention": f"{_MODULE}.self_attention",
    f"{_CELL}.attention.qkv_proj": f"{_MODULE}.self_attention.query_key_value",
    f"{_CELL}.attention.out_proj": f"{_MODULE}.self_attention.dense",
    f"{_CELL}.post_attention_norm": f"{_MODULE}.pre_mlp_layernorm",
    f"{_CELL}.mlp": f"{_MODULE}.mlp",
    f"{_CELL}.mlp.dense_h_to_4h": f"{_MODULE}.mlp.linear_fc1",
    f"{_CELL}.mlp.dense_4h_to_h": f"{_MODULE}.mlp.linear_fc2",
    "module.module.language_model.encoder.final_norm": "model.module.decoder.final_layernorm",
    "module.module.output_layer": "model.module.output_layer",
}
_RENAMED = {
    "embedding": "language_model.embedding",
    "decoder": "language_model.encoder",
    "decoder.layers.{i}": "language_model.encoder.layers.{i}",
    "decoder.layers.{i}.ln1": "language_model.encoder.layers.{i}.ln1",
    "decoder.layers.{i}.self_attention": "language_model.encoder.layers.{i}.self_attention",
    "decoder.layers.{i}.self_attention.qkv_proj": "language_model.encoder.layers.{i}.self_attention.query_key_value",
    "decoder.layers.{i}.self_attention.out_proj": "language_model.encoder.layers.{i}.self_attention.dense",
    "decoder.layers.{i}.ln2": "language_model.encoder.layers.{i}.ln2",
    "decoder.layers.{i}.mlp": "language_model.encoder.layers.{i}.mlp",
    "decoder.layers.{i}.mlp.linear_fc1": "language_model.encoder.layers.{i}.mlp.dense_h_to_4h",
    "decoder.layers.{i}.mlp.linear_fc2": "language_model.encoder.layers.{i}.mlp.dense_4h_to_h",
    "head": "head",
    # What the optimizer does lies under a module of its own in construct.json.
    "optimizer": "optimizer",
}


def _written_out(pairs: dict[str, str]) -> set[tuple[str, str]]:
    return {(mine.format(i=i), theirs.format(i=i)) for mine, theirs in pairs.items() for i in (0, 1)}


MINDSPORE = _written_out(_MINDSPORE)
RENAMED = _written_out(_RENAMED)
_MS = "mindspore/dumps"
REFERENCE_PAIRS = (
    ("MindSpore / PyTorch, statistics", f"{_MS}/ms_mix_statistics", f"{_MS}/pt_mix_statistics", MINDSPORE),
    ("MindSpore / PyTorch, tensors", f"{_MS}/ms_mix_tensor", f"{_MS}/pt_mix_tensor", MINDSPORE),
    ("renamed model, an extra level", "graph/dumps/struct_statistics", "graph/dumps/base_statistics", RENAMED),
)  # fmt: skip
