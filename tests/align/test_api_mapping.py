"""API mapping: which API is which, which argument is which, which call is which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pairing import MAPPING, backward, match, matched, named, rules, small_run, yaml_file

from support import forward, tensor, value
from twinprobe._runs.run import Run

ABS = """
ms_api: Functional.abs
pt_api: Torch.abs
ms_args:
- 0
- 1
pt_args:
- 0
- 1
ms_outputs:
- 0
- 1
pt_outputs:
- 0
- 1
"""


def two(tmp_path: Path, mine: dict[str, Any], theirs: dict[str, Any]) -> tuple[Run, Run]:
    return small_run(tmp_path / "ms", mine, framework="mindspore"), small_run(tmp_path / "pt", theirs)


def test_an_index_that_does_not_exist_is_a_warning_and_the_rest_is_used(tmp_path: Path) -> None:
    target, golden = two(
        tmp_path,
        {"Functional.abs.0.forward": forward([tensor(), tensor()], [tensor()])},
        {"Torch.abs.0.forward": forward([tensor(), tensor()], [tensor()])},
    )
    file = yaml_file(tmp_path, ABS)
    found = match(target, golden, api=file)
    head, other = "Functional.abs.0.forward", "Torch.abs.0.forward"
    assert named(target, golden, found) == {
        f"{head}.{row}": f"{other}.{row}" for row in ("input.0", "input.1", "output.0")
    }
    assert [note for note in found.notes if f"{file}, line 10: ms_outputs lists 1" in note]
    assert [note for note in found.notes if f"{file}, line 13: pt_outputs lists 1" in note]


@pytest.mark.parametrize("swapped", [False, True], ids=["as written", "swapped"])
def test_the_worked_case_pairs_a_with_a_and_c_with_c(tmp_path: Path, swapped: bool) -> None:
    ms, pt = two(
        tmp_path,
        {"Functional.abs.0.forward": forward([tensor(), tensor(), tensor()], [tensor()])},
        {"Torch.abs.0.forward": forward([tensor(), tensor()], [tensor()])},
    )
    file = yaml_file(
        tmp_path, "ms_api: Functional.abs\npt_api: Torch.abs\nms_args: [0, 2]\npt_args: [0, 1]\n"
    )  # fmt: skip
    found = matched(pt, ms, api=file) if swapped else matched(ms, pt, api=file)
    head, other = "Functional.abs.0.forward", "Torch.abs.0.forward"
    truth = {f"{head}.input.0": f"{other}.input.0", f"{head}.input.2": f"{other}.input.1"}
    truth[f"{head}.output.0"] = f"{other}.output.0"
    assert found == ({two: one for one, two in truth.items()} if swapped else truth)


def test_gradients_follow_the_lists_of_their_forward_call(tmp_path: Path) -> None:
    target, golden = two(
        tmp_path,
        {
            "Functional.foo.0.forward": forward([tensor(), tensor()], [tensor()]),
            "Functional.foo.0.backward": backward([tensor()], [tensor(), tensor()]),
        },
        {
            "Torch.bar.0.forward": forward([tensor(), tensor()], [tensor()]),
            "Torch.bar.0.backward": backward([tensor()], [tensor(), tensor()]),
        },
    )
    text = "ms_api: Functional.foo\npt_api: Torch.bar\nms_args: [0, 1]\npt_args: [1, 0]\n"
    found = matched(target, golden, api=yaml_file(tmp_path, text))
    assert found["Functional.foo.0.forward.input.0"] == "Torch.bar.0.forward.input.1"
    assert found["Functional.foo.0.backward.output.0"] == "Torch.bar.0.backward.output.1"
    assert found["Functional.foo.0.backward.input.0"] == "Torch.bar.0.backward.input.0"


@pytest.mark.parametrize("name", ["am_doc_single", "am_list_output", "am_list_outputs"])
def test_every_spelling_of_the_file_gives_the_same_pairs(ms: Run, pt: Run, name: str) -> None:
    found = match(ms, pt, api=MAPPING / f"{name}.yaml")
    pairs = named(ms, pt, found)
    assert found.notes[:-1] == []  # only the remark on composite gradients
    assert pairs["Mint.matmul.0.forward.input.0"] == "Torch.matmul.0.forward.input.1"
    assert pairs["Mint.matmul.0.forward.output.0"] == "Torch.matmul.0.forward.output.0"
    # The user's word holds for the API it names, the built-in table for the others.
    assert pairs["Functional.matmul.0.forward.input.0"] == "Torch.matmul.1.forward.input.0"
    by = rules(ms, found)
    assert by["Mint.matmul.0.forward.output.0"] == "API mapping"
    assert by["Functional.matmul.0.forward.output.0"] == "API table"


def test_lists_of_unequal_length_are_a_warning_that_names_the_line(ms: Run, pt: Run) -> None:
    found = match(ms, pt, api=MAPPING / "am_badlen.yaml")
    assert any("am_badlen.yaml, line 4: ms_args lists 2 and pt_args 1" in note for note in found.notes)
    assert named(ms, pt, found)["Mint.matmul.0.forward.input.0"] == "Torch.matmul.0.forward.input.0"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "- {ms_api: Mint.matmull, pt_api: Torch.matmul}",
            "line 1: Mint.matmull was not recorded in the MindSpore run; did",
        ),
        ("- {ms_api: Mint.matmul, pt_api: Torch.mamul}", "did you mean 'Torch.matmul'?"),
        ("- ms_api: Mint.matmul\n  pt_api: Torch.matmul\n  ms_argss: [0]", "line 3: the key 'ms_argss' is not known"),
        ("- ms_api: Mint.matmul\n  pt_api: Torch.matmul\n  ms_args: [0, 0]\n  pt_args: [0, 1]", "line 3: ms_args 0 is"),
        ("- ms_api: Mint.matmul\n  pt_api: Torch.matmul\n  ms_args: [0]", "line 3: only one of ms_args and pt_args"),
        ("Mint.matmul: Torch.matmul\nMint.add: Torch.ad", "line 2: Torch.ad was not recorded"),
        (
            "- {ms_api: Mint.add, pt_api: Torch.add}\n- {ms_api: Mint.add, pt_api: Torch.mul}",
            "line 2: Mint.add was mapped",
        ),
    ],
)
def test_what_does_not_fit_is_said_with_its_line(tmp_path: Path, ms: Run, pt: Run, text: str, said: str) -> None:
    found = match(ms, pt, api=yaml_file(tmp_path, text))
    assert any(said in note for note in found.notes), found.notes


def test_calls_of_several_apis_that_mean_one_are_paired_in_order(ms: Run, pt: Run) -> None:
    pairs = matched(ms, pt, api=True)
    truth = {
        "Mint.add.0": "Torch.add.0", "Mint.add.1": "Torch.add.1", "Functional.add.0": "Torch.add.2",
        "Tensor.__add__.0": "Torch.add.3", "Mint.add.2": "Torch.add.4", "Functional.add.1": "Torch.add.5",
        "Tensor.__add__.1": "Torch.add.6", "Mint.matmul.0": "Torch.matmul.0", "Functional.matmul.0": "Torch.matmul.1",
        "Mint.matmul.1": "Torch.matmul.2", "Functional.matmul.1": "Torch.matmul.3",
    }  # fmt: skip
    for mine, theirs in truth.items():
        for row in ("forward.input.0", "forward.output.0", "backward.input.0"):
            assert pairs[f"{mine}.{row}"] == f"{theirs}.{row}"


def test_backward_calls_of_one_api_go_with_their_forward_calls(tmp_path: Path) -> None:
    names = [f"silu.{call}" for call in range(3)]
    mine = {f"MintFunctional.{name}.forward": forward([tensor()], [tensor()]) for name in names}
    mine |= {f"MintFunctional.{name}.backward": backward([tensor()], [tensor()]) for name in names}
    theirs = {f"Functional.{name}.forward": forward([tensor()], [tensor()]) for name in names}
    theirs |= {f"Functional.{name}.backward": backward([tensor()], [tensor()]) for name in reversed(names)}
    pairs = matched(*two(tmp_path, mine, theirs), api=True)
    for name in names:
        assert pairs[f"MintFunctional.{name}.backward.output.0"] == f"Functional.{name}.backward.output.0"


def test_arguments_meet_by_signature_whatever_their_order_and_spelling(tmp_path: Path) -> None:
    query, key, value_, mask = (tensor(shape=[2, at, 8]) for at in (4, 5, 6, 7))
    pairs = matched(
        *two(
            tmp_path,
            {
                "Functional.flash_attention_score.0.forward": forward(
                    [query, key, value_, value(4)], [query], attn_mask=mask, scalar_value=value(0.5),
                    input_layout=value("BSH"),
                ),
                "Functional.softmax.0.forward": forward([query, value(-1)], [query]),
                "Tensor.reshape.0.forward": forward([query, value(2), value(3)], [query]),
            },
            {
                "NPU.npu_fusion_attention.0.forward": forward(
                    [query, key, value_, value(4), value("BSH")], [query], atten_mask=mask, scale=value(0.5)
                ),
                "Functional.softmax.0.forward": forward([query], [query], dim=value(-1)),
                "Tensor.reshape.0.forward": forward([query, [value(2), value(3)]], [query]),
            },
        ),
        api=True,
    )  # fmt: skip
    mine, theirs = "Functional.flash_attention_score.0.forward.input", "NPU.npu_fusion_attention.0.forward.input"
    assert pairs[f"{mine}.attn_mask"] == f"{theirs}.atten_mask"
    assert pairs[f"{mine}.scalar_value"] == f"{theirs}.scale"
    assert pairs[f"{mine}.input_layout"] == f"{theirs}.4"
    assert pairs["Functional.softmax.0.forward.input.1"] == "Functional.softmax.0.forward.input.dim"
    assert pairs["Tensor.reshape.0.forward.input.2"] == "Tensor.reshape.0.forward.input.1.1"


def test_parts_of_a_cell_do_not_pass_for_calls_of_the_model(ms: Run, pt: Run) -> None:
    pairs = matched(ms, pt, api=True)
    assert not [row for row in pairs if row.startswith("Primitive.matmul")]
    assert pairs["Primitive.layer_norm.LayerNorm.4.forward.input.1"] == "Functional.layer_norm.4.forward.input.2"
