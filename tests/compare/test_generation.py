"""What generate() does in other ways: without a cache, with beams, with an assistant's guesses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import twinprobe
from twinprobe.errors import BadInput
from twinprobe.torch import record


def model(layers: int = 2) -> LlamaForCausalLM:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=None,
    )  # fmt: skip
    made = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(4.0 if parameter.dim() > 1 else 1.0)  # logits that stand apart
    return made


def generated(folder: Path, rows: int = 2, level: str = "mix", do_sample: bool = False, **options: Any) -> Path:
    ids = torch.randint(2, 97, (rows, 5), generator=torch.Generator().manual_seed(5))
    made = model()
    torch.manual_seed(11)
    with record(made, str(folder), level=level, task="tensor"):
        made.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=do_sample, **options)
    return folder


@pytest.mark.parametrize("level", ["mix", "L0"])
def test_generation_without_a_cache_agrees_with_one_that_has_it(tmp_path: Path, level: str) -> None:
    """The head keeps the last token of each call: it has one shape in all calls, and another token in each."""
    target = generated(tmp_path / "b", level=level, use_cache=False)
    golden = generated(tmp_path / "a", level=level)
    assert (found := twinprobe.compare(target, golden)).agrees, found.summary
    assert found.tokens is not None
    assert found.tokens.height == 2 * 8


def test_guesses_of_an_assistant_that_were_rejected_are_no_tokens(tmp_path: Path) -> None:
    target = generated(tmp_path / "b", rows=1, assistant_model=model(layers=1))
    golden = generated(tmp_path / "a", rows=1)
    assert (found := twinprobe.compare(target, golden)).agrees, found.summary
    assert found.tokens is not None
    assert found.tokens.height >= 7  # of 8: the last guess may have been right


def test_beams_cannot_be_followed_through_a_cache(tmp_path: Path) -> None:
    """Rows carry on other rows: nothing false may be claimed, and no number of tokens may be negative."""
    target, golden = generated(tmp_path / "b", num_beams=3, use_cache=False), generated(tmp_path / "a", num_beams=3)
    with pytest.raises(BadInput, match="as beams do"):
        twinprobe.compare(target, golden)


def test_another_temperature_is_named_although_the_same_tokens_were_drawn(tmp_path: Path) -> None:
    """Logits stand so far apart that one token has nearly all probability."""
    runs = [generated(tmp_path / str(heat), do_sample=True, top_k=2, temperature=heat) for heat in (0.01, 0.012)]
    found = twinprobe.compare(*runs)
    assert found.first is not None, found.summary
    assert "0.01 against 0.012" in found.first.sentence
