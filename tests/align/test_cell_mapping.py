"""Cell mapping: whole names first, then strings; whole words before parts of words."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pairing import MAPPING, calls, match, matched, named, rules, small_run, yaml_file

from twinprobe._align.mapping.flat_mapping import CellNames
from twinprobe._align.mapping.yaml_files import Line
from twinprobe._runs.run import Run


def test_all_cells_of_the_real_pair_are_linked_in_either_direction(ms: Run, pt: Run) -> None:
    found = match(ms, pt, cell=MAPPING / "cm_good.yaml")
    pairs = named(ms, pt, found)
    by_layers = matched(ms, pt, layer=MAPPING / "lm_good.yaml")
    cells = {row: other for row, other in pairs.items() if row.startswith("Cell.")}
    assert cells == {row: other for row, other in by_layers.items() if row.startswith("Cell.")}
    assert not [note for note in found.notes if "cm_good" in note]
    swapped = match(pt, ms, cell=MAPPING / "cm_good.yaml")
    assert named(pt, ms, swapped) == {other: row for row, other in pairs.items()}


def test_a_whole_word_is_met_before_a_part_of_one(tmp_path: Path) -> None:
    mine = ["Cell.layer.attention.Attn.forward.0", "Cell.layer.post_attention_norm.Norm.forward.0"]
    theirs = ["Module.layer.self_attention.Attn.forward.0", "Module.layer.post_attention_norm.Norm.forward.0"]
    target = small_run(tmp_path / "t", calls(*mine), framework="mindspore")
    golden = small_run(tmp_path / "g", calls(*theirs))
    found = match(target, golden, cell=yaml_file(tmp_path, "attention: self_attention\n"))
    assert named(target, golden, found)[f"{mine[0]}.input.0"] == f"{theirs[0]}.input.0"
    # The part of a word is left alone where the plain name exists.
    assert named(target, golden, found)[f"{mine[1]}.input.0"] == f"{theirs[1]}.input.0"
    assert found.notes == []


def test_a_hit_inside_a_word_is_used_and_remarked_on(tmp_path: Path) -> None:
    target = small_run(tmp_path / "t", calls("Cell.my_attn_block.A.forward.0"), framework="mindspore")
    golden = small_run(tmp_path / "g", calls("Module.my_attention_block.A.forward.0"))
    file = yaml_file(tmp_path, "attn: attention\n")
    found = match(target, golden, cell=file)
    assert len(named(target, golden, found)) == 2
    assert found.notes == [
        f"{file}, line 1: 'attn' is only part of a word in 'my_attn_block.A', and was replaced there"
    ]


def test_the_whole_name_beats_strings_and_each_string_replaces_once() -> None:
    lines = [Line("a", "x", 1), Line("a.B", "whole.C", 2), Line("b", "a", 3)]
    names = CellNames(lines, [], {"whole.C"})
    assert names.rename("a.B")[0] == "whole.C"
    assert names.rename("a.a.B")[0] == "x.whole.C"  # the longer string goes first, the other takes its own place
    assert names.rename("a.a.K")[0] == "x.a.K"
    assert names.rename("b.a.K")[0] == "a.x.K"  # what a line has written is not rewritten by another


def test_without_a_file_cells_meet_modules_of_the_same_path(tmp_path: Path) -> None:
    target = small_run(
        tmp_path / "t", calls("Cell.a.Norm.forward.0", "Cell.b.Dense.forward.0", "Cell.c.Dense.forward.0"),
        framework="mindspore",
    )  # fmt: skip
    golden = small_run(tmp_path / "g", calls("Module.a.Norm.forward.0", "Module.b.Linear.forward.0"))
    found = match(target, golden, cell=True)
    by = rules(target, found)
    assert by["Cell.a.Norm.forward.0.input.0"] == "cell to module"
    assert by["Cell.b.Dense.forward.0.input.0"] == "cell path"
    assert "Cell.c.Dense.forward.0.input.0" not in by


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("qkv_prj.Dense: query_key_value.Linear\n", "line 1: 'qkv_prj.Dense' matches no cell; did you mean"),
        ("input_norm: input_layrnorm\n", "line 1: 'input_layrnorm' occurs in no module of the other run; did you mean"),
    ],
)
def test_what_does_not_fit_is_said_with_its_line(tmp_path: Path, ms: Run, pt: Run, text: str, said: str) -> None:
    found = match(ms, pt, cell=yaml_file(tmp_path, text))
    assert any(said in note for note in found.notes), found.notes


def test_two_cells_that_meet_one_module_are_remarked_on(tmp_path: Path) -> None:
    target = small_run(tmp_path / "t", calls("Cell.a.A.forward.0", "Cell.b.A.forward.0"), framework="mindspore")
    golden = small_run(tmp_path / "g", calls("Module.z.A.forward.0"))
    found = match(target, golden, cell=yaml_file(tmp_path, "a.A: z.A\nb.A: z.A\n"))
    assert any("line 2: b.A meets z.A, which a.A has met before" in note for note in found.notes)
    assert len(named(target, golden, found)) == 2


WORD = st.text("ab_", min_size=1, max_size=3)
NAME = st.lists(WORD, min_size=1, max_size=4).map(".".join)


@settings(deadline=None, max_examples=200)
@given(name=NAME, keys=st.lists(NAME, unique=True, max_size=5))
def test_lines_that_change_nothing_leave_every_name_as_it_is(name: str, keys: list[str]) -> None:
    lines = [Line(key, key, number) for number, key in enumerate(keys, 1)]
    assert CellNames(lines, [name], {name}).rename(name)[0] == name
