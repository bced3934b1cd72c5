"""A second set of pairs that no rule was tuned on, by someone who had not read the rules' code.

What is right was written down before the first alignment. As with the first set: a rule that is changed for the sake of
these makes their figures ordinary ones, and docs/align.md must say so.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers

from models import (
    bart_sublayers,
    clip_towers,
    falcon_branches,
    gan_flat,
    gan_grown,
    gemma_folded,
    lstm_library,
    lstm_unrolled,
    mpt_paths,
    regnet_trunk,
    wav_context,
)
from models.catalogue import LAYERS, Places, by_layer
from models.held_out import HeldOutPair

IMAGE_LAYERS = 2  # of CLIP's eye


def _by_stack(prefix: str, others: int) -> Places:
    """Only the layers of the stack whose names begin so may be missing."""
    return lambda key, layers: by_layer(key, layers if key.startswith(prefix) else list(range(others)))


def _by_stage(_key: str, layers: list[int]) -> Any:
    """RegNet: only blocks of the last stage may be missing."""
    for stage, blocks in enumerate((list(range(LAYERS)), layers)):
        for mine, theirs in enumerate(blocks):
            yield {"s": stage, "i": mine}, {"s": stage, "i": theirs}


def _by_step(_key: str, layers: list[int]) -> Any:
    """The generator: three entries of the flat list for each refining block."""
    for mine, theirs in enumerate(layers):
        yield {"i": mine}, {name: 9 + 3 * theirs + at for at, name in enumerate(("conv", "norm", "act"))}


def _gemma() -> Any:
    config = transformers.GemmaConfig(
        hidden_size=32, num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=1, head_dim=16,
        intermediate_size=48, vocab_size=64, max_position_embeddings=32,
    )  # fmt: skip
    return transformers.GemmaForCausalLM(config)


def _mpt() -> Any:
    return transformers.MptForCausalLM(
        transformers.MptConfig(d_model=32, n_heads=4, n_layers=LAYERS, vocab_size=64, max_seq_len=32)
    )


def _falcon() -> Any:
    config = transformers.FalconConfig(
        hidden_size=32, num_hidden_layers=LAYERS, num_attention_heads=4, num_kv_heads=2, new_decoder_architecture=True,
        vocab_size=64, max_position_embeddings=32, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.FalconForCausalLM(config)


def _bart() -> Any:
    config = transformers.BartConfig(
        d_model=32, encoder_layers=LAYERS, decoder_layers=LAYERS, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=64, max_position_embeddings=32, pad_token_id=1,
        bos_token_id=0, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=2,
    )  # fmt: skip
    return transformers.BartForConditionalGeneration(config)


def _translated() -> dict[str, torch.Tensor]:
    torch.manual_seed(7)
    return {"input_ids": torch.randint(3, 64, (2, 9)), "decoder_input_ids": torch.randint(3, 64, (2, 6))}


def _clip() -> Any:
    text = {
        "hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "intermediate_size": 64,
        "vocab_size": 64, "max_position_embeddings": 16, "eos_token_id": 2, "bos_token_id": 0, "pad_token_id": 1,
    }  # fmt: skip
    image = {
        "hidden_size": 48, "num_hidden_layers": IMAGE_LAYERS, "num_attention_heads": 4, "intermediate_size": 96,
        "image_size": 16, "patch_size": 4,
    }  # fmt: skip
    return transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=image, projection_dim=24))


def _captioned() -> dict[str, torch.Tensor]:
    torch.manual_seed(7)
    return {"input_ids": torch.randint(3, 64, (2, 8)), "pixel_values": torch.rand(2, 3, 16, 16)}


def _wav2vec2() -> Any:
    config = transformers.Wav2Vec2Config(
        hidden_size=32, num_hidden_layers=LAYERS, num_attention_heads=4, intermediate_size=64, vocab_size=20,
        conv_dim=(16, 16, 16), conv_kernel=(10, 3, 3), conv_stride=(5, 2, 2), num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=4, pad_token_id=0,
    )  # fmt: skip
    return transformers.Wav2Vec2ForCTC(config)


def _sound() -> torch.Tensor:
    torch.manual_seed(7)
    return torch.randn(2, 400)


def _regnet() -> Any:
    config = transformers.RegNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[LAYERS, LAYERS], groups_width=4, num_labels=5
    )
    return transformers.RegNetForImageClassification(config)


def _latent() -> torch.Tensor:
    torch.manual_seed(7)
    return torch.randn(2, 16)


HELD_OUT_SECOND = (
    HeldOutPair("gemma / folded norms", _gemma, gemma_folded.GemmaFolded, gemma_folded.TRUTH, "tower.{k}"),
    HeldOutPair("mpt / paths", _mpt, mpt_paths.MptPaths, mpt_paths.TRUTH, "ladder.{k}"),
    HeldOutPair("falcon / branches", _falcon, falcon_branches.FalconBranches, falcon_branches.TRUTH, "bricks.{k}"),
    HeldOutPair(
        "bart / sublayers", _bart, bart_sublayers.BartSublayers, bart_sublayers.TRUTH, "sink.stages.{k}",
        _by_stack("sink", LAYERS), make_inputs=_translated,
    ),
    HeldOutPair(
        "clip / eye and reader", _clip, clip_towers.ClipTowers, clip_towers.TRUTH, "reader.blocks.{k}",
        _by_stack("reader", IMAGE_LAYERS), make_inputs=_captioned,
    ),
    HeldOutPair(
        "wav2vec2 / context", _wav2vec2, wav_context.WavContext, wav_context.TRUTH, "context.layers.{k}",
        make_inputs=_sound,
    ),
    HeldOutPair(
        "regnet / trunk", _regnet, regnet_trunk.RegNetTrunk, regnet_trunk.TRUTH, "trunk.0.{k}", _by_stage, image=32
    ),
    HeldOutPair(
        "lstm / unrolled", lstm_library.LSTMLibrary, lstm_unrolled.LSTMUnrolled, lstm_unrolled.TRUTH, "rungs.{k}"
    ),
    HeldOutPair(
        "gan / grown", gan_flat.GanFlat, gan_grown.GanGrown, gan_grown.TRUTH, "refining.{k}", _by_step,
        make_inputs=_latent,
    ),
)  # fmt: skip
