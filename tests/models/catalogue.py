"""Pairs of models with known correspondence: how to build, disturb and record them, and what is right."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from models import (
    bert_flat,
    bloom_plain,
    gpt_split,
    gpt_stages,
    llama_mcore,
    llama_megatron,
    llama_release,
    qwen_fused,
    resnet_classic,
    t5_joint,
    vit_patches,
)
from twinprobe._runs.run import Run, open_run

LAYERS = 4
MISSING = 1  # the layer that a shortened model lacks
DIVERGES = 1  # the layer whose output is spoiled
CLEAN, DIVERGED, BF16, UNRELATED, SHORTENED = "clean", "diverged", "bf16", "unrelated weights", "one layer missing"
DISTURBANCES = (CLEAN, DIVERGED, BF16, UNRELATED, SHORTENED)
Truth = set[tuple[str, str]]
Places = Callable[[str, list[int]], Iterator[tuple[dict[str, object], dict[str, object]]]]


def by_layer(_key: str, layers: list[int]) -> Iterator[tuple[dict[str, object], dict[str, object]]]:
    """The layers in their order."""
    for mine, theirs in enumerate(layers):
        yield {"i": mine}, {"i": theirs}


def _by_stage(_key: str, layers: list[int]) -> Iterator[tuple[dict[str, object], dict[str, object]]]:
    half = (len(layers) + 1) // 2
    for mine, theirs in enumerate(layers):
        yield {"s": mine // half, "i": mine % half}, {"i": theirs}


def _by_stack(key: str, layers: list[int]) -> Iterator[tuple[dict[str, object], dict[str, object]]]:
    return by_layer(key, layers if key.startswith("writer") else list(range(LAYERS)))


def _by_resnet_block(_key: str, layers: list[int]) -> Iterator[tuple[dict[str, object], dict[str, object]]]:
    for stage, blocks in enumerate(([0, 1, 2, 3], layers)):
        for mine, theirs in enumerate(blocks):
            yield {"s1": stage + 1, "i": mine}, {"s": stage, "i": theirs}


@dataclass(frozen=True)
class ModelPair:
    """A published model and one written again. ``layer`` finds the module whose output a disturbance spoils."""

    name: str
    published: Callable[[], Any]
    own: Callable[[Any, int], Any]
    truth: dict[Any, Any]
    layer: str
    places: Places = by_layer
    image: int = 0

    def inputs(self) -> Any:
        """What both models are given: a tensor, or arguments by name."""
        torch.manual_seed(7)
        return torch.rand(2, 3, self.image, self.image) if self.image else torch.randint(0, 64, (2, 8))

    def correct(self, layers: list[int]) -> Truth:
        """All pairs (own, published) of module paths, or ``path:function`` for calls."""
        found: Truth = set()
        for mine, theirs in self.truth.items():
            keys = (mine,) if isinstance(mine, str) else mine
            values = (theirs,) if isinstance(theirs, str) else theirs
            for key, value in itertools.product(keys, values):
                for own, other in self.places(key, layers):
                    found.add((key.format(**own), value.format(**other)))
        return found


def _sizes(**more: Any) -> dict[str, Any]:
    return {"hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 4, **more}


def _llama() -> Any:
    sizes = _sizes(intermediate_size=48, num_key_value_heads=2, vocab_size=64, max_position_embeddings=32)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))


def _suite() -> Any:
    model = llama_megatron.LlamaMegatron(_llama().config, LAYERS)
    model.config = _llama().config
    return model


def _gpt2() -> Any:
    config = transformers.GPT2Config(
        n_embd=32, n_layer=LAYERS, n_head=4, vocab_size=64, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def _bert() -> Any:
    sizes = _sizes(intermediate_size=64, vocab_size=64, max_position_embeddings=32)
    return transformers.BertModel(transformers.BertConfig(**sizes))


def _t5() -> Any:
    config = transformers.T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=LAYERS, num_heads=4, vocab_size=64, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)


def _vit() -> Any:
    sizes = _sizes(intermediate_size=64, image_size=16, patch_size=4, num_labels=5)
    return transformers.ViTForImageClassification(transformers.ViTConfig(**sizes))


def _resnet() -> Any:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[LAYERS, LAYERS], layer_type="basic", num_labels=5
    )
    return transformers.ResNetForImageClassification(config)


def _bloom() -> Any:
    config = transformers.BloomConfig(hidden_size=32, n_layer=LAYERS, n_head=4, vocab_size=64)
    return transformers.BloomForCausalLM(config)


def _qwen() -> Any:
    sizes = _sizes(intermediate_size=48, num_key_value_heads=2, head_dim=8, vocab_size=64)
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes))


PAIRS = (
    ModelPair("llama / release names", _llama, llama_release.LlamaRelease, llama_release.TRUTH, "layers.{k}"),
    ModelPair(
        "llama / suite, fused, sequence first", _llama, llama_megatron.LlamaMegatron, llama_megatron.TRUTH,
        "module.module.language_model.encoder.layers.{k}",
    ),
    ModelPair(
        "suite / rewritten suite, norms inside",
        _suite,
        llama_mcore.LlamaMcore,
        llama_mcore.TRUTH,
        "model.module.decoder.layers.{k}",
    ),
    ModelPair("gpt2 / split projections", _gpt2, gpt_split.GPTSplit, gpt_split.TRUTH, "blocks.{k}"),
    ModelPair("gpt2 / stages", _gpt2, gpt_stages.GPTStages, gpt_stages.TRUTH, "stages.0.body.{k}", _by_stage),
    ModelPair("bert / flat blocks", _bert, bert_flat.BertFlat, bert_flat.TRUTH, "block{k}"),
    ModelPair("t5 / joint", _t5, t5_joint.T5Joint, t5_joint.TRUTH, "writer.layers.{k}", _by_stack),
    ModelPair("vit / fused qkv", _vit, vit_patches.ViTPatches, vit_patches.TRUTH, "blocks.{k}", image=16),
    ModelPair(
        "resnet / classic", _resnet, resnet_classic.ResNetClassic, resnet_classic.TRUTH, "layer1.{k}",
        _by_resnet_block, image=32,
    ),
    ModelPair("bloom / residual outside", _bloom, bloom_plain.BloomPlain, bloom_plain.TRUTH, "units.{k}"),
    ModelPair("qwen3 / fused qkv", _qwen, qwen_fused.QwenFused, qwen_fused.TRUTH, "decoder.{k}"),
)  # fmt: skip


@dataclass(frozen=True)
class Recorded:
    """Two runs and what is right about them."""

    name: str
    disturbance: str
    target: Run
    golden: Run
    truth: Truth


def build(pair: ModelPair, disturbance: str = CLEAN) -> tuple[Any, Any, list[int]]:
    """Both models, and which layers of the published one the other has."""
    layers = [at for at in range(LAYERS) if disturbance != SHORTENED or at != MISSING]
    torch.manual_seed(0)
    published = pair.published().eval()
    _train_a_little(published)
    torch.manual_seed(1)
    own = pair.own(published.config, len(layers)).eval()
    if disturbance != UNRELATED:
        own.copy_from(published, layers)
    else:
        _train_a_little(own)
    if disturbance == DIVERGED:
        own.get_submodule(pair.layer.format(k=DIVERGES)).register_forward_hook(_spoil)
    return published, own.bfloat16() if disturbance == BF16 else own, layers


def record_pair(pair: ModelPair, disturbance: str, folder: Path, *, level: str = "mix", **more: Any) -> Recorded:
    """Record both models on the same input; the own one is the target."""
    published, own, layers = build(pair, disturbance)
    inputs = pair.inputs()
    golden = record_run(published, inputs, folder / "golden", level=level, labels="t5" in pair.name, **more)
    target = record_run(
        own, _bfloat16(inputs) if disturbance == BF16 else inputs, folder / "target", level=level, **more
    )
    return Recorded(pair.name, disturbance, target, golden, pair.correct(layers))


def record_run(
    model: Any, inputs: Any, folder: Path, *, labels: bool = False, backward: bool = True, **options: Any
) -> Run:
    """One forward (and backward) pass of a model, recorded."""
    from twinprobe.torch import record

    options = {"level": "mix", "task": "statistics", **options}
    quiet = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    with quiet[0], quiet[1], torch.set_grad_enabled(backward), record(model, folder, **options):
        outputs = model(inputs, labels=inputs) if labels else called(model, inputs)
        if backward:
            _first(outputs).float().square().mean().backward()
    return open_run(next(folder.rglob("dump.json")))


def called(model: Any, inputs: Any) -> Any:
    """What a model returns for a tensor, or for arguments by name."""
    return model(**inputs) if isinstance(inputs, dict) else model(inputs)


def _bfloat16(inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return {name: _bfloat16(value) for name, value in inputs.items()}
    return inputs.bfloat16() if inputs.is_floating_point() else inputs


def _first(outputs: Any) -> torch.Tensor:
    found = getattr(outputs, "logits", outputs)
    return found if isinstance(found, torch.Tensor) else found[0]


def _spoil(_module: Any, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
    """Values go their own way from here on."""
    generator = torch.Generator().manual_seed(3)
    return output + 0.7 * output.std() * torch.randn(output.shape, generator=generator).to(output.dtype)


@torch.no_grad()
def _train_a_little(model: Any) -> None:
    """Norms start as ones and biases as zeros; in a trained model no two layers are alike."""
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.add_(0.1 * torch.randn_like(parameter))
