"""Layer mapping in detail: scopes, numbers, stacks, order, and the file it leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pairing import MAPPING, calls, is_identity, match, matched, named, small_run, yaml_file

from support import forward, tensor
from twinprobe._align.mapping.layer_mapping import framework_function
from twinprobe._runs.run import Run

TORCH = "File env/site-packages/torch/nn/functional.py, line 1, in multi_head_attention_forward"
BODY = "File env/site-packages/torch/nn/modules/activation.py, line 2, in forward"
CALL = "File env/site-packages/torch/nn/modules/module.py, line 3, in _call_impl"
USER = "File model.py, line 4, in forward"


def nested(folder: Path, parents: dict[str, str | None], **more: Any) -> Run:
    """A run of calls that lie inside one another."""
    return small_run(folder, calls(*parents), parents=parents, level="mix", **more)


def modules(*names: str) -> dict[str, str | None]:
    return {f"Module.{name}.forward.0": None for name in names}


def layers(first: int, top: str = "ParallelTransformer") -> dict[str, str | None]:
    return modules(f"encoder.{top}", *(f"encoder.layers.{at}.Layer" for at in range(first, first + 5)))


def test_integer_keys_are_text(ms: Run, pt: Run) -> None:
    notes = match(ms, pt, layer=MAPPING / "lm_intkeys.yaml").notes
    assert any("line 4: '1' does not exist in the other run" in note for note in notes)


def test_layers_may_be_exchanged(ms: Run, pt: Run) -> None:
    pairs = matched(ms, pt, layer=MAPPING / "lm_layers_shift.yaml")
    path = "module.language_model.encoder.layers.0.ParallelTransformerLayer.forward.0.output.0"
    assert pairs[f"Cell.module.{path}"] == "Module.model.module.decoder.layers.1.TransformerLayer.forward.0.output.0"


def test_cell_is_the_old_name_of_the_top_layer(ms: Run, pt: Run) -> None:
    old, new = (matched(ms, pt, layer=MAPPING / f"lm_{name}.yaml") for name in ("oldcell", "partial"))
    assert old == new
    assert len(new) > 80


def test_a_class_of_the_wrong_run_is_explained(ms: Run, pt: Run) -> None:
    notes = match(ms, pt, layer=MAPPING / "lm_wrong_class.yaml").notes
    assert any(
        "lm_wrong_class.yaml, line 3: no layer of class GPT2Model was recorded; it is a class of the other run" in note
        and "did you mean 'GPTModel'?" in note
        for note in notes
    )


def test_keys_and_values_that_lead_nowhere_name_their_line(tmp_path: Path, ms: Run, pt: Run) -> None:
    text = (
        (MAPPING / "lm_good.yaml").read_text().replace("qkv_proj:", "qkv_prog:").replace("embedding_dropout", "droput")
    )
    file = yaml_file(tmp_path, text)
    notes = match(ms, pt, layer=file).notes
    assert f"{file}, line 7: 'droput' does not exist in the other run (as model.module.embedding.droput)" in notes
    assert f"{file}, line 15: 'qkv_prog' matched nothing inside ParallelAttention; did you mean 'qkv_proj'?" in notes


def test_the_longest_dotted_key_goes_first_and_brackets_are_cut(tmp_path: Path) -> None:
    text = "TopLayer:\n  a: x(Wrapper)\n  a.b: y (Linear)\n  a.b.c: z\n"
    target = nested(tmp_path / "t", modules("a.A", "a.b.B", "a.b.c.C", "a.d.D"))
    golden = nested(tmp_path / "g", modules("x.A", "y.B", "z.C", "x.d.D"))
    pairs = matched(target, golden, layer=yaml_file(tmp_path, text))
    found = {row.split(".forward")[0]: other.split(".forward")[0] for row, other in pairs.items()}
    assert found == {
        "Module.a.A": "Module.x.A", "Module.a.b.B": "Module.y.B",
        "Module.a.b.c.C": "Module.z.C", "Module.a.d.D": "Module.x.d.D",
    }  # fmt: skip


def test_rules_hold_inside_their_class_only(tmp_path: Path) -> None:
    target = nested(tmp_path / "t", modules("one.Attention", "one.q.L", "two.Other", "two.q.L"))
    golden = nested(tmp_path / "g", modules("one.Attention", "one.query.L", "two.Other", "two.q.L"))
    pairs = matched(target, golden, layer=yaml_file(tmp_path, "Attention:\n  q: query\n"))
    assert pairs["Module.one.q.L.forward.0.input.0"] == "Module.one.query.L.forward.0.input.0"
    assert pairs["Module.two.q.L.forward.0.input.0"] == "Module.two.q.L.forward.0.input.0"


@pytest.mark.parametrize("golden_class", ["ParallelTransformer", "TransformerBlock"])
def test_layers_of_a_pipeline_stage_are_counted_from_its_first(tmp_path: Path, golden_class: str) -> None:
    target, golden = nested(tmp_path / "t", layers(5)), nested(tmp_path / "g", layers(0, golden_class))
    file = yaml_file(tmp_path, "ParallelTransformer:\n  nothing: else\n")
    found = match(target, golden, layer=file)
    pairs = named(target, golden, found)
    for at in range(5):
        mine, theirs = (f"Module.encoder.layers.{number}.Layer.forward.0.input.0" for number in (at + 5, at))
        assert pairs[mine] == theirs
    assert any("the layers 5 to 9 of encoder.layers are taken for 0 to 4" in note for note in found.notes)
    assert matched(golden, target, layer=file) == {other: row for row, other in pairs.items()}


def test_numbers_written_out_are_the_recorded_ones_and_end_the_counting(tmp_path: Path) -> None:
    text = "layers:\n" + "".join(f"  {at + 5}: {4 - at}\n" for at in range(5))
    target, golden = nested(tmp_path / "t", layers(5)), nested(tmp_path / "g", layers(0))
    pairs = matched(target, golden, layer=yaml_file(tmp_path, text))
    for at in range(5):
        mine, theirs = (f"Module.encoder.layers.{number}.Layer.forward.0.output.0" for number in (at + 5, 4 - at))
        assert pairs[mine] == theirs


def test_part_of_a_model_keeps_its_layer_numbers(tmp_path: Path) -> None:
    one = modules("encoder.ParallelTransformer", "encoder.layers.3.Layer")
    target, golden = nested(tmp_path / "t", one), nested(tmp_path / "g", layers(0))
    pairs = matched(target, golden, layer=yaml_file(tmp_path, "ParallelTransformer:\n  nothing: else\n"))
    name = "Module.encoder.layers.3.Layer.forward.0.input.0"
    assert pairs[name] == name


def test_functions_inside_a_module_are_paired_in_order_and_may_be_renamed(tmp_path: Path) -> None:
    inside: dict[str, str | None] = dict.fromkeys(
        ["Functional.logical_or.0.forward", "Tensor.__add__.0.forward", "Functional.add.0.forward"],
        "Cell.m.M.forward.0",
    )
    others: dict[str, str | None] = dict.fromkeys(
        ["Tensor.__or__.0.forward", "Torch.add.7.forward", "Torch.add.8.forward"], "Module.n.N.forward.0"
    )
    target = nested(tmp_path / "t", {**inside, "Cell.m.M.forward.0": None}, framework="mindspore")
    golden = nested(tmp_path / "g", {**others, "Module.n.N.forward.0": None})
    text = "TopLayer:\n  m: n\nM:\n  logical_or: __or__\n"
    pairs = matched(target, golden, layer=yaml_file(tmp_path, text))
    assert pairs["Functional.logical_or.0.forward.input.0"] == "Tensor.__or__.0.forward.input.0"
    assert pairs["Tensor.__add__.0.forward.input.0"] == "Torch.add.7.forward.input.0"
    assert pairs["Functional.add.0.forward.input.0"] == "Torch.add.8.forward.input.0"


def test_shapes_say_which_of_unequally_many_calls_is_missing(tmp_path: Path) -> None:
    def run(folder: Path, shapes: list[list[int]]) -> Run:
        data = {
            f"Torch.add.{at}.forward": forward([tensor(shape=shape)], [tensor(shape=shape)])
            for at, shape in enumerate(shapes)
        }
        parents = {**dict.fromkeys(data, "Module.m.M.forward.0"), "Module.m.M.forward.0": None}
        return small_run(folder, data | calls("Module.m.M.forward.0"), parents=parents, level="mix")

    target, golden = run(tmp_path / "t", [[1], [2], [3]]), run(tmp_path / "g", [[1], [3]])
    file = yaml_file(tmp_path, "TopLayer:\n  m: m\n")
    pairs = matched(target, golden, layer=file)
    assert pairs["Torch.add.2.forward.output.0"] == "Torch.add.1.forward.output.0"
    assert "Torch.add.1.forward.output.0" not in pairs
    assert matched(golden, target, layer=file) == {other: row for row, other in pairs.items()}


def test_repeated_calls_of_a_module_keep_their_functions_apart(tmp_path: Path) -> None:
    """The golden run computes the module again during backward; its second call has no partner."""
    parents: dict[str, str | None] = {"Torch.add.0.forward": "Module.m.M.forward.0", "Module.m.M.forward.0": None}
    again = {"Torch.add.5.forward": "Module.m.M.forward.1", "Module.m.M.forward.1": "Module.m.M.backward.0"}
    target = nested(tmp_path / "t", parents)
    golden = nested(tmp_path / "g", {**again, **parents})
    pairs = matched(target, golden, layer=yaml_file(tmp_path, "TopLayer:\n  m: m\n"))
    assert pairs["Torch.add.0.forward.input.0"] == "Torch.add.0.forward.input.0"


@pytest.mark.parametrize(
    ("frames", "function"),
    [
        ([TORCH, BODY, CALL, USER], "multi_head_attention_forward"),
        ([BODY, CALL, USER], ""),
        ([USER, CALL], ""),
        (["File env/site-packages/msprobe/x.py, line 1, in hook", TORCH, USER], "multi_head_attention_forward"),
        (["File env/site-packages/mindspore/nn/cell.py, line 1, in __call__", USER], ""),
        (["File env/site-packages/mindspore/common/tensor.py, line 1, in astype, \n x", BODY], "astype"),
        (["the stack could not be read"], ""),
        ([], ""),
    ],
)
def test_the_framework_function_around_a_call_is_found(frames: list[str], function: str) -> None:
    assert framework_function(frames) == function


@pytest.mark.parametrize("form", ["new", "old"])
def test_calls_from_a_framework_function_stay_among_themselves(tmp_path: Path, form: str) -> None:
    def run(folder: Path, inner: str, direct: str) -> Run:
        stacks: dict[str, Any] = {"0": [[inner], [TORCH, BODY, CALL]], "1": [[direct], [USER]]}
        if form == "old":
            stacks = {names[0]: frames for names, frames in stacks.values()}
        order = sorted([inner, direct])
        parents = {**dict.fromkeys(order, "Module.m.M.forward.0"), "Module.m.M.forward.0": None}
        return nested(folder, parents, stacks=stacks)

    target = run(tmp_path / "t", "Torch.matmul.0.forward", "Torch.matmul.1.forward")
    golden = run(tmp_path / "g", "Torch.matmul.1.forward", "Torch.matmul.0.forward")
    pairs = matched(target, golden, layer=yaml_file(tmp_path, "TopLayer:\n  m: m\n"))
    assert pairs["Torch.matmul.0.forward.input.0"] == "Torch.matmul.1.forward.input.0"
    assert pairs["Torch.matmul.1.forward.input.0"] == "Torch.matmul.0.forward.input.0"


@pytest.mark.parametrize("missing", ["stack.json", "construct.json"])
def test_a_run_without_stacks_or_hierarchy_is_still_linked(tmp_path: Path, missing: str) -> None:
    parents: dict[str, str | None] = {"Torch.add.0.forward": "Module.m.M.forward.0", "Module.m.M.forward.0": None}
    target = nested(tmp_path / "t", parents, stacks={"0": [["Torch.add.0.forward"], [TORCH]]})
    (target.folder / missing).unlink()
    golden = nested(tmp_path / "g", parents, stacks={"0": [["Torch.add.0.forward"], [USER]]})
    assert len(matched(target, golden, layer=yaml_file(tmp_path, "TopLayer:\n  m: m\n"))) == 4


def test_parameters_meet_by_order_where_names_say_nothing_and_shapes_do(tmp_path: Path) -> None:
    def run(folder: Path, head: str, names: list[str], framework: str) -> Run:
        leaves = {name: tensor(shape=[at + 1]) for at, name in enumerate(names)}
        data = {
            f"{head}.forward.0": {**forward([tensor()], [tensor()]), "parameters": leaves},
            f"{head}.parameters_grad.0": {name: [leaf] for name, leaf in reversed(leaves.items())},
        }
        return small_run(folder, data, framework=framework)

    target = run(tmp_path / "t", "Cell.m.Dense", ["w", "b"], "mindspore")
    golden = run(tmp_path / "g", "Module.m.Linear", ["weight", "bias"], "pytorch")
    found = match(target, golden, layer=yaml_file(tmp_path, "TopLayer:\n  m: m\n"))
    pairs = named(target, golden, found)
    assert pairs["Cell.m.Dense.forward.0.parameters.w"] == "Module.m.Linear.forward.0.parameters.weight"
    assert pairs["Cell.m.Dense.parameters_grad.0.b"] == "Module.m.Linear.parameters_grad.0.bias"
    assert "layer mapping, parameter order" in found.rule


def test_the_data_mapping_left_behind_gives_the_same_pairs(tmp_path: Path, ms: Run, pt: Run) -> None:
    by_layers = matched(ms, pt, layer=MAPPING / "lm_good.yaml", output=tmp_path, timestamp="20260101", label="rank0")
    written = tmp_path / "data_mapping_rank0_20260101.yaml"
    assert written.read_text().count("\n") == ms.table.height
    assert "Cell.module.module.output_layer.Dense.forward.0.input.0: Module.model" in written.read_text()
    assert [path.name for path in tmp_path.iterdir()] == [written.name]
    assert matched(ms, pt, data=written) == by_layers


def test_names_that_yaml_would_misread_survive_the_way_out_and_back(tmp_path: Path) -> None:
    data = {"Torch.add.0.forward": forward([tensor()], [tensor()], **{"a: b #": tensor(), "new\nline": tensor()})}
    run = small_run(tmp_path / "t", data)
    options: dict[str, Any] = {"layer": yaml_file(tmp_path, "TopLayer: {m: m}\n"), "output": tmp_path, "timestamp": "x"}
    assert is_identity(run, match(run, run, **options))
    assert is_identity(run, match(run, run, data=tmp_path / "data_mapping_x.yaml"))


def test_a_path_of_absurd_depth_does_no_harm(tmp_path: Path) -> None:
    deep = "Module." + "a." * 20_000 + "A.forward.0"
    parents = {"Torch.add.0.forward": deep, deep: None}
    run = nested(tmp_path / "t", parents)
    assert json.dumps(run.ops)
    assert is_identity(run, match(run, run, layer=yaml_file(tmp_path, "TopLayer:\n  a: b\n")))


def test_the_graph_of_another_code_base_is_linked_in_both_directions(reference: Path) -> None:
    from twinprobe._runs.run import open_run

    folder = reference / "graph"
    struct, base = (
        open_run(next((folder / "dumps" / f"{name}_statistics").rglob("dump.json"))) for name in ("struct", "base")
    )
    pairs = matched(base, struct, layer=folder / "layer_mapping.yaml")
    alone = set(base.table["name"].to_list()) - set(pairs)
    assert len(pairs) == 428
    assert {name.split(".")[1] for name in alone} == {"language_model"}
    assert matched(struct, base, layer=folder / "layer_mapping.yaml") == {other: row for row, other in pairs.items()}
