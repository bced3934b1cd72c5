"""BART of sublayers that hold a body and the norm after it; q, k, v (or k, v of the memory) are one projection."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

_READ, _WRITE = "source.stages.{i}", "sink.stages.{i}"
_ENCODER, _DECODER = "model.encoder.layers.{i}", "model.decoder.layers.{i}"


def _front(mine: str, theirs: str) -> dict[str, object]:
    return {
        mine: theirs,
        f"{mine}.front.words": f"{theirs}.embed_tokens",
        f"{mine}.front.places": f"{theirs}.embed_positions",
        f"{mine}.front.norm": f"{theirs}.layernorm_embedding",
    }


def _stage(mine: str, theirs: str) -> dict[str, object]:
    """A sublayer has no counterpart, nor has the body of the feed-forward one."""
    return {
        mine: theirs,
        f"{mine}.look.body": f"{theirs}.self_attn",
        f"{mine}.look.body.qkv": tuple(f"{theirs}.self_attn.{part}_proj" for part in "qkv"),
        f"{mine}.look.body.out": f"{theirs}.self_attn.out_proj",
        f"{mine}.look.norm": f"{theirs}.self_attn_layer_norm",
        f"{mine}.feed.body.0": f"{theirs}.fc1",
        f"{mine}.feed.body.1": f"{theirs}.activation_fn",
        f"{mine}.feed.body.2": f"{theirs}.fc2",
        f"{mine}.feed.norm": f"{theirs}.final_layer_norm",
    }


TRUTH = {
    **_front("source", "model.encoder"),
    **_stage(_READ, _ENCODER),
    **_front("sink", "model.decoder"),
    **_stage(_WRITE, _DECODER),
    f"{_WRITE}.recall.body": f"{_DECODER}.encoder_attn",
    f"{_WRITE}.recall.body.q": f"{_DECODER}.encoder_attn.q_proj",
    f"{_WRITE}.recall.body.kv": (f"{_DECODER}.encoder_attn.k_proj", f"{_DECODER}.encoder_attn.v_proj"),
    f"{_WRITE}.recall.body.out": f"{_DECODER}.encoder_attn.out_proj",
    f"{_WRITE}.recall.norm": f"{_DECODER}.encoder_attn_layer_norm",
    "vocabulary": "lm_head",
}


def _heads(x: torch.Tensor, heads: int, parts: int) -> list[torch.Tensor]:
    return [part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in x.chunk(parts, dim=-1)]


class Look(nn.Module):
    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = _heads(self.qkv(x), self.heads, 3)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2))


class Recall(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x, memory):
        (q,), (k, v) = _heads(self.q(x), self.heads, 1), _heads(self.kv(memory), self.heads, 2)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class SubLayer(nn.Module):
    def __init__(self, width: int, body: nn.Module) -> None:
        super().__init__()
        self.body, self.norm = body, nn.LayerNorm(width)

    def forward(self, x, *more):
        return self.norm(x + self.body(x, *more))


class Stage(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, *, recalls: bool) -> None:
        super().__init__()
        self.look = SubLayer(width, Look(width, heads, causal=recalls))
        self.recall = SubLayer(width, Recall(width, heads)) if recalls else None
        self.feed = SubLayer(width, nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width)))

    def forward(self, x, memory=None):
        x = self.look(x)
        return self.feed(x if self.recall is None else self.recall(x, memory))


class Front(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.words = nn.Embedding(config.vocab_size, config.d_model)
        self.places = nn.Embedding(config.max_position_embeddings, config.d_model)
        self.norm = nn.LayerNorm(config.d_model)

    def forward(self, tokens):
        return self.norm(self.words(tokens) + self.places(torch.arange(tokens.shape[1])))


class Stack(nn.Module):
    def __init__(self, config, layers: int, heads: int, inner: int, *, recalls: bool) -> None:
        super().__init__()
        self.front = Front(config)
        self.stages = nn.ModuleList(Stage(config.d_model, heads, inner, recalls=recalls) for _ in range(layers))

    def forward(self, tokens, memory=None):
        x = self.front(tokens)
        for stage in self.stages:
            x = stage(x, memory)
        return x


class BartSublayers(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        reads = config.encoder_layers, config.encoder_attention_heads, config.encoder_ffn_dim
        writes = layers, config.decoder_attention_heads, config.decoder_ffn_dim
        self.source, self.sink = Stack(config, *reads, recalls=False), Stack(config, *writes, recalls=True)
        self.vocabulary = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.sink.front.words.weight = self.vocabulary.weight = self.source.front.words.weight

    def forward(self, input_ids, decoder_input_ids):
        return self.vocabulary(self.sink(decoder_input_ids, self.source(input_ids)))

    @torch.no_grad()
    def copy_from(self, other, layers: list[int]) -> None:
        """Take the weights of a BartForConditionalGeneration; its tables of positions begin at the third row."""
        encoder, decoder = other.model.encoder, other.model.decoder
        stages = list(zip(self.source.stages, encoder.layers, strict=True))
        stages += zip(self.sink.stages, (decoder.layers[at] for at in layers), strict=True)
        for mine, theirs in ((self.source.front, encoder), (self.sink.front, decoder)):
            mine.words.weight.copy_(theirs.embed_tokens.weight)
            mine.places.weight.copy_(theirs.embed_positions.weight[2:])
            mine.norm.load_state_dict(theirs.layernorm_embedding.state_dict())
        for mine, theirs in stages:
            _fill(mine.look.body.qkv, *(getattr(theirs.self_attn, f"{part}_proj") for part in "qkv"))
            _fill(mine.look.body.out, theirs.self_attn.out_proj)
            _fill(mine.look.norm, theirs.self_attn_layer_norm)
            if mine.recall is not None:
                attention = theirs.encoder_attn
                _fill(mine.recall.body.q, attention.q_proj)
                _fill(mine.recall.body.kv, attention.k_proj, attention.v_proj)
                _fill(mine.recall.body.out, attention.out_proj)
                _fill(mine.recall.norm, theirs.encoder_attn_layer_norm)
            _fill(mine.feed.body[0], theirs.fc1)
            _fill(mine.feed.body[2], theirs.fc2)
            _fill(mine.feed.norm, theirs.final_layer_norm)


def _fill(layer: nn.Module, *sources: nn.Module) -> None:
    layer.weight.copy_(torch.cat([source.weight for source in sources]))
    layer.bias.copy_(torch.cat([source.bias for source in sources]))
