"""DistilBERT under the names of a sequence toolkit: one packed projection, feed-forward flat in its layer, a head."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

_LAYER, _THEIRS = "encoder.sentence_layers.{i}", "distilbert.transformer.layer.{i}"
TRUTH = {
    "encoder": "distilbert",
    "encoder.tokens_table": "distilbert.embeddings.word_embeddings",
    "encoder.positions_table": "distilbert.embeddings.position_embeddings",
    "encoder.emb_layer_norm": "distilbert.embeddings.LayerNorm",
    "encoder.emb_dropout": "distilbert.embeddings.dropout",
    _LAYER: _THEIRS,
    f"{_LAYER}.self_attn": f"{_THEIRS}.attention",
    f"{_LAYER}.self_attn.packed": tuple(f"{_THEIRS}.attention.{part}_lin" for part in "qkv"),
    f"{_LAYER}.self_attn.unpacked": f"{_THEIRS}.attention.out_lin",
    f"{_LAYER}.self_attn_layer_norm": f"{_THEIRS}.sa_layer_norm",
    f"{_LAYER}.expand": f"{_THEIRS}.ffn.lin1",
    f"{_LAYER}:gelu": f"{_THEIRS}.ffn.activation",
    f"{_LAYER}.shrink": f"{_THEIRS}.ffn.lin2",
    f"{_LAYER}.dropout_module": f"{_THEIRS}.ffn.dropout",
    f"{_LAYER}.final_layer_norm": f"{_THEIRS}.output_layer_norm",
    "classification_head.inner": "pre_classifier",
    "classification_head.drop": "dropout",
    "classification_head.outer": "classifier",
}


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.packed, self.unpacked = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.packed(x).chunk(3, dim=-1))
        weights = F.softmax((q * q.shape[-1] ** -0.5) @ k.transpose(2, 3), dim=-1)
        return self.unpacked((weights @ v).transpose(1, 2).flatten(2))


class SentenceLayer(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.self_attn = SelfAttention(config.dim, config.n_heads)
        self.self_attn_layer_norm = nn.LayerNorm(config.dim, eps=1e-12)
        self.expand = nn.Linear(config.dim, config.hidden_dim)
        self.shrink = nn.Linear(config.hidden_dim, config.dim)
        self.dropout_module = nn.Dropout(config.dropout)
        self.final_layer_norm = nn.LayerNorm(config.dim, eps=1e-12)

    def forward(self, x):
        x = self.self_attn_layer_norm(x + self.self_attn(x))
        return self.final_layer_norm(x + self.dropout_module(self.shrink(F.gelu(self.expand(x)))))


class SentenceEncoder(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        self.tokens_table = nn.Embedding(config.vocab_size, config.dim)
        self.positions_table = nn.Embedding(config.max_position_embeddings, config.dim)
        self.emb_layer_norm = nn.LayerNorm(config.dim, eps=1e-12)
        self.emb_dropout = nn.Dropout(config.dropout)
        self.sentence_layers = nn.ModuleList(SentenceLayer(config) for _ in range(layers))

    def forward(self, tokens):
        x = self.tokens_table(tokens) + self.positions_table(torch.arange(tokens.shape[1])[None])
        x = self.emb_dropout(self.emb_layer_norm(x))
        for layer in self.sentence_layers:
            x = layer(x)
        return x


class ClassificationHead(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.inner = nn.Linear(config.dim, config.dim)
        self.drop = nn.Dropout(config.seq_classif_dropout)
        self.outer = nn.Linear(config.dim, config.num_labels)

    def forward(self, x):
        return self.outer(self.drop(torch.relu(self.inner(x[:, 0]))))


class DistilPacked(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        self.encoder, self.classification_head = SentenceEncoder(config, layers), ClassificationHead(config)

    def forward(self, tokens):
        return self.classification_head(self.encoder(tokens))

    @torch.no_grad()
    def copy_from(self, other, layers: list[int]) -> None:
        """Take the weights of a DistilBertForSequenceClassification."""
        source, head = other.distilbert, self.classification_head
        pairs = [
            (self.encoder.tokens_table, source.embeddings.word_embeddings),
            (self.encoder.positions_table, source.embeddings.position_embeddings),
            (self.encoder.emb_layer_norm, source.embeddings.LayerNorm),
            (head.inner, other.pre_classifier),
            (head.outer, other.classifier),
        ]
        chosen = (source.transformer.layer[at] for at in layers)
        for mine, theirs in zip(self.encoder.sentence_layers, chosen, strict=True):
            parts = theirs.attention.q_lin, theirs.attention.k_lin, theirs.attention.v_lin
            mine.self_attn.packed.weight.copy_(torch.cat([part.weight for part in parts]))
            mine.self_attn.packed.bias.copy_(torch.cat([part.bias for part in parts]))
            pairs += [
                (mine.self_attn.unpacked, theirs.attention.out_lin), (mine.self_attn_layer_norm, theirs.sa_layer_norm),
                (mine.expand, theirs.ffn.lin1), (mine.shrink, theirs.ffn.lin2),
                (mine.final_layer_norm, theirs.output_layer_norm),
            ]  # fmt: skip
        for layer, source_layer in pairs:
            layer.load_state_dict(source_layer.state_dict())
