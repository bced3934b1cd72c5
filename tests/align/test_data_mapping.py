"""Data mapping: single values by name, in every spelling that people write."""

from __future__ import annotations

from pathlib import Path

import pytest
from pairing import MAPPING, calls, match, matched, named, rules, small_run, yaml_file

from support import forward, tensor
from twinprobe._runs.run import Run


@pytest.mark.parametrize("swapped", [False, True], ids=["as written", "swapped"])
def test_the_named_values_of_the_real_pair_are_linked(ms: Run, pt: Run, swapped: bool) -> None:
    target, golden = (pt, ms) if swapped else (ms, pt)
    found = match(target, golden, data=MAPPING / "dm_good.yaml")
    pairs = named(target, golden, found)
    if swapped:
        pairs = {other: row for row, other in pairs.items()}
    truth = {
        "Functional.mul.0.forward.input.0": "Torch.mul.0.forward.input.0",
        "Functional.matmul.0.forward.input.0": "Torch.matmul.1.forward.input.0",
        "Functional.matmul.0.forward.input.1": "Torch.matmul.1.forward.input.1",
        "Functional.matmul.0.forward.output.0": "Torch.matmul.1.forward.output.0",
        "Cell.module.module.output_layer.Dense.forward.0.output.0": (
            "Module.model.module.output_layer.Linear.forward.0.output.0"
        ),
        "Cell.module.module.output_layer.Dense.parameters_grad.0.weight": (
            "Module.model.module.output_layer.Linear.parameters_grad.0.weight"
        ),
    }
    assert truth.items() <= pairs.items()
    assert list(found.rule).count("data mapping") == 6


def test_a_key_that_names_nothing_is_a_warning_with_its_line(ms: Run, pt: Run) -> None:
    notes = match(ms, pt, data=MAPPING / "dm_bad.yaml").notes
    assert any("dm_bad.yaml, line 1: 'No.such.thing.0.forward.input.0' was not recorded" in note for note in notes)


def test_a_value_that_exists_nowhere_is_a_warning_with_the_nearest_name(tmp_path: Path, ms: Run, pt: Run) -> None:
    file = yaml_file(tmp_path, "# one\nFunctional.mul.0.forward.input.0: Torch.mull.0.forward.input.0\n")
    notes = match(ms, pt, data=file).notes
    assert any(f"{file}, line 2: 'Torch.mull.0.forward.input.0'" in note for note in notes)
    assert any("did you mean 'Torch.mul.0.forward.input.0'?" in note for note in notes)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("Module.a.A.forward.0.input.mask", "Module.b.B.forward.0.kwargs.mask"),
        ("Module.a.A.forward.0.kwargs.mask", "Module.b.B.forward.0.input.mask"),
        ("Module.a.A.forward.0.input.mask.npy", "Module.b.B.forward.0.input.mask.pt"),
    ],
)
def test_keyword_arguments_and_file_names_are_understood(tmp_path: Path, left: str, right: str) -> None:
    target = small_run(tmp_path / "t", {"Module.a.A.forward.0": forward([tensor()], [tensor()], mask=tensor())})
    golden = small_run(tmp_path / "g", {"Module.b.B.forward.0": forward([tensor()], [tensor()], mask=tensor())})
    found = matched(target, golden, data=yaml_file(tmp_path, f"{left}: {right}\n"))
    assert found == {"Module.a.A.forward.0.input.mask": "Module.b.B.forward.0.input.mask"}


def test_two_whole_calls_may_be_named(tmp_path: Path) -> None:
    target = small_run(tmp_path / "t", calls("Torch.foo.3.forward", "Torch.foo.3.backward"))
    golden = small_run(tmp_path / "g", calls("Torch.bar.0.forward", "Torch.bar.0.backward"))
    found = matched(target, golden, data=yaml_file(tmp_path, "Torch.foo.3.forward: Torch.bar.0.forward\n"))
    assert found["Torch.foo.3.forward.output.0"] == "Torch.bar.0.forward.output.0"
    assert found["Torch.foo.3.backward.output.0"] == "Torch.bar.0.backward.output.0"


def test_no_partner_means_none_and_the_rest_keeps_its_name(tmp_path: Path) -> None:
    run = small_run(tmp_path / "t", calls("Torch.foo.0.forward"))
    found = matched(run, run, data=yaml_file(tmp_path, "Torch.foo.0.forward.input.0: N/A\n"))
    assert found == {"Torch.foo.0.forward.output.0": "Torch.foo.0.forward.output.0"}


def test_one_golden_value_may_serve_twice_and_it_is_remarked_on(tmp_path: Path) -> None:
    target = small_run(tmp_path / "t", calls("Torch.a.0.forward", "Torch.b.0.forward"))
    golden = small_run(tmp_path / "g", calls("Torch.c.0.forward"))
    text = (
        "Torch.a.0.forward.output.0: Torch.c.0.forward.output.0\nTorch.b.0.forward.output.0: Torch.c.0.forward.output.0"
    )
    found = match(target, golden, data=yaml_file(tmp_path, text))
    assert len(rules(target, found)) == 2
    assert any("line 2: Torch.c.0.forward.output.0 was named in line 1 already" in note for note in found.notes)


def test_the_warnings_of_a_hopeless_file_do_not_flood(tmp_path: Path, ms: Run, pt: Run) -> None:
    text = "".join(f"Nothing.at.all.{at}: Nothing.there.{at}\n" for at in range(500))
    notes = match(ms, pt, data=yaml_file(tmp_path, text)).notes
    assert sum("Nothing.at.all" in note for note in notes) == 20
    assert any("480 more like these" in note for note in notes)
