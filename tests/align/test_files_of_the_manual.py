"""Every mapping file that the users' documents print is read and does what the text beside it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pairing import calls, match, matched, small_run, yaml_file

from twinprobe._align.mapping import MappingOptions
from twinprobe._align.matcher import build_matcher

LAYERS = """
ParallelAttention:                 # Layer name
  qkv_proj: query_key_value        # left: this run, right: the other
  out_proj: dense

ParallelTransformerLayer:
  attention: self_attention

Embedding:
  dropout: embedding_dropout

ParallelMLP:
  mapping: dense_h_to_4h
  projection: dense_4h_to_h

PipelineCell:
  model: module

Cell:
  network_with_loss: module
"""
NUMBERS = """
layers:
  '5': '0'
  '6': '1'
  '7': '2'
  '8': '3'
  '9': '4'
"""


def cells(first: int) -> list[str]:
    names = ["Cell.network_with_loss.PipelineCell", "Cell.network_with_loss.model.GPTModel"]
    names += ["Cell.network_with_loss.model.embedding.Embedding"]
    names += ["Cell.network_with_loss.model.embedding.dropout.Dropout"]
    for layer in range(first, first + 5):
        head = f"Cell.network_with_loss.model.layers.{layer}"
        names += [f"{head}.ParallelTransformerLayer", f"{head}.attention.ParallelAttention"]
        names += [f"{head}.attention.qkv_proj.Dense", f"{head}.attention.out_proj.Dense"]
        names += [f"{head}.mlp.ParallelMLP", f"{head}.mlp.mapping.Dense", f"{head}.mlp.projection.Dense"]
    return [f"{name}.{call}" for name in names for call in ("forward.0", "backward.0", "parameters_grad.0")]


def in_the_other_words(name: str, shift: int) -> str:
    """The same cell as the PyTorch model calls it, by hand."""
    words = {
        "Cell": "Module", "network_with_loss": "module", "model": "module", "qkv_proj": "query_key_value",
        "out_proj": "dense", "attention": "self_attention", "mapping": "dense_h_to_4h", "projection": "dense_4h_to_h",
        "Dense": "Linear", "dropout": "embedding_dropout",
    }  # fmt: skip
    parts = [words.get(part, part) for part in name.split(".")]
    if "layers" in parts:
        at = parts.index("layers") + 1
        parts[at] = str(int(parts[at]) - shift)
    return ".".join(parts)


@pytest.mark.parametrize(("text", "shift"), [(LAYERS, 0), (LAYERS + NUMBERS, 5)], ids=["names", "names and numbers"])
def test_the_printed_layer_mapping_links_both_models(tmp_path: Path, text: str, shift: int) -> None:
    names = cells(shift)
    target = small_run(tmp_path / "t", calls(*names), framework="mindspore", level="L0")
    golden = small_run(tmp_path / "g", calls(*(in_the_other_words(name, shift) for name in names)), level="L0")
    found = match(target, golden, layer=yaml_file(tmp_path, text))
    assert not [note for note in found.notes if "line" in note]
    pairs = matched(target, golden, layer=yaml_file(tmp_path, text))
    assert len(pairs) == target.table.height
    assert all(in_the_other_words(row, shift) == other for row, other in pairs.items())


def test_the_worked_example_of_the_graph_manual_links_across_an_extra_level(tmp_path: Path) -> None:
    text = """
TopLayer:
  module: model

GPTModel:
    language_model.embedding: embedding
    language_model.rotary_pos_emb: rotary_pos_emb
    language_model.encoder: decoder

ParallelMLP:
    dense_h_to_4h: linear_fc1
    dense_4h_to_h: linear_fc2
"""
    pairs = {
        "Module.module.Float16Module": "Module.model.FloatModule",
        "Module.module.module.GPTModel": "Module.model.module.GPT2Model",
        "Module.module.module.language_model.embedding.Embedding": (
            "Module.model.module.embedding.LanguageModelEmbedding"
        ),
        "Module.module.module.language_model.rotary_pos_emb.RotaryEmbedding": (
            "Module.model.module.rotary_pos_emb.RotaryEmbedding"
        ),
        "Module.module.module.language_model.encoder.ParallelTransformer": (
            "Module.model.module.decoder.TransformerBlock"
        ),
        "Module.module.module.language_model.encoder.layers.0.mlp.ParallelMLP": (
            "Module.model.module.decoder.layers.0.mlp.MLP"
        ),
        "Module.module.module.language_model.encoder.layers.0.mlp.dense_h_to_4h.ColumnParallelLinear": (
            "Module.model.module.decoder.layers.0.mlp.linear_fc1.TELayerNormColumnParallelLinear"
        ),
        "Module.module.module.language_model.encoder.layers.0.mlp.dense_4h_to_h.RowParallelLinear": (
            "Module.model.module.decoder.layers.0.mlp.linear_fc2.TERowParallelLinear"
        ),
    }
    alone = "Module.module.module.language_model.TransformerLanguageModel"
    target = small_run(tmp_path / "t", calls(*(f"{name}.forward.0" for name in [*pairs, alone])))
    golden = small_run(tmp_path / "g", calls(*(f"{name}.forward.0" for name in pairs.values())))
    found = matched(target, golden, layer=yaml_file(tmp_path, text))
    assert found == {
        f"{mine}.forward.0.{row}": f"{theirs}.forward.0.{row}"
        for mine, theirs in pairs.items()
        for row in ("input.0", "output.0")
    }


def test_the_printed_cell_mappings_work(tmp_path: Path) -> None:
    by_name = "fc2.Dense: fc2.Linear\nconv1.Conv2d: conv3.Conv2d\n"
    target = small_run(
        tmp_path / "t", calls("Cell.fc2.Dense.forward.0", "Cell.conv1.Conv2d.forward.0"), framework="mindspore"
    )
    golden = small_run(tmp_path / "g", calls("Module.fc2.Linear.forward.0", "Module.conv3.Conv2d.forward.0"))
    found = matched(target, golden, cell=yaml_file(tmp_path, by_name))
    assert found["Cell.fc2.Dense.forward.0.input.0"] == "Module.fc2.Linear.forward.0.input.0"
    assert found["Cell.conv1.Conv2d.forward.0.output.0"] == "Module.conv3.Conv2d.forward.0.output.0"

    by_string = (
        "MindSpeedTELayerNormColumnParallelLinear: TELayerNormColumnParallelLinear\n"
        "RowParallelLinear: TERowParallelLinear\n"
    )
    mine = ["Module.a.MindSpeedTELayerNormColumnParallelLinear.forward.0", "Module.b.RowParallelLinear.forward.0"]
    theirs = ["Module.a.TELayerNormColumnParallelLinear.forward.0", "Module.b.TERowParallelLinear.forward.0"]
    target, golden = small_run(tmp_path / "t2", calls(*mine)), small_run(tmp_path / "g2", calls(*theirs))
    found = matched(target, golden, cell=yaml_file(tmp_path, by_string))
    assert found == {
        f"{one}.{row}": f"{two}.{row}" for one, two in zip(mine, theirs, strict=True) for row in ("input.0", "output.0")
    }


def test_the_printed_data_mapping_works(tmp_path: Path) -> None:
    attention = "Functional.flash_attention_score.4.forward", "NPU.npu_fusion_attention.4.forward"
    relu, embedding = (
        "Cell.relu.ReLU",
        "Module.module.language_model.embedding.word_embedding.VocabParallelEmbedding",
    )
    text = (
        f"# API\n{attention[0]}.input.0: {attention[1]}.input.0\n"
        f"# Module\n{relu}.forward.0.input.0: {embedding}.forward.0.input.0\n"
        f"{relu}.parameters_grad.weight: {embedding}.parameters_grad.weight\n"
    )
    target = small_run(
        tmp_path / "t",
        calls(attention[0], f"{relu}.forward.0", f"{relu}.parameters_grad.0"),
        framework="mindspore",
    )
    golden = small_run(tmp_path / "g", calls(attention[1], f"{embedding}.forward.0", f"{embedding}.parameters_grad"))
    found = match(target, golden, data=yaml_file(tmp_path, text))
    assert found.notes == []
    pairs = matched(target, golden, data=yaml_file(tmp_path, text))
    assert pairs[f"{attention[0]}.input.0"] == f"{attention[1]}.input.0"
    assert pairs[f"{relu}.forward.0.input.0"] == f"{embedding}.forward.0.input.0"
    assert pairs[f"{relu}.parameters_grad.0.weight"] == f"{embedding}.parameters_grad.weight"


def test_files_exactly_as_printed_are_read(tmp_path: Path, seeds: Path) -> None:
    (manual,) = seeds.glob("004*.txt")
    text = manual.read_text(encoding="utf-8")
    examples = text.split("Appendixes")[1].split("an example of the file content:")[1:]
    assert len(examples) == 5
    api, cell_names, cell_strings, data, layer = (_yaml_part(example) for example in examples)
    options = [
        MappingOptions(api=yaml_file(tmp_path, api, "api.yaml")),
        MappingOptions(cell=yaml_file(tmp_path, cell_names, "names.yaml")),
        MappingOptions(cell=yaml_file(tmp_path, cell_strings, "strings.yaml")),
        # The word between the two examples is the manual's, not the file's.
        MappingOptions(data=yaml_file(tmp_path, data.replace("\nOr\n", "\n"), "data.yaml")),
        MappingOptions(layer=yaml_file(tmp_path, layer, "layer.yaml")),
    ]
    for name in ("000*", "002*"):
        (document,) = seeds.glob(f"{name}.txt")
        fenced = re.findall(r"```yaml\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)
        assert fenced
        options += [
            MappingOptions(layer=yaml_file(tmp_path, part, f"{name[:3]}_{at}.yaml")) for at, part in enumerate(fenced)
        ]
    for option in options:
        matcher = build_matcher(option)
        assert matcher.data or matcher.layer or matcher.cell or matcher.api


def _yaml_part(example: str) -> str:
    """The lines of an example up to the prose after it."""
    lines = []
    for line in example.strip("\n").splitlines():
        if line and not re.match(r"[\w.{}/]+:|- |\s|#|Or$", line):
            break
        lines.append(line)
    return "\n".join(lines) + "\n"
