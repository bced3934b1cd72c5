"""Names without call numbers, what happens without any mapping, and which rule wins over which."""

from __future__ import annotations

from pathlib import Path

import pytest
from pairing import MAPPING, calls, match, matched, named, rules, small_run, yaml_file

from support import tensor, write_dump
from twinprobe._align.mapping import MappingOptions
from twinprobe._align.matcher import build_matcher, match_names
from twinprobe._runs.run import Run, open_run


def test_fuzzy_ignores_call_numbers_and_keeps_the_order(tmp_path: Path) -> None:
    target = small_run(
        tmp_path / "t", calls(*(f"Torch.add.{at}.{way}" for at in (0, 1) for way in ("forward", "backward")))
    )
    golden = small_run(
        tmp_path / "g", calls(*(f"Torch.add.{at}.{way}" for at in (3, 4) for way in ("forward", "backward")))
    )
    pairs = matched(target, golden, fuzzy=True)
    assert pairs["Torch.add.0.forward.input.0"] == "Torch.add.3.forward.input.0"
    assert pairs["Torch.add.1.backward.output.0"] == "Torch.add.4.backward.output.0"
    assert len(pairs) == 8


def test_fuzzy_keeps_to_the_module_around(tmp_path: Path) -> None:
    def run(folder: Path, inside_a: int) -> Run:
        names = [f"Torch.add.{at}.forward" for at in range(inside_a + 1)]
        parents: dict[str, str | None] = dict.fromkeys(names[:-1], "Module.a.A.forward.0")
        parents |= {names[-1]: "Module.b.B.forward.0", "Module.a.A.forward.0": None, "Module.b.B.forward.0": None}
        return small_run(folder, calls(*parents), parents=parents)

    target, golden = run(tmp_path / "t", 2), run(tmp_path / "g", 1)
    pairs = matched(target, golden, fuzzy=True)
    assert pairs["Torch.add.2.forward.input.0"] == "Torch.add.1.forward.input.0"  # both in b
    assert "Torch.add.1.forward.input.0" not in pairs
    assert matched(golden, target, fuzzy=True) == {other: row for row, other in pairs.items()}


def test_fuzzy_pairs_points_saved_by_hand(tmp_path: Path) -> None:
    one = write_dump(tmp_path / "t", {"x.2.debug": tensor()}, name="debug.json", level="debug")
    two = write_dump(tmp_path / "g", {"x.0.debug": tensor()}, name="debug.json", level="debug")
    assert matched(open_run(one), open_run(two), fuzzy=True) == {"x.2.debug": "x.0.debug"}


def test_fuzzy_works_across_frameworks_too(tmp_path: Path) -> None:
    target = small_run(tmp_path / "t", calls("Mint.add.4.forward", "Cell.a.Dense.forward.0"), framework="mindspore")
    golden = small_run(tmp_path / "g", calls("Torch.add.0.forward", "Module.a.Linear.forward.0"))
    assert len(matched(target, golden, fuzzy=True)) == 4


def test_without_options_all_spellings_of_one_function_belong_together(tmp_path: Path) -> None:
    target = small_run(tmp_path / "t", calls("Torch.add.0.forward", "Tensor.mul.0.forward"))
    golden = small_run(tmp_path / "g", calls("Torch.add.0.forward", "Torch.mul.0.forward"))
    pairs = matched(target, golden, pair="place")
    assert pairs["Tensor.mul.0.forward.output.0"] == "Torch.mul.0.forward.output.0"
    assert set(matched(target, golden, pair="numbers")) == {
        "Torch.add.0.forward.input.0",
        "Torch.add.0.forward.output.0",
    }


def test_without_options_runs_of_two_frameworks_still_meet(ms: Run, pt: Run) -> None:
    found = match(ms, pt)
    pairs = named(ms, pt, found)
    assert len(pairs) > 100
    assert pairs["MintFunctional.silu.1.forward.output.0"] == "Functional.silu.1.forward.output.0"
    assert named(pt, ms, match(pt, ms)) == {other: row for row, other in pairs.items()}
    assert len(named(ms, pt, match_names(ms, pt))) < 10


def test_without_options_runs_whose_names_do_not_meet_get_the_same_help(tmp_path: Path) -> None:
    target = small_run(tmp_path / "t", calls("Module.a.Linear.forward.0", "Tensor.add.0.forward"))
    golden = small_run(tmp_path / "g", calls("Module.b.QuantLinear.forward.0", "Torch.add.0.forward"))
    found = match(target, golden)
    assert rules(target, found) == {
        "Module.a.Linear.forward.0.input.0": "auto: layers in order",
        "Module.a.Linear.forward.0.output.0": "auto: layers in order",
        "Tensor.add.0.forward.input.0": "auto: calls in place",
        "Tensor.add.0.forward.output.0": "auto: calls in place",
    }  # fmt: skip


def test_data_beats_layer_beats_cell_beats_api_beats_equal_names(tmp_path: Path) -> None:
    mine = ["Cell.a.A.forward.0", "Cell.b.B.forward.0", "Mint.add.0.forward", "Functional.same.0.forward"]
    theirs = [
        "Module.x.A.forward.0", "Module.y.A.forward.0", "Module.z.A.forward.0", "Module.b2.B.forward.0",
        "Torch.add.0.forward", "Torch.mul.0.forward", "Functional.same.0.forward",
    ]  # fmt: skip
    target = small_run(tmp_path / "t", calls(*mine), framework="mindspore")
    golden = small_run(tmp_path / "g", calls(*theirs))
    row = "Cell.a.A.forward.0.input.0"
    files = {
        "data": yaml_file(tmp_path, f"{row}: Module.x.A.forward.0.input.0\n", "d.yaml"),
        "layer": yaml_file(tmp_path, "TopLayer:\n  a: y\n", "l.yaml"),
        "cell": yaml_file(tmp_path, "a.A: z.A\nb.B: b2.B\n", "c.yaml"),
        "api": yaml_file(tmp_path, "- {ms_api: Mint.add, pt_api: Torch.mul}\n", "a.yaml"),
    }
    found = match(target, golden, **files)
    pairs, by = named(target, golden, found), rules(target, found)
    assert (pairs[row], by[row]) == ("Module.x.A.forward.0.input.0", "data mapping")
    output = "Cell.a.A.forward.0.output.0"
    assert (pairs[output], by[output]) == ("Module.y.A.forward.0.output.0", "layer mapping")
    assert by["Cell.b.B.forward.0.input.0"] == "cell mapping"
    assert pairs["Mint.add.0.forward.input.0"] == "Torch.mul.0.forward.input.0"
    assert by["Functional.same.0.forward.input.0"] == "name"
    without = {key: file for key, file in files.items() if key not in ("data", "layer")}
    assert matched(target, golden, **without)[row] == "Module.z.A.forward.0.input.0"


def test_a_rule_does_not_tear_a_function_out_of_its_module(tmp_path: Path) -> None:
    """Two modules exchange places; functions inside them must not be paired by their call numbers."""

    def run(folder: Path, first: str, second: str) -> Run:
        parents: dict[str, str | None] = {
            "Torch.add.0.forward": f"Module.{first}.forward.0", f"Module.{first}.forward.0": None,
            "Torch.add.1.forward": f"Module.{second}.forward.0", f"Module.{second}.forward.0": None,
        }  # fmt: skip
        return small_run(folder, calls(*parents), parents=parents)

    target, golden = run(tmp_path / "t", "a.A", "b.B"), run(tmp_path / "g", "b.B", "a.A")
    pairs = matched(target, golden, cell=True)
    assert pairs["Torch.add.0.forward.output.0"] == "Torch.add.1.forward.output.0"  # both in a


def test_a_matcher_can_travel_to_another_process(ms: Run, pt: Run) -> None:
    import pickle

    matcher = build_matcher(MappingOptions(layer=MAPPING / "lm_good.yaml", api=True))
    again = pickle.loads(pickle.dumps(matcher))
    assert named(ms, pt, again(ms, pt)) == named(ms, pt, matcher(ms, pt))


@pytest.mark.parametrize("mode", ["statistics", "tensor", "md5"])
def test_fuzzy_works_in_every_mode(reference: Path, mode: str) -> None:
    folder = reference / "msprobe" / "dumps"
    name = {"statistics": "L0_stat", "tensor": "L0_tensor", "md5": "L0_md5"}[mode]
    one, two = (open_run(next((folder / f"{name}_{side}").rglob("dump.json"))) for side in "ba")
    assert one.mode == mode
    assert len(matched(one, two, fuzzy=True)) == one.table.height
