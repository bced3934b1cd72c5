"""Pairs that no rule was tuned on: what is right about them was written down before they were first aligned.

They may be measured as often as one likes; a rule that is changed for their sake makes the figures ordinary ones again,
and docs/align.md must say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transformers

from models import (
    convnext_conv,
    distil_packed,
    mixtral_blocks,
    mobilenet_features,
    neox_parallel,
    qwen_dense,
    unet_double,
    unet_levels,
    whisper_audio,
)
from models.catalogue import LAYERS, ModelPair, by_layer

_Places = Iterator[tuple[dict[str, object], dict[str, object]]]


@dataclass(frozen=True)
class HeldOutPair(ModelPair):
    """A pair whose inputs may be more than one tensor."""

    make_inputs: Callable[[], Any] | None = None

    def inputs(self) -> Any:
        """What both models are given."""
        return super().inputs() if self.make_inputs is None else self.make_inputs()


def _by_stack(key: str, layers: list[int]) -> _Places:
    """Whisper: only the decoder's layers may be missing."""
    return by_layer(key, layers if key.startswith("speaker") else list(range(LAYERS)))


def _by_stage(_key: str, layers: list[int]) -> _Places:
    """ConvNeXt: only blocks of the last stage may be missing."""
    for stage, blocks in enumerate((list(range(LAYERS)), layers)):
        for mine, theirs in enumerate(blocks):
            yield {"s": stage, "i": mine}, {"s": stage, "i": theirs}


def _by_feature(_key: str, layers: list[int]) -> _Places:
    """MobileNetV2: sixteen blocks after the first two entries of the list."""
    blocks = [*layers, *range(4, 16)]
    for mine, theirs in enumerate(blocks):
        yield {"f": mine + 2, "last": len(blocks) + 2}, {"i": theirs}


def _sizes(**more: Any) -> dict[str, Any]:
    return {"hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "vocab_size": 64, **more}


def _qwen2() -> Any:
    return transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(**_sizes(intermediate_size=48, num_key_value_heads=2))
    )


def _neox() -> Any:
    return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**_sizes(intermediate_size=128)))


def _distilbert() -> Any:
    config = transformers.DistilBertConfig(
        dim=32, n_layers=LAYERS, n_heads=4, hidden_dim=64, vocab_size=64, max_position_embeddings=32, num_labels=5
    )
    return transformers.DistilBertForSequenceClassification(config)


def _whisper() -> Any:
    config = transformers.WhisperConfig(
        d_model=32, encoder_layers=LAYERS, decoder_layers=LAYERS, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=64, num_mel_bins=8, max_source_positions=10,
        max_target_positions=16, pad_token_id=0, bos_token_id=0, eos_token_id=0, decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.WhisperForConditionalGeneration(config)


def _heard() -> dict[str, torch.Tensor]:
    torch.manual_seed(7)
    return {"input_features": torch.randn(2, 8, 20), "decoder_input_ids": torch.randint(0, 64, (2, 6))}


def _convnext() -> Any:
    config = transformers.ConvNextConfig(
        hidden_sizes=[8, 16], depths=[LAYERS, LAYERS], num_stages=2, num_labels=5, image_size=32
    )
    return transformers.ConvNextForImageClassification(config)


def _mobilenet() -> Any:
    config = transformers.MobileNetV2Config(depth_multiplier=0.25, image_size=64, num_labels=5, tf_padding=False)
    return transformers.MobileNetV2ForImageClassification(config)


def _mixtral(experts: str) -> Any:
    sizes = _sizes(intermediate_size=48, num_key_value_heads=2, num_local_experts=4, experts_implementation=experts)
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes))


HELD_OUT = (
    HeldOutPair(
        "qwen2 / dense names", _qwen2, qwen_dense.QwenDense, qwen_dense.TRUTH, "backbone.transformer_layer_{k}"
    ),
    HeldOutPair("gpt-neox / parallel", _neox, neox_parallel.NeoXParallel, neox_parallel.TRUTH, "trunk.{k}"),
    HeldOutPair(
        "distilbert / packed",
        _distilbert,
        distil_packed.DistilPacked,
        distil_packed.TRUTH,
        "encoder.sentence_layers.{k}",
    ),
    HeldOutPair(
        "whisper / audio", _whisper, whisper_audio.WhisperAudio, whisper_audio.TRUTH, "speaker.blocks.{k}", _by_stack,
        make_inputs=_heard,
    ),
    HeldOutPair(
        "convnext / convolutions", _convnext, convnext_conv.ConvNextConv, convnext_conv.TRUTH, "stages.0.blocks.{k}",
        _by_stage, image=32,
    ),
    HeldOutPair(
        "mobilenet v2 / features", _mobilenet, mobilenet_features.MobileNetFeatures, mobilenet_features.TRUTH,
        "features.3", _by_feature, image=64,
    ),
    HeldOutPair(
        "mixtral, grouped experts / blocks", partial(_mixtral, "grouped_mm"), mixtral_blocks.MixtralBlocks,
        mixtral_blocks.TRUTH, "blocks.{k}",
    ),
    HeldOutPair(
        "mixtral, one by one / blocks", partial(_mixtral, "eager"), mixtral_blocks.MixtralBlocks,
        mixtral_blocks.ONE_BY_ONE, "blocks.{k}",
    ),
    HeldOutPair(
        "u-net / levels", unet_double.UNetDouble, unet_levels.UNetLevels, unet_levels.TRUTH, "bottleneck.{k}", image=16
    ),
)  # fmt: skip
