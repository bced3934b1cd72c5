"""compare with mapping flags on two equal models, as a user runs it: what the flag's document says, and no more.

The reference pair is one transformer in MindSpore and in PyTorch. Its forward passes agree; its backward passes do not
(MindSpore's mint.split gives a wrong gradient), so they are left out here.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from pairing import MAPPING

from support import forward, tensor, write_dump
from twinprobe._align.calls import dims
from twinprobe._align.turns import fits_shape
from twinprobe._cli import main

Runs = tuple[Path, Path]
API_FILE = "- ms_api: Functional.mul\n  pt_api: Torch.mul\n"
VALUE = "Functional.mul.0.forward.output.0: Torch.mul.0.forward.output.0\n"


@pytest.fixture(scope="module", params=["L1", "mix"])
def runs(request: pytest.FixtureRequest, reference: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The forward calls of the pair, as level L1 records them, or with the modules around them."""
    made = []
    for side in ("ms", "pt"):
        source = next((reference / "mindspore" / "dumps" / f"{side}_mix_statistics").rglob("dump.json")).parent
        folder = tmp_path_factory.mktemp(side)
        document = json.loads((source / "dump.json").read_text())
        skipped = ("Cell.", "Module.") if request.param == "L1" else ()
        calls = document["data"].items()
        document["data"] = {name: one for name, one in calls if ".forward" in name and not name.startswith(skipped)}
        document["level"] = request.param
        (folder / "dump.json").write_text(json.dumps(document))
        shutil.copy(source / "stack.json", folder)
        if request.param == "mix":
            shutil.copy(source / "construct.json", folder)
        made.append(folder / "dump.json")
    return made[0], made[1]


def compared(runs: Runs, folder: Path, *flags: str) -> pl.DataFrame:
    """The rows that have a partner."""
    paths = ["-tp", str(runs[0]), "-gp", str(runs[1]), "-o", str(folder)]
    assert main(["compare", *paths, "--format", "csv", *flags]) == 0
    (path,) = folder.glob("*.csv")
    table = pl.read_csv(path, infer_schema_length=0)
    return table.filter((pl.col("NPU Name") != "N/A") & (pl.col("Bench Name") != "N/A"))


@pytest.mark.parametrize("flags", [("-am", "FILE"), ("-dm", "FILE"), ("-cm", "FILE"), ("-lm", "FILE"), ()], ids=str)
def test_equal_models_have_no_first_divergence(
    runs: Runs, flags: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"-am": API_FILE, "-dm": VALUE}
    file = MAPPING / {"-cm": "cm_good.yaml", "-lm": "lm_good.yaml"}.get(flags[0], "") if flags else tmp_path
    if flags and flags[0] in own:
        file = tmp_path / "mapping.yaml"
        file.write_text(own[flags[0]])
    rows = compared(runs, tmp_path / "out", *(str(file) if word == "FILE" else word for word in flags))
    assert "The runs agree within noise" in capsys.readouterr().out
    assert rows.height > 40
    for row in rows.filter(pl.col("Matched By").str.starts_with("auto")).to_dicts():
        one, other = dims(row["NPU Tensor Shape"]), dims(row["Bench Tensor Shape"])
        assert one is None or other is None or fits_shape(one, other), row["NPU Name"]
        # Under a mapping, a call is never paired with one of another name because it happens to give the same.
        assert not flags or "equal results" not in row["Matched By"]


def test_an_api_file_comes_first_and_the_built_in_table_does_the_rest(runs: Runs, tmp_path: Path) -> None:
    file = tmp_path / "apis.yaml"
    file.write_text(API_FILE)
    with_file = compared(runs, tmp_path / "file", "-am", str(file))
    bare = compared(runs, tmp_path / "bare", "-am")
    apis = ~pl.col("NPU Name").str.starts_with("Cell.")
    names = ["NPU Name", "Bench Name"]
    assert with_file.filter(apis).select(names).equals(bare.filter(apis).select(names))
    by_file = with_file.filter(pl.col("Matched By") == "API mapping")["NPU Name"].to_list()
    assert by_file
    assert all(name.startswith("Functional.mul.") for name in by_file)
    # What the file does not speak of, the modules, is aligned, and marked.
    rules = with_file.filter(~apis)["Matched By"].to_list()
    assert all(rule.startswith("auto: ") for rule in rules)


def test_a_file_that_maps_every_module_is_no_reason_to_ask_whether_this_is_one_model(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = reference / "mindspore" / "dumps"
    both = [next((folder / f"{side}_mix_statistics").rglob("dump.json")) for side in ("ms", "pt")]
    compared((both[0], both[1]), tmp_path / "layers", "-lm", str(MAPPING / "lm_good.yaml"))
    assert "are these runs of the same model" not in capsys.readouterr().out
    compared((both[0], both[1]), tmp_path / "cells", "-cm", str(MAPPING / "cm_good.yaml"))
    told = capsys.readouterr().out
    assert "are these runs of the same model" not in told
    assert "modules were aligned" not in told  # the file has done it


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_an_index_out_of_range_is_told_whatever_was_recorded(
    tmp_path: Path, direction: str, capsys: pytest.CaptureFixture[str]
) -> None:
    call = forward([tensor(), tensor()], [tensor()])
    if direction == "backward":
        call = {"input": [tensor()], "output": [tensor(), tensor()]}
    target = write_dump(tmp_path / "t", {f"Functional.mul.0.{direction}": call}, framework="mindspore")
    golden = write_dump(tmp_path / "g", {f"Torch.mul.0.{direction}": call})
    file = tmp_path / "apis.yaml"
    file.write_text("ms_api: Functional.mul\npt_api: Torch.mul\nms_args: [0, 1]\npt_args: [0, 7]\n")
    rows = compared((target, golden), tmp_path / "out", "-am", str(file))
    told = "apis.yaml, line 4: pt_args lists 7, Torch.mul has 0, 1 only: ms_args 1 is not paired"
    assert told in capsys.readouterr().out
    assert rows.height == 2
