"""Torch modules and ATB operators find each other by structure, whatever the layout of the engine's graph is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llm_dumps import (
    Op,
    Sizes,
    Values,
    atb_layer,
    atb_model,
    decoder_values,
    torch_places,
    write_atb_model,
    write_torch,
)

from support import slow
from twinprobe._compare.llm.job import LlmComparison, LlmRequest, compare_dumps


def made(tmp_path: Path, sizes: Sizes, layer: Op, values: Values | None = None) -> tuple[Path, Path]:
    """A torch dump and an ATB dump of the same numbers."""
    values = values or decoder_values(sizes)
    torch_dump = write_torch(tmp_path / "torch" / "7_npu0", {0: values}, sizes.layers)
    atb = write_atb_model(tmp_path / "ait_dump", "0_8", {0: values}, atb_model(sizes.layers, layer))
    return torch_dump, atb


def pairs_of(result: LlmComparison) -> set[tuple[str, str]]:
    rows = result.table.select("golden_data_path", "my_data_path").fill_null("").rows()
    return {tuple(";".join(part.split("/0/", 1)[-1] for part in cell.split(";")) for cell in row) for row in rows}  # type: ignore[misc]


def check_all_right(result: LlmComparison) -> None:
    """Every number at one place is the same on both sides, so every right pair passes and no wrong one does."""
    failed = result.table.filter(result.table["Result"] != "pass")
    assert failed.height == 0, failed.select("golden_data_path", "my_data_path", "Reason").rows()[:5]


@pytest.mark.parametrize("layers", [1, 2, 12, *slow(100)])
def test_layers_are_found_be_there_one_or_many(tmp_path: Path, layers: int) -> None:
    torch_dump, atb = made(tmp_path, Sizes(layers=layers, hidden=4, kv=4, wide=6, vocab=5, rows=2), atb_layer())
    result = compare_dumps(LlmRequest(atb, torch_dump, level="layer"))
    assert result.summary.matched == result.summary.rows == layers + 3
    check_all_right(result)


@pytest.mark.parametrize("attention_first", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kv", [16, 8])
def test_projections_pair_by_topology_and_shape(tmp_path: Path, attention_first: bool, fused: bool, kv: int) -> None:
    sizes = Sizes(layers=2, kv=kv)
    layer = atb_layer(attention_first=attention_first, fused=fused)
    torch_dump, atb = made(tmp_path, sizes, layer)
    result = compare_dumps(LlmRequest(atb, torch_dump))
    check_all_right(result)
    pairs = pairs_of(result)
    place = f"1_CommonLayer/{0 if attention_first else 1}_Attention"
    front = "root.model.layers.0.self_attn"
    for at, name in enumerate("qkv"):
        golden = f"{front}.{name}_proj/output.pth"
        if fused:
            assert (golden, f"{place}/0_QKVLinearSplitPack/after/outtensor{at}.bin") in pairs
            assert (golden, f"{place}/0_QKVLinearSplitPack/1_SplitOperation/after/outtensor{at}.bin") in pairs
        else:
            assert (golden, f"{place}/{at}_LinearOperation/after/outtensor0.bin") in pairs
    if fused:
        together = ";".join(f"{front}.{name}_proj/output.pth" for name in "qkv")
        assert (together, f"{place}/0_QKVLinearSplitPack/0_LinearOperation/after/outtensor0.bin") in pairs


def test_a_fused_gate_and_up_projection_is_cut(tmp_path: Path) -> None:
    torch_dump, atb = made(tmp_path, Sizes(), atb_layer(fused_mlp=True))
    result = compare_dumps(LlmRequest(atb, torch_dump))
    check_all_right(result)
    mlp, front = "1_CommonLayer/4_Mlp", "root.model.layers.0.mlp"
    assert (f"{front}.up_proj/output.pth", f"{mlp}/1_SplitOperation/after/outtensor1.bin") in pairs_of(result)


def test_what_has_no_module_is_compared_with_what_the_next_module_takes(tmp_path: Path) -> None:
    torch_dump, atb = made(tmp_path, Sizes(), atb_layer())
    pairs = pairs_of(compare_dumps(LlmRequest(atb, torch_dump)))
    layer, front = "1_CommonLayer", "root.model.layers.0"
    assert (f"{front}.mlp.down_proj/input_0.pth", f"{layer}/4_Mlp/3_ElewiseOperation/after/outtensor0.bin") in pairs
    attention = f"{layer}/1_Attention/1_SelfAttentionOperation/after/outtensor0.bin"
    assert (f"{front}.self_attn.o_proj/input_0.pth", attention) in pairs
    norm_input = f"{front}.post_attention_layernorm/input_0.pth"
    assert (norm_input, f"{layer}/2_ElewiseOperation/after/outtensor0.bin") in pairs


def test_an_error_in_one_projection_is_found_where_it_begins(tmp_path: Path) -> None:
    sizes = Sizes()
    torch_dump, _ = made(tmp_path, sizes, atb_layer())
    values = decoder_values(sizes)
    wrong = {**values, "1.k": values["1.k"] * 1.5, "1.context": values["1.context"] + 0.5}
    atb = write_atb_model(tmp_path / "wrong" / "ait_dump", "0_8", {0: wrong}, atb_model(sizes.layers, atb_layer()))
    first = compare_dumps(LlmRequest(atb, torch_dump)).summary.first
    assert first is not None
    assert "2_CommonLayer/1_Attention/0_QKVLinearSplitPack/0_LinearOperation" in first.row
    assert first.origin == "injected"


def test_every_module_of_the_torch_side_is_in_the_report(tmp_path: Path) -> None:
    sizes = Sizes(layers=2)
    torch_dump, atb = made(tmp_path, sizes, atb_layer())
    goldens = {part.rpartition("/")[0] for golden, _ in pairs_of(compare_dumps(LlmRequest(atb, torch_dump)))
               for part in golden.split(";")}  # fmt: skip
    assert goldens == torch_places(sizes.layers).keys()


def test_other_folder_numbers_and_a_lost_topology_change_nothing(tmp_path: Path) -> None:
    sizes = Sizes(layers=2)
    torch_dump, atb = made(tmp_path, sizes, atb_layer())
    expected = compare_dumps(LlmRequest(atb, torch_dump)).summary.matched
    for folder in (atb / "model" / "8").iterdir():
        folder.unlink()
    lost = compare_dumps(LlmRequest(atb, torch_dump))
    assert lost.summary.matched == expected
    check_all_right(lost)
    shifted = write_atb_model(
        tmp_path / "b" / "ait_dump", "0_8", {0: decoder_values(sizes)}, atb_model(2, atb_layer()), first=1
    )
    topology = next(shifted.glob("model/8/*.json"))
    topology.write_text(topology.read_text().replace("WordEmbedding_1", "WordEmbedding_0"))
    assert compare_dumps(LlmRequest(shifted, torch_dump)).summary.matched == expected


def test_atb_runs_of_other_numbering_pair_by_structure(tmp_path: Path) -> None:
    sizes = Sizes(layers=2)
    values = decoder_values(sizes)
    one = write_atb_model(tmp_path / "a" / "ait_dump", "0_8", {0: values}, atb_model(2, atb_layer()))
    other = write_atb_model(
        tmp_path / "b" / "ait_dump", "0_9", {0: values}, atb_model(2, atb_layer(fused=False)), first=20
    )
    result = compare_dumps(LlmRequest(one, other))
    check = result.table.filter(
        result.table["golden_data_path"].is_not_null() & result.table["my_data_path"].is_not_null()
    )
    assert set(check["Result"]) == {"pass"}
    assert check.height > 40


@settings(deadline=None, max_examples=12)
@given(
    layers=st.integers(1, 4),
    hidden=st.sampled_from([4, 8]),
    kv=st.sampled_from([4, 8]),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    swapped=st.booleans(),
)
def test_no_layout_leads_to_a_wrong_pair(
    tmp_path_factory: pytest.TempPathFactory,
    layers: int,
    hidden: int,
    kv: int,
    flags: tuple[bool, bool, bool],
    swapped: bool,
) -> None:
    folder = tmp_path_factory.mktemp("layout")
    layer = atb_layer(attention_first=flags[0], fused=flags[1], fused_mlp=flags[2])
    torch_dump, atb = made(folder, Sizes(layers=layers, hidden=hidden, kv=kv, wide=6, vocab=7, rows=2), layer)
    paths = (torch_dump, atb) if swapped else (atb, torch_dump)
    result = compare_dumps(LlmRequest(*paths))
    compared = result.table.filter(result.table["cosine_similarity"].is_not_null())
    assert set(compared["Result"]) == {"pass"}
    assert np.all(compared["cosine_similarity"].to_numpy() > 0.9999)


def test_cosines_and_sines_of_a_rotary_module_are_what_the_engines_operator_takes(tmp_path: Path) -> None:
    import json

    from llm_dumps import write_pth

    sizes = Sizes(layers=1, hidden=8, kv=8, wide=12, vocab=10)
    values = decoder_values(sizes)
    rng = np.random.default_rng(5)
    values |= {f"0.{name}": rng.standard_normal((4, 4)).astype(np.float32) for name in ("cos", "sin")}
    values |= {"0.length": np.array([4], np.int64)}
    layer = atb_layer()
    rope = Op("RopeOperation", ("q", "k", "cos", "sin", "length"), ("q", "k"))
    layer.children[1].children.insert(1, rope)
    torch_dump, atb = made(tmp_path, sizes, layer, values)
    module = "root.model.layers.0.self_attn.rotary_emb"
    tree = json.loads((torch_dump / "model_tree.json").read_text())
    attention = tree["children"][0]["children"][1]["children"][0]["children"][0]
    attention["children"].append({"name": module, "type": "RotaryEmbedding", "children": []})
    (torch_dump / "model_tree.json").write_text(json.dumps(tree))
    for at, name in enumerate(("cos", "sin")):
        write_pth(torch_dump / "0" / module / f"output_{at}.pth", values[f"0.{name}"][None])
    table = compare_dumps(LlmRequest(atb, torch_dump)).table
    rows = table.filter(table["Matched By"] == "cosines and sines")
    assert [path.rpartition("/")[2] for path in rows["my_data_path"]] == ["intensor2.bin", "intensor3.bin"]
    assert rows["Result"].to_list() == ["pass", "pass"]
