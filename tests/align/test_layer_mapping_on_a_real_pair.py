"""A MindSpore model against its PyTorch twin under lm_good.yaml: every link, checked against a hand-written truth."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from pairing import MAPPING, match, matched, named, rules

from twinprobe._runs.run import Run, open_run

# Written by hand from the two models' source: every Cell that has a Module.
CELLS = {
    "module.Float16Module": "model.FloatModule",
    "module.module.GPTModel": "model.module.GPT2Model",
    "module.module.language_model.embedding.Embedding": "model.module.embedding.LanguageModelEmbedding",
    "module.module.language_model.embedding.word_embeddings.Embedding": (
        "model.module.embedding.word_embeddings.Embedding"
    ),
    "module.module.language_model.embedding.position_embeddings.Embedding": (
        "model.module.embedding.position_embeddings.Embedding"
    ),
    "module.module.language_model.embedding.dropout.Dropout": "model.module.embedding.embedding_dropout.Dropout",
    "module.module.language_model.encoder.ParallelTransformer": "model.module.decoder.TransformerBlock",
    "module.module.language_model.encoder.final_norm.LayerNorm": "model.module.decoder.final_layernorm.LayerNorm",
    "module.module.output_layer.Dense": "model.module.output_layer.Linear",
}
# Inside each of the two layers.
LAYER = {
    "ParallelTransformerLayer": "TransformerLayer",
    "input_norm.LayerNorm": "input_layernorm.LayerNorm",
    "attention.ParallelAttention": "self_attention.SelfAttention",
    "attention.qkv_proj.Dense": "self_attention.query_key_value.Linear",
    "attention.out_proj.Dense": "self_attention.dense.Linear",
    "post_attention_norm.LayerNorm": "pre_mlp_layernorm.LayerNorm",
    "mlp.ParallelMLP": "mlp.MLP",
    "mlp.dense_h_to_4h.Dense": "mlp.linear_fc1.Linear",
    "mlp.dense_4h_to_h.Dense": "mlp.linear_fc2.Linear",
}
for number in (0, 1):
    CELLS |= {
        f"module.module.language_model.encoder.layers.{number}.{cell}": f"model.module.decoder.layers.{number}.{module}"
        for cell, module in LAYER.items()
    }
APIS = {
    "Mint.add.0": "Torch.add.0",  # word and position embeddings
    "Primitive.layer_norm.LayerNorm.0": "Functional.layer_norm.0",
    "Mint.matmul.0": "Torch.matmul.0",  # query times key
    "Functional.mul.0": "Torch.mul.0",
    "Mint.add.1": "Torch.add.1",  # the mask
    "MintFunctional.softmax.0": "Functional.softmax.0",
    "Functional.matmul.0": "Torch.matmul.1",  # weights times value
    "Functional.add.0": "Torch.add.2",  # residual after attention
    "Primitive.layer_norm.LayerNorm.1": "Functional.layer_norm.1",
    "MintFunctional.silu.0": "Functional.silu.0",
    "Tensor.__add__.0": "Torch.add.3",  # residual after the mlp
    "Primitive.layer_norm.LayerNorm.2": "Functional.layer_norm.2",
    "Mint.matmul.1": "Torch.matmul.2",
    "Functional.mul.1": "Torch.mul.1",
    "Mint.add.2": "Torch.add.4",
    "MintFunctional.softmax.1": "Functional.softmax.1",
    "Functional.matmul.1": "Torch.matmul.3",
    "Functional.add.1": "Torch.add.5",
    "Primitive.layer_norm.LayerNorm.3": "Functional.layer_norm.3",
    "MintFunctional.silu.1": "Functional.silu.1",
    "Tensor.__add__.1": "Torch.add.6",
    "Primitive.layer_norm.LayerNorm.4": "Functional.layer_norm.4",
    "Functional.cross_entropy.0": "Functional.cross_entropy.0",
}
PARAMETERS = {"gamma": "weight", "beta": "bias", "embedding_table": "weight", "weight": "weight", "bias": "bias"}


def true_ops(ms: Run, pt: Run) -> dict[str, str]:
    """All pairs of calls that were recorded in both runs."""
    pairs = {
        f"Cell.{cell}.{call}": f"Module.{module}.{call}"
        for cell, module in CELLS.items()
        for call in ("forward.0", "backward.0", "parameters_grad.0")
    }
    pairs |= {f"{mine}.{way}": f"{theirs}.{way}" for mine, theirs in APIS.items() for way in ("forward", "backward")}
    return {mine: theirs for mine, theirs in pairs.items() if mine in ms.ops and theirs in pt.ops}


def linked_ops(ms: Run, pt: Run, pairs: dict[str, str]) -> dict[str, str]:
    """Pairs of rows -> pairs of calls, each of which must be unambiguous."""
    mine = dict(zip(ms.table["name"].to_list(), ms.table["op"].to_list(), strict=True))
    theirs = dict(zip(pt.table["name"].to_list(), pt.table["op"].to_list(), strict=True))
    found: dict[str, str] = {}
    for row, other in pairs.items():
        one, two = ms.ops[mine[row]], pt.ops[theirs[other]]
        assert found.setdefault(one, two) == two
    return found


@pytest.fixture(scope="module")
def pairs(ms: Run, pt: Run) -> dict[str, str]:
    return matched(ms, pt, layer=MAPPING / "lm_good.yaml")


def test_every_link_is_true_and_every_true_link_is_there(ms: Run, pt: Run, pairs: dict[str, str]) -> None:
    truth = true_ops(ms, pt)
    assert len(CELLS) == 27
    linked = linked_ops(ms, pt, pairs)
    # A gradient may be all that a composite function's backward call shares; its incoming gradient still compares.
    assert linked == truth


def test_every_parameter_and_its_gradient_meets_its_own(ms: Run, pt: Run, pairs: dict[str, str]) -> None:
    rows = [
        name for name in ms.table["name"].to_list() if ".parameters" in name and "TransformerLanguageModel" not in name
    ]
    assert len(rows) == 58
    for row in rows:
        head, _, parameter = row.rpartition(".")
        other_head, _, other = pairs[row].rpartition(".")
        cell = (
            head.removeprefix("Cell.").rpartition(".forward")[0] or head.removeprefix("Cell.").split(".parameters")[0]
        )
        assert CELLS[cell] in other_head
        assert PARAMETERS[parameter] == other


def test_values_and_places_of_a_pair_agree(ms: Run, pt: Run) -> None:
    found = match(ms, pt, layer=MAPPING / "lm_good.yaml")
    mine, theirs = ms.table.to_dicts(), pt.table.to_dicts()
    for row, other in zip(found.target.tolist(), found.golden.tolist(), strict=True):
        if row < 0 or other < 0:
            continue
        one, two = mine[row], theirs[other]
        assert one["shape"] == two["shape"], (one["name"], two["name"])
        if ".forward" in one["name"]:
            for stat in ("max", "min"):
                if None not in (one[stat], two[stat]) and not math.isnan(one[stat]) and not math.isnan(two[stat]):
                    assert one[stat] == pytest.approx(two[stat], rel=2e-3, abs=1e-5), (one["name"], two["name"])


def test_arguments_of_other_order_are_told_apart(pairs: dict[str, str]) -> None:
    head, other = "Primitive.layer_norm.LayerNorm.0.forward", "Functional.layer_norm.0.forward"
    assert pairs[f"{head}.input.1"] == f"{other}.input.2"  # gamma is weight; normalized_shape stands between
    assert pairs[f"{head}.input.2"] == f"{other}.input.3"


def test_the_extra_level_and_what_only_one_run_has_stay_alone(pairs: dict[str, str]) -> None:
    assert not [row for row in pairs if "TransformerLanguageModel" in row]
    assert not [row for row in pairs.values() if "Functional.linear" in row]


def test_the_rule_says_how_a_parameter_was_found(ms: Run, pt: Run) -> None:
    by = rules(ms, match(ms, pt, layer=MAPPING / "lm_good.yaml"))
    path = "Cell.module.module.language_model.encoder.layers.0"
    assert by[f"{path}.input_norm.LayerNorm.forward.0.input.0"] == "layer mapping"
    assert by[f"{path}.input_norm.LayerNorm.forward.0.parameters.gamma"] == "layer mapping, parameter spelling"


def test_swapped_runs_give_the_mirrored_result(ms: Run, pt: Run, pairs: dict[str, str]) -> None:
    swapped = match(pt, ms, layer=MAPPING / "lm_good.yaml")
    assert named(pt, ms, swapped) == {other: row for row, other in pairs.items()}
    assert any("the other way round" in note for note in swapped.notes)


def test_the_full_dumps_in_all_modes_link_the_same_calls(reference: Path, pairs: dict[str, str]) -> None:
    dumps = reference / "mindspore" / "dumps"
    expected = {row: other for row, other in pairs.items() if ".kwargs." not in row}
    for task in ("statistics", "tensor"):
        ms = open_run(dumps / f"ms_mix_{task}" / "step0" / "rank0")
        pt = open_run(dumps / f"pt_mix_{task}" / "step0" / "rank0")
        found = matched(ms, pt, layer=reference / "mindspore" / "mapping" / "lm_good.yaml")
        plain = {
            row.replace(".kwargs.", ".input."): other.replace(".kwargs.", ".input.") for row, other in found.items()
        }
        assert plain == expected
