"""``llm compare`` as a user meets it: reports, levels, formats, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from llm_command import Run, report
from llm_dumps import SMALL, atb_layer, atb_model, decoder_values, write_atb_model, write_pth, write_torch


def test_the_documents_command_works_as_printed(llm: Run, dumps: tuple[Path, Path], tmp_path: Path) -> None:
    golden, mine = dumps
    mapping = tmp_path / "xx"
    mapping.mkdir()
    said = llm(
        "compare", "-gp", f"{golden}/", "-mp", f"{mine}/", "--op-mapping-file", f"{mapping}/", "-o", tmp_path / "o"
    )
    assert said.code == 0, said.err
    assert "built-in operator table" in said.out
    assert all(row["Result"] == "pass" for row in report(tmp_path / "o"))


@pytest.mark.parametrize(("level", "rows"), [("layer", 5), ("module", 4), ("logits", 1), ("token", 1)])
def test_levels(llm: Run, dumps: tuple[Path, Path], tmp_path: Path, level: str, rows: int) -> None:
    golden, mine = dumps
    assert llm("compare", "-gp", golden, "-mp", mine, "-cl", level, "-o", tmp_path / "o").code == 0
    found = report(tmp_path / "o")
    assert len(found) == rows
    assert {row["Result"] for row in found} == {"pass"}


def test_every_format_is_written_whole(llm: Run, dumps: tuple[Path, Path], tmp_path: Path) -> None:
    import polars as pl

    golden, mine = dumps
    out = tmp_path / "o"
    assert llm("cc", "-gp", golden, "-mp", mine, "-o", out, "--format", "csv,xlsx,parquet,json,html").code == 0
    names = {path.suffix: path for path in out.iterdir() if path.name != "index.html"}
    assert set(names) == {".csv", ".xlsx", ".parquet", ".json", ".html"}
    rows = pl.read_parquet(names[".parquet"])
    assert rows["cosine_similarity"].dtype == pl.Float64
    assert len(json.loads(names[".json"].read_text())["rows"]) == rows.height == len(report(out))
    assert "outtensor0.bin" in names[".html"].read_text()


def test_json_and_fail_on_are_for_machines(llm: Run, dumps: tuple[Path, Path], tmp_path: Path) -> None:
    golden, mine = dumps
    write_pth(golden / "root.model.layers.0.mlp" / "output.pth", np.ones((1, 4, 8), np.float32))
    said = llm("compare", "-gp", golden, "-mp", mine, "-o", tmp_path / "o", "--json", "--fail-on", "warning")
    assert said.code == 1
    document = json.loads(said.out)
    assert document["verdicts"]["warning"] + document["verdicts"]["error"] >= 1
    assert document["first"]["op"].startswith("token 0: Mlp")
    assert llm("compare", "-gp", golden, "-mp", mine, "-o", tmp_path / "o2", "--quiet").out == ""


def test_two_files_are_compared_and_no_report_is_written(llm: Run, dumps: tuple[Path, Path], tmp_path: Path) -> None:
    golden, mine = dumps
    pair = golden / "root.lm_head" / "output.pth", mine / "4_LmHead" / "after" / "outtensor0.bin"
    said = llm("compare", "-gp", pair[0], "-mp", pair[1], "-o", tmp_path / "o")
    assert said.code == 0
    assert "cosine_similarity: 0.99999" in said.out
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("mode", [[], ["--stats"]], ids=["tensors", "statistics"])
def test_tokens_that_one_side_lacks_are_exit_code_2(llm: Run, tmp_path: Path, mode: list[str]) -> None:
    values = {token: decoder_values(SMALL, token) for token in range(3)}
    golden = write_torch(tmp_path / "g" / "7_npu0", values, 2)
    mine = write_torch(tmp_path / "m" / "7_npu0", {0: values[0], 1: values[1]}, 2)
    words = ["compare", "-gp", golden, "-mp", mine, *mode, "-o"]
    said = llm(*words, tmp_path / "out")
    assert said.code == 2
    assert "the result is incomplete: only the golden dump has the tokens 2" in said.err
    (table,) = (tmp_path / "out").glob("*.csv")
    assert set(pl.read_csv(table, infer_schema=False)["token_id"]) == {"0", "1"}
    assert llm(*words, tmp_path / "more", "--allow-missing").code == 0


def test_a_device_without_a_common_token_costs_only_itself(llm: Run, tmp_path: Path) -> None:
    values = {token: decoder_values(SMALL, token) for token in range(2)}
    for side, tokens in (("m", (0, 0)), ("g", (0, 1))):
        for device, token in enumerate(tokens):
            write_torch(tmp_path / side / f"7_npu{device}", {token: values[0]}, 2)
    words = ["compare", "-gp", tmp_path / "g", "-mp", tmp_path / "m", "-o"]
    said = llm(*words, tmp_path / "out")
    assert said.code == 2
    assert "no token in common" in said.err
    assert report(tmp_path / "out")
    assert llm(*words, tmp_path / "more", "--allow-missing").code == 0


def test_a_gate_does_not_pass_on_tensors_that_nobody_read(llm: Run, tmp_path: Path) -> None:
    values = {token: decoder_values(SMALL, token) for token in range(2)}
    golden = write_torch(tmp_path / "g" / "7_npu0", values, 2)
    mine = write_torch(tmp_path / "m" / "7_npu0", values, 2)
    (damaged, *_) = sorted((mine / "1").rglob("*.pth"))
    damaged.write_bytes(b"")
    words = ["compare", "-gp", golden, "-mp", mine, "-o", tmp_path / "out", "--fail-on", "error"]
    said = llm(*words)
    assert said.code == 2
    assert "1 unreadable" in said.out
    assert "1 tensor could not be read" in said.err
    assert llm(*words, "--allow-missing").code == 0
    assert json.loads(llm(*words, "--json").out)["unread"] == 1


def test_many_tokens_in_worker_processes_give_the_same_report(llm: Run, tmp_path: Path) -> None:
    values = {token: decoder_values(SMALL, token) for token in range(4)}
    golden = write_torch(tmp_path / "t" / "7_npu0", values, 2)
    mine = write_atb_model(tmp_path / "ait_dump", "0_8", values, atb_model(2, atb_layer()))
    tables = []
    for name, more in (("one", ("--workers", 1)), ("two", ("--workers", 2))):
        assert llm("compare", "-gp", golden, "-mp", mine, "-o", tmp_path / name, *more).code == 0
        tables.append(report(tmp_path / name))
    assert tables[0] == tables[1]
    assert [row["data_id"] for row in tables[0]] == [str(at) for at in range(len(tables[0]))]
