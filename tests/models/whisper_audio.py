"""Whisper with an audio encoder and a text decoder of equal blocks, as its authors nest it; logits by the embedding."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

_READ, _WRITE = "listener.blocks.{i}", "speaker.blocks.{i}"
_ENCODER, _DECODER = "model.encoder.layers.{i}", "model.decoder.layers.{i}"


def _attention(mine: str, theirs: str) -> dict[str, str]:
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
    return {mine: theirs, **{f"{mine}.{one}": f"{theirs}.{other}" for one, other in names.items()}}


def _feed(mine: str, theirs: str) -> dict[str, str]:
    return {
        f"{mine}.mlp_ln": f"{theirs}.final_layer_norm",
        f"{mine}.mlp.0": f"{theirs}.fc1",
        f"{mine}.mlp.1": f"{theirs}.activation_fn",
        f"{mine}.mlp.2": f"{theirs}.fc2",
    }


TRUTH = {
    "listener": "model.encoder",
    "listener.conv_a": "model.encoder.conv1",
    "listener.conv_b": "model.encoder.conv2",
    _READ: _ENCODER,
    f"{_READ}.attn_ln": f"{_ENCODER}.self_attn_layer_norm",
    **_attention(f"{_READ}.attn", f"{_ENCODER}.self_attn"),
    **_feed(_READ, _ENCODER),
    "listener.ln_post": "model.encoder.layer_norm",
    "speaker": "model.decoder",
    "speaker.token_embedding": "model.decoder.embed_tokens",
    _WRITE: _DECODER,
    f"{_WRITE}.attn_ln": f"{_DECODER}.self_attn_layer_norm",
    **_attention(f"{_WRITE}.attn", f"{_DECODER}.self_attn"),
    f"{_WRITE}.cross_attn_ln": f"{_DECODER}.encoder_attn_layer_norm",
    **_attention(f"{_WRITE}.cross_attn", f"{_DECODER}.encoder_attn"),
    **_feed(_WRITE, _DECODER),
    "speaker.ln": "model.decoder.layer_norm",
    ":linear": "proj_out",
}


class MultiHead(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.value, self.out = (nn.Linear(width, width) for _ in range(3))
        self.key = nn.Linear(width, width, bias=False)

    def forward(self, x, memory=None, mask=None):
        source = x if memory is None else memory
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query(x), self.key(source), self.value(source))
        )
        scores = (q @ k.mT) * q.shape[-1] ** -0.5
        weights = (scores if mask is None else scores + mask).float().softmax(-1).to(q.dtype)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class ResidualBlock(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, *, crosses: bool) -> None:
        super().__init__()
        self.attn, self.attn_ln = MultiHead(width, heads), nn.LayerNorm(width)
        if crosses:
            self.cross_attn, self.cross_attn_ln = MultiHead(width, heads), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))
        self.mlp_ln = nn.LayerNorm(width)

    def forward(self, x, memory=None, mask=None):
        x = x + self.attn(self.attn_ln(x), mask=mask)
        if memory is not None:
            x = x + self.cross_attn(self.cross_attn_ln(x), memory)
        return x + self.mlp(self.mlp_ln(x))


class Listener(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        width = config.d_model
        self.conv_a = nn.Conv1d(config.num_mel_bins, width, 3, padding=1)
        self.conv_b = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.register_buffer("places", torch.zeros(config.max_source_positions, width))
        sizes = width, config.encoder_attention_heads, config.encoder_ffn_dim
        self.blocks = nn.ModuleList(ResidualBlock(*sizes, crosses=False) for _ in range(config.encoder_layers))
        self.ln_post = nn.LayerNorm(width)

    def forward(self, features):
        x = F.gelu(self.conv_b(F.gelu(self.conv_a(features)))).mT + self.places
        for block in self.blocks:
            x = block(x)
        return self.ln_post(x)


class Speaker(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        width = config.d_model
        self.token_embedding = nn.Embedding(config.vocab_size, width)
        self.places = nn.Parameter(torch.randn(config.max_target_positions, width))
        sizes = width, config.decoder_attention_heads, config.decoder_ffn_dim
        self.blocks = nn.ModuleList(ResidualBlock(*sizes, crosses=True) for _ in range(layers))
        self.ln = nn.LayerNorm(width)

    def forward(self, tokens, memory):
        length = tokens.shape[1]
        x = self.token_embedding(tokens) + self.places[:length]
        mask = torch.full((length, length), float("-inf"), dtype=x.dtype).triu(1)
        for block in self.blocks:
            x = block(x, memory, mask)
        return self.ln(x)


class WhisperAudio(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        self.listener, self.speaker = Listener(config), Speaker(config, layers)

    def forward(self, input_features, decoder_input_ids):
        spoken = self.speaker(decoder_input_ids, self.listener(input_features))
        return F.linear(spoken, self.speaker.token_embedding.weight)

    @torch.no_grad()
    def copy_from(self, other, layers: list[int]) -> None:
        """Take the weights of a WhisperForConditionalGeneration; ``layers`` are those of its decoder."""
        encoder, decoder = other.model.encoder, other.model.decoder
        self.listener.places.copy_(encoder.embed_positions.weight)
        self.speaker.places.copy_(decoder.embed_positions.weight)
        pairs = [
            (self.listener.conv_a, encoder.conv1), (self.listener.conv_b, encoder.conv2),
            (self.listener.ln_post, encoder.layer_norm), (self.speaker.ln, decoder.layer_norm),
            (self.speaker.token_embedding, decoder.embed_tokens),
        ]  # fmt: skip
        blocks = list(zip(self.listener.blocks, encoder.layers, strict=True))
        blocks += zip(self.speaker.blocks, (decoder.layers[at] for at in layers), strict=True)
        for mine, theirs in blocks:
            pairs += [
                (mine.attn_ln, theirs.self_attn_layer_norm), (mine.mlp_ln, theirs.final_layer_norm),
                (mine.mlp[0], theirs.fc1), (mine.mlp[2], theirs.fc2), *_parts(mine.attn, theirs.self_attn),
            ]  # fmt: skip
            if hasattr(mine, "cross_attn"):
                pairs.append((mine.cross_attn_ln, theirs.encoder_attn_layer_norm))
                pairs += _parts(mine.cross_attn, theirs.encoder_attn)
        for layer, source in pairs:
            layer.load_state_dict(source.state_dict())


def _parts(mine, theirs):
    return [
        (mine.query, theirs.q_proj), (mine.key, theirs.k_proj), (mine.value, theirs.v_proj),
        (mine.out, theirs.out_proj),
    ]  # fmt: skip
