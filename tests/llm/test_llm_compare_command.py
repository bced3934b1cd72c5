"""``llm compare`` as a user meets it: reports, levels, formats, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
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
    names = {path.suffix: path for path in out.iterdir()}
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
