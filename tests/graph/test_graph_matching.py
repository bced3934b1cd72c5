"""Which nodes meet: by names with ancestors, by a layer mapping, by fuzzy names, across frameworks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from graph_drawing import draw, dump, nodes, reference_db

from support import forward, tensor, write_dump


def partners(file: Path) -> dict[str, str]:
    """The last element of each target node's link."""
    return {
        row["node_name"]: row["matched_node_link"][-1]
        for row in nodes(file).values()
        if row["data_source"] == "NPU" and row["matched_node_link"]
    }


def test_a_layer_mapping_links_what_the_old_tool_links_and_the_gradients_besides(
    reference: Path, tmp_path: Path
) -> None:
    mapping = reference / "graph" / "layer_mapping.yaml"
    target, golden = dump(reference, "base_statistics"), dump(reference, "struct_statistics")
    (file,) = draw(target, golden, tmp_path, layer=mapping).files
    ours, theirs = nodes(file), nodes(reference_db(reference, "cmp_lm2"))
    assert ours.keys() == theirs.keys()
    more = {name for name, row in theirs.items() if ours[name]["matched_node_link"] != row["matched_node_link"]}
    assert len(more) == 16
    for name in more:
        assert "parameters_grad" in name
        assert theirs[name]["matched_node_link"] == []
        assert ours[name]["matched_node_link"]


def test_equal_names_inside_different_modules_do_not_meet(reference: Path, tmp_path: Path) -> None:
    target, golden = dump(reference, "struct_statistics"), dump(reference, "base_statistics")
    strict = partners(draw(target, golden, tmp_path / "strict", align="names", pair="numbers").files[0])
    loose = partners(draw(target, golden, tmp_path / "loose", loose=True, align="names", pair="numbers").files[0])
    assert "Functional.linear.0.forward" not in strict
    assert loose["Functional.linear.0.forward"] == "Functional.linear.0.forward"
    assert strict.items() <= loose.items()
    assert "Module.head.Linear.forward.0" in strict


def test_automatic_alignment_links_what_was_renamed(reference: Path, tmp_path: Path) -> None:
    mapping = reference / "graph" / "layer_mapping.yaml"
    target, golden = dump(reference, "base_statistics"), dump(reference, "struct_statistics")
    by_file = partners(draw(target, golden, tmp_path / "file", layer=mapping).files[0])
    by_itself = partners(draw(target, golden, tmp_path / "auto").files[0])
    modules = {name: other for name, other in by_file.items() if name.startswith("Module.")}
    assert {name: by_itself.get(name) for name in modules} == modules


def test_fuzzy_names_meet_whatever_their_call_numbers(tmp_path: Path) -> None:
    module = "Module.a.A.forward.0"
    for side, first in (("a", 0), ("b", 7)):
        calls = [f"Torch.add.{first + at}.forward" for at in range(3)]
        parents: dict[str, str | None] = {module: None} | dict.fromkeys(calls, module)
        data = {name: forward([tensor()], [tensor()]) for name in (*calls, module)}
        write_dump(tmp_path / side, data, parents=parents, stacks={})
    by_number = partners(draw(tmp_path / "a", tmp_path / "b", tmp_path / "numbers", pair="numbers").files[0])
    by_place = partners(draw(tmp_path / "a", tmp_path / "b", tmp_path / "place").files[0])
    fuzzy = partners(draw(tmp_path / "a", tmp_path / "b", tmp_path / "fuzzy", fuzzy=True).files[0])
    assert by_number.keys() == {"DefaultModel", module}
    assert by_place == fuzzy
    assert [fuzzy[f"Torch.add.{at}.forward"] for at in range(3)] == [f"Torch.add.{at}.forward" for at in (7, 8, 9)]


def test_nodes_without_values_meet_by_name_inside_matched_modules(tmp_path: Path) -> None:
    module = "Module.a.A.forward.0"
    parents = {module: None, "Tensor.chunk.0.forward": module, "optimizer": None, "Torch.add.0.forward": "optimizer"}
    write_dump(tmp_path / "a", {module: forward([tensor()], [tensor()])}, parents=parents, stacks={})
    found = partners(draw(tmp_path / "a", tmp_path / "a", tmp_path / "out").files[0])
    assert found == {name: name for name in (*parents, "DefaultModel")}


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("form", ["db", "vis"])
def test_mindspore_against_pytorch_with_a_mapping(reference: Path, tmp_path: Path, task: str, form: str) -> None:
    folder = reference / "mindspore"
    target, golden = (folder / "dumps" / f"{side}_mix_{task}" / "step0" for side in ("ms", "pt"))
    outcome = draw(target, golden, tmp_path, form, layer=folder / "mapping" / "lm_good.yaml")
    if form == "vis":
        assert outcome.files[0].stat().st_size > 100_000
        return
    rows = nodes(outcome.files[0])
    cells = {row["node_name"]: row for row in rows.values() if row["node_name"].startswith("Cell.")}
    grey = {name for name, row in cells.items() if not row["matched_node_link"]}
    assert grey == {
        f"Cell.module.module.language_model.TransformerLanguageModel.{way}.0" for way in ("forward", "backward")
    }
    metric = "Cosine" if task == "tensor" else "Max diff"
    assert any(metric in value for row in cells.values() for value in row["output_data"].values())
    kinds = {value["type"] for row in cells.values() for value in row["output_data"].values() if "type" in value}
    assert kinds == {"mindspore.Tensor"}


def test_two_frameworks_without_a_mapping_are_drawn_all_the_same(reference: Path, tmp_path: Path) -> None:
    dumps = reference / "mindspore" / "dumps"
    outcome = draw(dumps / "ms_mix_statistics" / "step0", dumps / "pt_mix_statistics" / "step0", tmp_path)
    rows = nodes(outcome.files[0])
    assert {row["data_source"] for row in rows.values()} == {"NPU", "Bench"}


def test_paddle_dumps_are_drawn(tmp_path: Path) -> None:
    module = "Module.fc.Linear.forward.0"
    leaf: dict[str, Any] = tensor(type="paddle.Tensor", dtype="paddle.float32")
    data = {"Paddle.matmul.0.forward": forward([leaf], [leaf]), module: forward([leaf], [leaf])}
    parents = {"Paddle.matmul.0.forward": module, module: None}
    write_dump(tmp_path / "a", data, framework="paddle", parents=parents, stacks={})
    (file,) = draw(tmp_path / "a", tmp_path / "a", tmp_path / "out").files
    row = nodes(file)["NPU_0_0_Paddle.matmul.0.forward"]
    assert row["node_type"] == "1"
    assert row["output_data"]["Paddle.matmul.0.forward.output.0"]["type"] == "paddle.Tensor"
    assert row["precision_index"] == 0


def test_tensors_drop_by_the_one_thousandth_ratio(tmp_path: Path) -> None:
    import numpy as np

    from support import tensor_dump

    name = "Torch.add.0.forward"
    rng = np.random.default_rng(3)
    given, got = (rng.standard_normal(1000).astype(np.float32) for _ in range(2))
    off = got.copy()
    off[:250] *= 1.5
    for side, output in (("a", off), ("b", got)):
        tensor_dump(tmp_path / side, {name: {"input.0": given, "output.0": output}})
        (tmp_path / side / "construct.json").write_text(f'{{"{name}": null}}')
        (tmp_path / side / "stack.json").write_text("{}")
    (vis,) = draw(tmp_path / "a", tmp_path / "b", tmp_path / "vis", "vis").files
    import json

    document = json.loads(vis.read_text())
    assert document["NPU"]["node"][name]["data"]["precision_index"] == pytest.approx(0.25, abs=1e-3)
    assert document["task"] == "all"
    assert document["NPU"]["dump_data_dir"].endswith("dump_tensor_data")
    assert [band["value"] for band in document["Colors"].values()][:2] == [[0, 0.05], [0.05, 0.1]]
