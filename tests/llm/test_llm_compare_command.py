"""``llm compare`` as a user meets it: reports, levels, exit codes, bad input, and no waiting for ever."""

from __future__ import annotations

import csv
import json
import os
import shutil
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from llm_command import Said
from llm_dumps import Sizes, atb_layer, atb_model, decoder_values, write_atb_model, write_pth, write_torch

Run = Callable[..., Said]
SIZES = Sizes(layers=2, hidden=8, kv=8, wide=12, vocab=10)


@pytest.fixture
def dumps(tmp_path: Path) -> tuple[Path, Path]:
    """The token folders of a torch dump and of an ATB dump of the same numbers."""
    values = decoder_values(SIZES)
    golden = write_torch(tmp_path / "torch_dump" / "7_npu0", {0: values}, 2)
    mine = write_atb_model(tmp_path / "ait_dump", "0_8", {0: values}, atb_model(2, atb_layer()))
    return golden / "0", mine / "tensors" / "0_8" / "0"


def report(folder: Path) -> list[dict[str, str]]:
    files = list(folder.glob("ait_cmp_report_*.csv"))
    assert len(files) == 1
    with files[0].open(newline="") as file:
        return list(csv.DictReader(file))


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


# -- one bad file is one row ------------------------------------------------------------------------------------------


def spoil_truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def spoil_dtype(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"dtype=1\n", b"dtype=77\n"))


def spoil_description(path: Path) -> None:
    path.write_bytes(path.read_bytes().partition(b"$End=1\n")[0] + b"$End=1\n")


def spoil_link_out(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/hostname")


def spoil_link_circle(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def spoil_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def spoil_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def spoil_empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(
    "spoil",
    [spoil_truncated, spoil_dtype, spoil_description, spoil_link_out, spoil_link_circle, spoil_fifo, spoil_folder,
     spoil_empty],
)  # fmt: skip
def test_one_bad_file_is_one_row_with_a_reason(
    llm: Run, dumps: tuple[Path, Path], tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    golden, mine = dumps
    spoil(mine / "2_CommonLayer" / "1_Attention" / "after" / "outtensor0.bin")
    began = time.monotonic()
    said = llm("compare", "-gp", golden, "-mp", mine, "-o", tmp_path / "o")
    assert time.monotonic() - began < 30
    assert said.code == 0, said.err
    bad = [row for row in report(tmp_path / "o") if row["Result"] != "pass"]
    assert all("2_CommonLayer/1_Attention" in row["my_data_path"] or not row["my_data_path"] for row in bad)
    reasons = [row["cmp_fail_reason"] for row in bad if row["my_data_path"]]
    assert len(reasons) <= 1
    assert all(reasons)


def test_links_that_stay_inside_the_dump_are_tensors_like_any_other(
    llm: Run, dumps: tuple[Path, Path], tmp_path: Path
) -> None:
    golden, mine = dumps
    linked = mine / "2_CommonLayer" / "before" / "intensor0.bin"
    target = mine / "1_CommonLayer" / "after" / "outtensor0.bin"
    linked.unlink()
    linked.symlink_to(os.path.relpath(target, linked.parent))
    began = time.monotonic()
    assert llm("compare", "-gp", golden, "-mp", mine, "-o", tmp_path / "o", "--workers", 2).code == 0
    assert time.monotonic() - began < 60
    assert {row["Result"] for row in report(tmp_path / "o")} == {"pass"}


def test_sizes_that_differ_stay_in_the_report(llm: Run, dumps: tuple[Path, Path], tmp_path: Path) -> None:
    golden, mine = dumps
    write_pth(golden / "root.lm_head" / "output.pth", np.ones((1, 4, 7), np.float32))
    assert llm("compare", "-gp", golden, "-mp", mine, "-o", tmp_path / "o").code == 0
    rows = [
        row for row in report(tmp_path / "o") if "LmHead" in row["my_data_path"] or "lm_head" in row["golden_data_path"]
    ]
    assert rows
    assert any(row["Result"] != "pass" and row["cmp_fail_reason"] for row in rows)


# -- own metrics ------------------------------------------------------------------------------------------------------


def algorithm(tmp_path: Path, body: str) -> str:
    path = tmp_path / "own.py"
    path.write_text(f"def own(golden, my):\n{textwrap.indent(textwrap.dedent(body), '    ')}\n")
    return f"{path}:own"


def test_own_metrics_get_a_column(llm: Run, dumps: tuple[Path, Path], tmp_path: Path) -> None:
    golden, mine = dumps
    spec = algorithm(tmp_path, "return float(abs(golden - my).max()), 'seen' if golden.size == 40 else ''")
    assert llm("compare", "-gp", golden, "-mp", mine, "-o", tmp_path / "o", "-alg", spec).code == 0
    rows = report(tmp_path / "o")
    for row in rows:
        assert float(row["own"]) == pytest.approx(float(row["max_absolute_error"]), abs=1e-6)
    assert any(row["cmp_fail_reason"] == "seen" for row in rows)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return 1", "a value and a text"),
        ("return [1], 'x'", "a number or a text"),
        ("raise RuntimeError('broken')", "broken"),
        ("import os; os._exit(3)", "died"),
    ],
)
def test_own_metrics_that_cannot_work_are_refused_at_once(
    llm: Run, dumps: tuple[Path, Path], tmp_path: Path, body: str, words: str
) -> None:
    golden, mine = dumps
    spec = algorithm(tmp_path, body)
    said = llm("compare", "-gp", golden, "-mp", mine, "-o", tmp_path / "o", "-alg", spec)
    assert said.code == 2
    assert words in said.err
    assert not list(tmp_path.glob("o/*.csv"))


@pytest.mark.parametrize(
    ("body", "words", "seconds"),
    [
        ("import time\nif golden.size > 1: time.sleep(600)\nreturn 1, ''", "no answer within", 6),
        ("import os\nif golden.size > 1: os._exit(3)\nreturn 1, ''", "died", 60),
    ],
)
def test_own_metrics_that_hang_or_die_cost_their_cells_only(
    llm: Run, dumps: tuple[Path, Path], tmp_path: Path, body: str, words: str, seconds: int
) -> None:
    golden, mine = dumps
    spec = algorithm(tmp_path, body)
    began = time.monotonic()
    asked = ("-gp", golden, "-mp", mine, "-cl", "layer", "-o", tmp_path / "o", "-alg", spec)
    said = llm("compare", *asked, "--timeout", seconds)
    assert time.monotonic() - began < 300
    assert said.code == 0, said.err
    rows = report(tmp_path / "o")
    assert all(row["own"] == "" and row["cosine_similarity"] for row in rows)
    assert words in rows[0]["cmp_fail_reason"]
    assert "not asked again" in rows[-1]["cmp_fail_reason"]


# -- bad input --------------------------------------------------------------------------------------------------------


def test_bad_input_is_told_in_one_line_with_exit_code_2(llm: Run, dumps: tuple[Path, Path], tmp_path: Path) -> None:
    golden, mine = dumps
    empty, both = tmp_path / "empty", tmp_path / "both"
    empty.mkdir()
    shutil.copytree(golden.parent, both / "7_npu0")
    shutil.copytree(tmp_path / "ait_dump", both / "ait_dump")
    cases = [
        ((golden, tmp_path / "nowhere"), "does not exist"),
        ((empty, mine), "neither a torch dump nor an ATB dump"),
        ((golden / "root" / "output.pth", mine), "is a file"),
        ((golden, mine / "1_CommonLayer"), "inside a token"),
        ((both, mine), "several dumps"),
    ]
    for (gold, my), words in cases:
        said = llm("compare", "-gp", gold, "-mp", my, "-o", tmp_path / "o")
        assert said.code == 2, words
        assert words in said.err
        assert said.err.count("\n") == 1
        assert "Traceback" not in said.err


def test_dumps_of_different_models_are_told(llm: Run, dumps: tuple[Path, Path], tmp_path: Path) -> None:
    golden, _ = dumps
    sizes = Sizes(layers=3, hidden=8, kv=8, wide=12, vocab=10)
    other = write_atb_model(
        tmp_path / "b" / "ait_dump", "0_8", {0: decoder_values(sizes, 5)}, atb_model(3, atb_layer())
    )
    said = llm("compare", "-gp", golden, "-mp", other, "-o", tmp_path / "o")
    assert said.code == 0
    assert "my run has 3 layers, the golden one 2" in said.out
    tiny = Sizes(layers=1, hidden=5, kv=5, wide=3, vocab=3, rows=7)
    stranger = write_atb_model(tmp_path / "c" / "ait_dump", "0_8", {0: decoder_values(tiny)}, atb_model(1, atb_layer()))
    said = llm("compare", "-gp", golden, "-mp", stranger, "-o", tmp_path / "o2")
    assert said.code == 2
    assert "no tensor has a counterpart" in said.err


@pytest.mark.parametrize("text", ["{", "[]", '{"name": 3}', '{"name": "root", "children": 1}', "x" * 10])
def test_a_tree_that_is_no_tree_is_refused(llm: Run, dumps: tuple[Path, Path], tmp_path: Path, text: str) -> None:
    golden, mine = dumps
    (golden.parent / "model_tree.json").write_text(text)
    said = llm("compare", "-gp", golden, "-mp", mine, "-o", tmp_path / "o")
    assert said.code == 2
    assert "model_tree.json" in said.err


def test_a_topology_of_another_run_is_refused(llm: Run, dumps: tuple[Path, Path], tmp_path: Path) -> None:
    golden, mine = dumps
    topology = next(tmp_path.glob("ait_dump/model/8/*.json"))
    topology.write_text('{"nodes": [{"opName": "Other_0", "opType": "Other"}]}')
    said = llm("compare", "-gp", golden, "-mp", mine, "-o", tmp_path / "o")
    assert said.code == 2
    assert "another run" in said.err
    topology.write_text("{}")
    assert "no ATB topology" in llm("compare", "-gp", golden, "-mp", mine, "-o", tmp_path / "o").err


def test_many_tokens_in_worker_processes_give_the_same_report(llm: Run, tmp_path: Path) -> None:
    values = {token: decoder_values(SIZES, token) for token in range(4)}
    golden = write_torch(tmp_path / "t" / "7_npu0", values, 2)
    mine = write_atb_model(tmp_path / "ait_dump", "0_8", values, atb_model(2, atb_layer()))
    tables = []
    for name, more in (("one", ("--workers", 1)), ("two", ("--workers", 2))):
        assert llm("compare", "-gp", golden, "-mp", mine, "-o", tmp_path / name, *more).code == 0
        tables.append(report(tmp_path / name))
    assert tables[0] == tables[1]
    assert [row["data_id"] for row in tables[0]] == [str(at) for at in range(len(tables[0]))]
