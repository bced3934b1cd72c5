"""BERT, written again with PyTorch's own encoder, against that of transformers: bfloat16, two steps of AdamW."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import BertConfig, BertForSequenceClassification

import twinprobe

SIZES: dict[str, Any] = {"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}


class OwnBert(nn.Module):
    """Adds up its tables in another order, and computes the numbers of places."""

    def __init__(self, activation: Any) -> None:
        super().__init__()
        self.word, self.place, self.kind = (nn.Embedding(size, 64) for size in (97, 128, 2))
        layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, "gelu", 1e-12, batch_first=True)
        self.norm, self.body = nn.LayerNorm(64, eps=1e-12), nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.pool, self.scores, self.activation = nn.Linear(64, 64), nn.Linear(64, 2), activation

    def forward(self, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        places = self.place(torch.arange(words.shape[1]) + 0)
        x = self.norm(self.word(words) + places + self.kind(torch.zeros_like(words)))
        x = self.body(x, src_key_padding_mask=mask == 0)
        return self.scores(self.activation(self.pool(x[:, 0])))

    @torch.no_grad()
    def load(self, model: BertForSequenceClassification) -> OwnBert:
        tables = model.bert.embeddings
        pairs = [
            (self.word, tables.word_embeddings), (self.place, tables.position_embeddings),
            (self.kind, tables.token_type_embeddings), (self.norm, tables.LayerNorm),
            (self.pool, model.bert.pooler.dense), (self.scores, model.classifier),
        ]  # fmt: skip
        for own, layer in zip(self.body.layers, model.bert.encoder.layer, strict=True):
            parts = [getattr(layer.attention.self, name) for name in ("query", "key", "value")]
            own.self_attn.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
            own.self_attn.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
            pairs += [
                (own.self_attn.out_proj, layer.attention.output.dense), (own.norm1, layer.attention.output.LayerNorm),
                (own.linear1, layer.intermediate.dense), (own.linear2, layer.output.dense),
                (own.norm2, layer.output.LayerNorm),
            ]  # fmt: skip
        for mine, theirs in pairs:
            mine.load_state_dict(theirs.state_dict())
        return self


def _train(folder: Path, activation: Any) -> Path:
    """``activation``: of the port; None for the model of transformers."""
    torch.manual_seed(0)
    config = BertConfig(**SIZES, intermediate_size=128, max_position_embeddings=128, num_labels=2)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    model: Any = BertForSequenceClassification(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.mul_(3.0)
    model = (model if activation is None else OwnBert(activation).load(model)).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    words, mask = torch.randint(3, 97, (3, 12), generator=torch.Generator().manual_seed(1)), torch.ones(3, 12).long()
    mask[1, 8:] = 0
    with twinprobe.record(model, folder, level="mix") as recording:
        for _ in range(2):
            optimizer.zero_grad()
            scores = model(words, mask) if activation is not None else model(words, attention_mask=mask).logits
            functional.cross_entropy(scores.float(), torch.tensor([0, 1, 1])).backward()
            optimizer.step()
            recording.step()
    return folder


@pytest.mark.parametrize("activation", [torch.tanh, torch.relu])
def test_only_another_activation_is_a_difference(tmp_path: Path, activation: Any) -> None:
    target, golden = _train(tmp_path / "target", activation), _train(tmp_path / "golden", None)
    first = twinprobe.compare(target, golden).first
    if activation is torch.tanh:
        assert first is None, first
    else:
        assert first is not None
        assert (first.call, "relu against tanh" in first.evidence) == ("Torch.relu.0.forward", True)
