"""Pairs of published models that compute alike but were written apart: no weight is shared, only structure tells.

They were added last, as a check that rules tuned on the other models of this folder carry over.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

LAYERS = 3
_SIZES = {"hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "vocab_size": 64}
_LAYER, _BLOCK, _H = "model.layers.{i}", "encoder.layer.{i}", "transformer.h.{i}"


@dataclass(frozen=True)
class PublishedPair:
    """Two models, and which module of one is which of the other."""

    name: str
    target: Callable[[], Any]
    golden: Callable[[], Any]
    truth: dict[Any, Any]

    def correct(self) -> set[tuple[str, str]]:
        """All pairs of module paths, or ``path:function`` for calls."""
        found = set()
        for mine, theirs in self.truth.items():
            keys = (mine,) if isinstance(mine, str) else mine
            values = (theirs,) if isinstance(theirs, str) else theirs
            for key, value, layer in itertools.product(keys, values, range(LAYERS)):
                found.add((key.format(i=layer), value.format(i=layer)))
        return found


class TorchEncoder(nn.Module):
    """BERT's encoder from PyTorch's own layers, whose attention is one module with one fused weight."""

    def __init__(self) -> None:
        super().__init__()
        self.tok, self.pos, self.typ = nn.Embedding(64, 32), nn.Embedding(32, 32), nn.Embedding(2, 32)
        self.ln = nn.LayerNorm(32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, activation="gelu", batch_first=True, dropout=0.0)
        self.enc = nn.TransformerEncoder(layer, LAYERS)
        self.pool = nn.Linear(32, 32)

    def forward(self, x):
        places = torch.arange(x.shape[1])[None]
        hidden = self.enc(self.ln(self.tok(x) + self.typ(torch.zeros_like(x)) + self.pos(places)))
        return hidden, torch.tanh(self.pool(hidden[:, 0]))


def _llama() -> Any:
    config = transformers.LlamaConfig(**_SIZES, intermediate_size=48, num_key_value_heads=2)
    return transformers.LlamaForCausalLM(config).eval()


def _phi() -> Any:
    config = transformers.Phi3Config(**_SIZES, intermediate_size=48, num_key_value_heads=2, pad_token_id=0)
    return transformers.Phi3ForCausalLM(config).eval()


def _bert() -> Any:
    return transformers.BertModel(
        transformers.BertConfig(**_SIZES, intermediate_size=64, max_position_embeddings=32)
    ).eval()


def _distilbert() -> Any:
    config = transformers.DistilBertConfig(
        dim=32, n_layers=LAYERS, n_heads=4, hidden_dim=64, vocab_size=64, max_position_embeddings=32
    )
    return transformers.DistilBertModel(config).eval()


def _gpt2() -> Any:
    config = transformers.GPT2Config(
        n_embd=32, n_layer=LAYERS, n_head=4, vocab_size=64, n_positions=34, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config).eval()


def _opt() -> Any:
    config = transformers.OPTConfig(**_SIZES, ffn_dim=128, max_position_embeddings=32, word_embed_proj_dim=32)
    return transformers.OPTForCausalLM(config).eval()


PHI = {
    "model": "model",
    "model.embed_tokens": "model.embed_tokens",
    "model.rotary_emb": "model.rotary_emb",
    "model.norm": "model.norm",
    "lm_head": "lm_head",
    _LAYER: _LAYER,
    f"{_LAYER}.input_layernorm": f"{_LAYER}.input_layernorm",
    f"{_LAYER}.self_attn": f"{_LAYER}.self_attn",
    f"{_LAYER}.self_attn.qkv_proj": tuple(f"{_LAYER}.self_attn.{part}_proj" for part in "qkv"),
    f"{_LAYER}.self_attn.o_proj": f"{_LAYER}.self_attn.o_proj",
    f"{_LAYER}.post_attention_layernorm": f"{_LAYER}.post_attention_layernorm",
    f"{_LAYER}.mlp": f"{_LAYER}.mlp",
    f"{_LAYER}.mlp.gate_up_proj": (f"{_LAYER}.mlp.gate_proj", f"{_LAYER}.mlp.up_proj"),
    f"{_LAYER}.mlp.activation_fn": f"{_LAYER}.mlp.act_fn",
    f"{_LAYER}.mlp.down_proj": f"{_LAYER}.mlp.down_proj",
}
_DISTIL = "transformer.layer.{i}"
DISTILBERT = {
    "embeddings": "embeddings",
    "embeddings.word_embeddings": "embeddings.word_embeddings",
    "embeddings.position_embeddings": "embeddings.position_embeddings",
    "embeddings.LayerNorm": "embeddings.LayerNorm",
    "embeddings.dropout": "embeddings.dropout",
    "transformer": "encoder",
    _DISTIL: _BLOCK,
    f"{_DISTIL}.attention.q_lin": f"{_BLOCK}.attention.self.query",
    f"{_DISTIL}.attention.k_lin": f"{_BLOCK}.attention.self.key",
    f"{_DISTIL}.attention.v_lin": f"{_BLOCK}.attention.self.value",
    f"{_DISTIL}.attention.out_lin": f"{_BLOCK}.attention.output.dense",
    f"{_DISTIL}.sa_layer_norm": f"{_BLOCK}.attention.output.LayerNorm",
    f"{_DISTIL}.ffn.lin1": f"{_BLOCK}.intermediate.dense",
    f"{_DISTIL}.ffn.activation": f"{_BLOCK}.intermediate.intermediate_act_fn",
    f"{_DISTIL}.ffn.lin2": f"{_BLOCK}.output.dense",
    f"{_DISTIL}.ffn.dropout": f"{_BLOCK}.output.dropout",
    f"{_DISTIL}.output_layer_norm": f"{_BLOCK}.output.LayerNorm",
}
_ENC = "enc.layers.{i}"
TORCH_ENCODER = {
    "tok": "embeddings.word_embeddings",
    "pos": "embeddings.position_embeddings",
    "typ": "embeddings.token_type_embeddings",
    "ln": "embeddings.LayerNorm",
    "enc": "encoder",
    _ENC: _BLOCK,
    f"{_ENC}.dropout1": f"{_BLOCK}.attention.output.dropout",
    f"{_ENC}.norm1": f"{_BLOCK}.attention.output.LayerNorm",
    f"{_ENC}.linear1": f"{_BLOCK}.intermediate.dense",
    f"{_ENC}:gelu": f"{_BLOCK}.intermediate.intermediate_act_fn",
    f"{_ENC}.linear2": f"{_BLOCK}.output.dense",
    f"{_ENC}.dropout2": f"{_BLOCK}.output.dropout",
    f"{_ENC}.norm2": f"{_BLOCK}.output.LayerNorm",
    "pool": "pooler.dense",
    ":tanh": "pooler.activation",
}
_OPT = "model.decoder.layers.{i}"
OPT = {
    "model.decoder": "transformer",
    "model.decoder.embed_tokens": "transformer.wte",
    "model.decoder.embed_positions": "transformer.wpe",
    _OPT: _H,
    f"{_OPT}.self_attn_layer_norm": f"{_H}.ln_1",
    f"{_OPT}.self_attn": f"{_H}.attn",
    tuple(f"{_OPT}.self_attn.{part}_proj" for part in "qkv"): f"{_H}.attn.c_attn",
    f"{_OPT}.self_attn.out_proj": f"{_H}.attn.c_proj",
    f"{_OPT}.final_layer_norm": f"{_H}.ln_2",
    f"{_OPT}.fc1": f"{_H}.mlp.c_fc",
    f"{_OPT}.fc2": f"{_H}.mlp.c_proj",
    f"{_OPT}:dropout": f"{_H}.mlp.dropout",
    "model.decoder.final_layer_norm": "transformer.ln_f",
    "lm_head": "lm_head",
}  # ReLU against GELU: the two activations are no pair

PUBLISHED = (
    PublishedPair("phi3 / llama", _phi, _llama, PHI),
    PublishedPair("distilbert / bert", _distilbert, _bert, DISTILBERT),
    PublishedPair("torch's encoder / bert", TorchEncoder, _bert, TORCH_ENCODER),
    PublishedPair("opt / gpt2", _opt, _gpt2, OPT),
)
