"""The operator table: built in, updated by the user's file, and refused with a reason where it is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from llm_dumps import Op, Sizes, atb_layer, atb_model, decoder_values, write_atb_model, write_torch

from twinprobe._align.ops.table import BUILT_IN, FILE, kind_of, read_table
from twinprobe._compare.llm.job import LlmRequest, compare_dumps
from twinprobe.errors import BadInput

SEED = {
    "LayerNormOperation": "LayerNorm",
    "LinearOperation": "Linear",
    "CommonLayer_outtensor0": ["GLMBlock_output_0", "BloomBlock_output_0"],
    "MlpGateLayerV2": ["BloomMLP", "MLP"],
    "RmsNormOperation": ["RMSNorm"],
    "SelfAttentionOperation": ["CoreAttention"],
}


def test_the_built_in_table_is_that_of_the_document() -> None:
    as_tuples = {key: (value,) if isinstance(value, str) else tuple(value) for key, value in SEED.items()}
    assert {key: set(values) for key, values in BUILT_IN.items()} == {key: set(v) for key, v in as_tuples.items()}


def test_the_documents_own_file_is_read_from_its_folder_and_by_its_name(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps(SEED))
    for path in (tmp_path, tmp_path / FILE):
        table = read_table(path)
        assert table.notes == ()
        entry = table.entry("LinearOperation", "Linear")
        assert entry is not None
        assert entry.by_user


def test_a_string_is_one_name_and_not_its_letters(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"CustomOperation": "Attn"}')
    table = read_table(tmp_path)
    assert table.entry("CustomOperation", "Attn") is not None
    assert table.entry("CustomOperation", "t") is None


def test_entries_update_by_key(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"RmsNormOperation": "MyNorm"}')
    table = read_table(tmp_path)
    assert table.entry("RmsNormOperation", "RMSNorm") is None
    assert table.entry("RmsNormOperation", "MyNorm") is not None
    assert table.entry("LinearOperation", "Linear") is not None


def test_a_folder_without_the_file_means_the_built_in_table_with_one_notice(tmp_path: Path) -> None:
    table = read_table(tmp_path)
    assert table.entries == read_table(None).entries
    assert len(table.notes) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "must be an object"),
        ('{"A": 1}', "text or a list"),
        ('{"A": []}', "text or a list"),
        ('{"A": ["B", 2]}', "text or a list"),
        ('{"A": {"B": "C"}}', "text or a list"),
        ('{"A b": "C"}', "only letters"),
        ('{"A": "../C"}', "only letters"),
        ("\\u0000", "not valid JSON"),
    ],
)
def test_a_file_that_is_no_table_is_refused_with_the_place(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(BadInput, match=words) as caught:
        read_table(tmp_path)
    assert FILE in str(caught.value)


def test_a_path_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        read_table(tmp_path / "nowhere")


def test_kinds_do_not_stumble_over_the_word_operation() -> None:
    assert kind_of("LinearOperation") == "linear"  # not "rope", which it spells in the middle
    assert kind_of("RopeOperation") == "rotary"
    assert kind_of("AllGatherOperation") == "collective"


def test_the_users_file_joins_types_that_nobody_else_would(tmp_path: Path) -> None:
    """An operator of an unknown type, and a tensor named after an underscore."""
    sizes = Sizes(layers=2, hidden=8, kv=8, wide=12, vocab=10)
    values = decoder_values(sizes)
    layer = atb_layer()
    layer.children[4] = Op("FusedThing", ("norm2",), ("norm2", "down"))
    golden = write_torch(tmp_path / "t" / "7_npu0", {0: values}, 2)
    mine = write_atb_model(tmp_path / "ait_dump", "0_8", {0: values}, atb_model(2, layer))
    (tmp_path / FILE).write_text('{"FusedThing_outtensor1": "MLP_output"}')
    before = compare_dumps(LlmRequest(mine, golden)).table
    after = compare_dumps(LlmRequest(mine, golden, mapping=tmp_path)).table
    name = "4_FusedThing/after/outtensor1.bin"
    assert before.filter(before["my_data_path"].str.contains(name))["golden_data_path"].null_count() == 2
    rows = after.filter(after["my_data_path"].str.contains(name))
    assert [path.rpartition("/0/")[2] for path in rows["golden_data_path"]] == [
        "root.model.layers.0.mlp/output.pth",
        "root.model.layers.1.mlp/output.pth",
    ]
    assert rows["Result"].to_list() == ["pass", "pass"]
    assert rows["Matched By"].to_list() == ["operator table"] * 2
