"""BERT and ResNet, each written twice by different hands: weights are copied, faults are found in both directions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from models.bert_flat import BertFlat
from models.catalogue import PAIRS
from models.resnet_classic import ResNetClassic
from twinprobe import auto_diff

TOKENS = torch.randint(1, 64, (2, 7), generator=torch.Generator().manual_seed(3))
IMAGES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(4))


def made(name: str) -> Any:
    return next(pair for pair in PAIRS if pair.name.startswith(name)).published()


@pytest.fixture
def berts() -> tuple[Any, Any]:
    base = made("bert").eval()
    return base, BertFlat(base.config, base.config.num_hidden_layers).eval()


@pytest.fixture
def resnets() -> tuple[Any, Any]:
    base = made("resnet").train()
    return base, ResNetClassic(base.config, base.config.depths[-1]).train()


def test_two_berts_agree_whichever_is_the_base(berts) -> None:
    base, raw = berts
    assert auto_diff(base, raw, (TOKENS, TOKENS), quiet=True)
    assert auto_diff(raw, base, (TOKENS, TOKENS), quiet=True)


def test_a_padding_token_that_learns_is_found(berts) -> None:
    """One BERT keeps the padding token's embedding fixed, the other trains it: only its gradient tells."""
    tokens = TOKENS.clone()
    tokens[0, 3] = 0
    result = auto_diff(*berts, (tokens, tokens), quiet=True)
    assert not result
    assert result.first.phase == "gradients"
    assert result.first.raw == "Module.embedding.word.Embedding.parameters_grad.0"


def test_a_wrong_number_of_heads_in_attention_is_found(berts) -> None:
    base, raw = berts
    block = raw.block2.attend
    block.heads = 2  # other heads: the projections still agree, what is made of them does not
    result = auto_diff(base, raw, (TOKENS, TOKENS), quiet=True)
    assert not result
    assert result.first.phase == "forward"
    assert result.first.raw.startswith("Module.block2.attend") or "bert_flat.py" in result.first.raw_line
    clean = [
        one for one in result.differences if one.decides and one.raw.startswith(("Module.block0", "Module.block1"))
    ]
    assert not [one for one in clean if one.phase == "forward"]


def test_a_changed_gradient_in_bert_is_found(berts) -> None:
    base, raw = berts
    raw.block1.widen.register_full_backward_pre_hook(lambda _, gradient: (gradient[0] * 1.5,))
    result = auto_diff(base, raw, (TOKENS, TOKENS), quiet=True)
    assert not result
    assert result.first.phase == "backward"
    assert result.first.raw == "Module.block1.widen.Linear.backward.0"
    assert result.first.base == "Module.encoder.layer.1.intermediate.dense.Linear.backward.0"


def test_two_resnets_agree_in_training_mode(resnets) -> None:
    assert auto_diff(*resnets, (IMAGES, IMAGES), quiet=True)


def test_a_wrong_epsilon_in_resnet_is_found(resnets) -> None:
    base, raw = resnets
    raw.layer2[1].bn1.eps = 0.1
    result = auto_diff(base, raw, (IMAGES, IMAGES), quiet=True)
    assert not result
    assert result.first.raw == "Module.layer2.1.bn1.BatchNorm2d.forward.0"
    assert result.first.base == "Module.resnet.encoder.stages.1.layers.1.layer.0.normalization.BatchNorm2d.forward.0"


def test_a_changed_gradient_in_resnet_is_found(resnets) -> None:
    base, raw = resnets
    raw.layer1[1].conv2.register_full_backward_hook(lambda _, gradient, __: (gradient[0] * 2,))
    result = auto_diff(base, raw, (IMAGES, IMAGES), quiet=True)
    assert not result
    assert result.first.phase == "backward"
    assert "layer1.1" in result.first.raw
