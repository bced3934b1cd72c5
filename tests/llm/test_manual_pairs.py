"""Tensors saved by hand with ``dump_data``, and the comparison of the pairs that they name."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from llm_command import Said
from llm_dumps import Sizes, atb_layer, atb_model, decoder_values, write_atb_model

from twinprobe.errors import BadInput
from twinprobe.llm import dump_data

Run = Callable[..., Said]
SIZES = Sizes(layers=2, hidden=8, kv=8, wide=12, vocab=10)


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """The dump of an engine, two rounds."""
    rounds = {token: decoder_values(SIZES, token) for token in (0, 1)}
    return write_atb_model(tmp_path / "ait_dump", "0_8", rounds, atb_model(2, atb_layer()))


def golden(name: str, token: int) -> torch.Tensor:
    return torch.from_numpy(decoder_values(SIZES, token)[name])[None]


def save(out: Path, engine: Path) -> None:
    """The logits of two tokens and one layer, their counterparts named from the root, the token and in full."""
    for token in (0, 1):
        round_folder = f"tensors/0_8/{token}"
        dump_data(token, "logits", golden("logits", token), f"{round_folder}/4_LmHead/after/outtensor0.bin", out)
    dump_data(0, "layer_0", golden("0.out", 0), engine / "tensors/0_8/0/1_CommonLayer/after/outtensor0.bin", out)
    dump_data(0, "layer_1", golden("1.out", 0), "2_CommonLayer/after/outtensor0.bin", out)


def report(folder: Path) -> list[dict[str, str]]:
    (file,) = folder.glob("ait_cmp_report_*.csv")
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_tensors_and_metadata_lie_where_they_belong(tmp_path: Path, engine: Path) -> None:
    save(tmp_path / "out", engine)
    folder = tmp_path / "out" / f"{os.getpid()}_-1" / "golden_tensor"
    metadata = json.loads((folder / "metadata.json").read_text())
    assert list(metadata) == ["logits", "layer_0", "layer_1"]
    assert list(metadata["logits"]) == ["0", "1"], "an earlier token is not replaced"
    saved, mine = metadata["logits"]["1"]
    assert saved == str(folder / "1" / "logits_tensor.pth")
    assert mine.endswith("/1/4_LmHead/after/outtensor0.bin")
    assert torch.equal(torch.load(saved, weights_only=True), golden("logits", 1))


def test_a_view_is_saved_without_its_storage(tmp_path: Path) -> None:
    assert dump_data(0, "x", torch.zeros(1 << 20)[:1], "y", tmp_path).stat().st_size < 10_000


@pytest.mark.parametrize("named", ["out", "process", "folder", "file"])
@pytest.mark.parametrize("mine", ["", "tensors/0_8"])
def test_named_pairs_are_compared(llm: Run, tmp_path: Path, engine: Path, named: str, mine: str) -> None:
    save(tmp_path / "out", engine)
    process = tmp_path / "out" / f"{os.getpid()}_-1"
    paths = {"out": process.parent, "process": process, "folder": process / "golden_tensor"}
    path = paths.get(named, process / "golden_tensor" / "metadata.json")
    said = llm("compare", "-gp", path, "-mp", engine / mine, "-o", tmp_path / "o")
    assert said.code == 0, said.err
    rows = report(tmp_path / "o")
    assert [row["token_id"] for row in rows] == ["0", "0", "0", "1"]
    assert {row["Result"] for row in rows} == {"pass"}
    assert {row["Matched By"] for row in rows} == {"metadata.json"}


def test_dumps_that_moved_still_pair_and_a_wrong_tensor_is_found(llm: Run, tmp_path: Path, engine: Path) -> None:
    save(tmp_path / "out", engine)
    dump_data(1, "layer_1", golden("0.out", 1) + 1, "2_CommonLayer/after/outtensor0.bin", tmp_path / "out")
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("out", "ait_dump"):
        shutil.move(tmp_path / name, moved / name)
    said = llm("compare", "-gp", moved / "out", "-mp", moved / "ait_dump", "-o", tmp_path / "o", "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["first"]["op"].startswith("token 1: layer_1")
    assert [row["Result"] for row in report(tmp_path / "o")].count("pass") == 4


def test_one_pair_that_cannot_be_read_is_one_row(llm: Run, tmp_path: Path, engine: Path) -> None:
    save(tmp_path / "out", engine)
    for name, path in (("gone", "9_Nowhere/after/outtensor0.bin"), ("outside", "../../../../etc/hostname")):
        dump_data(0, name, golden("logits", 0), path, tmp_path / "out")
    assert llm("compare", "-gp", tmp_path / "out", "-mp", engine, "-o", tmp_path / "o").code == 0
    bad = [row["cmp_fail_reason"] for row in report(tmp_path / "o") if row["Result"] != "pass"]
    assert len(bad) == 2
    assert "is missing" in bad[0]
    assert "leaves its folder" in bad[1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "names no pairs"),
        ("{}", "names no pairs"),
        ('{"a": {"x": ["b", "c"]}}', "no pair of tensors"),
        ('{"a": {"0": ["b"]}}', "no pair of tensors"),
        ('{"a": 3}', "no pair of tensors"),
        ('{"a": {"0": ["b.pth", "tensors/0_8/0/nothing.bin"]}}', "none of the pairs can be read"),
    ],
)
def test_metadata_that_names_no_pairs_is_refused(llm: Run, tmp_path: Path, engine: Path, text: str, words: str) -> None:
    (tmp_path / "golden_tensor").mkdir()
    (tmp_path / "golden_tensor" / "metadata.json").write_text(text)
    said = llm("compare", "-gp", tmp_path / "golden_tensor", "-mp", engine, "-o", tmp_path / "o")
    assert said.code == 2
    assert words in said.err
    assert "metadata.json" in said.err


@pytest.mark.parametrize(
    "arguments", [(-1, "a", torch.ones(1)), ("0", "a", torch.ones(1)), (0, "a/b", torch.ones(1)), (0, "a", [1.0])]
)
def test_a_bad_argument_is_refused_with_its_name(tmp_path: Path, arguments: tuple[object, ...]) -> None:
    with pytest.raises(BadInput, match=r"token_id|data_id|golden_data"):
        dump_data(*arguments, "x", tmp_path)  # type: ignore[arg-type]
