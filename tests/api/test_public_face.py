"""The public face: every verb from ``import twinprobe``, on the runs of the demo."""

from __future__ import annotations

import argparse
import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

import twinprobe
from twinprobe.errors import BadInput
from twinprobe.torch import PrecisionDebugger

PROJECT = Path(__file__).resolve().parents[2]
DEMO = PROJECT / "examples" / "demo"
TARGET, GOLDEN = str(DEMO / "target"), DEMO / "golden" / "step0" / "rank0" / "dump.json"


def test_the_documented_names_are_the_visible_ones() -> None:
    documented = re.findall(r"^### `(\w+)", (PROJECT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted([*documented, "__version__"]) == sorted(twinprobe.__all__) == dir(twinprobe)
    assert all(getattr(twinprobe, name) is not None for name in twinprobe.__all__)


# What a command says to a terminal, where it runs and what it writes: in Python the result does that.
OF_THE_COMMAND = {
    "sides", "target_path", "golden_path", "output_path", "format", "xlsx", "csv", "diff_analyze", "fail_on", "quiet",
    "is_print_compare_log", "is_print_progress_log", "allow_missing", "json", "mode", "consistent_check", "backend",
    "config", "engine", "workers", "ray_address", "slice_mb", "resume", "help",
    "rank_size", "tp", "pp", "vpp", "cp", "ep", "order", "each_step", "memory_mb",
}  # fmt: skip


@pytest.mark.parametrize(("verb", "declare"), [("compare", "add_arguments"), ("draw", "add_folder_arguments")])
def test_keywords_have_the_names_and_defaults_of_the_flags(verb: str, declare: str) -> None:
    parser = argparse.ArgumentParser()
    getattr(import_module(f"twinprobe._cli.{'graph' if verb == 'draw' else verb}"), declare)(parser)
    flags = {one.dest: one for one in parser._actions if one.dest not in OF_THE_COMMAND}
    given = inspect.signature(getattr(twinprobe, verb)).parameters
    keywords = {name: one for name, one in given.items() if one.kind is one.KEYWORD_ONLY and name != "output_path"}
    assert keywords.keys() == flags.keys()
    for name, one in keywords.items():
        # A flag that was not given says nothing; what that means is the keyword's default.
        assert flags[name].default in (None, one.default), name
        assert one.annotation is not one.empty
    documented = (PROJECT / "docs" / "api.md").read_text(encoding="utf-8")
    (listed,) = re.findall(rf"^### `{verb}\((.*)\)`", documented, re.MULTILINE)
    assert [word.strip().partition("=")[0] for word in listed.split(",") if word.strip() != "*"] == list(given)


def test_a_divergence_tells_what_where_and_why() -> None:
    first = twinprobe.compare(TARGET, GOLDEN).first
    assert first is not None
    assert (first.module, first.call, first.argument) == ("layers.1.post_norm", first.op, "output.0")
    assert first.kind == "factor"
    assert "tiny_transformer.py, line 98" in first.line
    assert first.values["shape"] == ("[2, 11, 32]", "[2, 11, 32]")
    assert "2 x golden" in first.evidence


def test_the_first_call_across_ranks_is_found_as_the_command_finds_it(tmp_path: Path) -> None:
    found = twinprobe.find(TARGET, DEMO / "golden", output_path=tmp_path)
    assert not found
    assert found.first is not None
    assert found.first.module == "layers.1.post_norm"
    assert "layers.1.post_norm" in found.summary
    assert len(repr(found).splitlines()) <= 10
    assert all(file.is_file() for file in found.files)


@pytest.mark.parametrize(("file_type", "suffix"), [("vis", ".vis"), ("db", ".db"), ("model_explorer", ".json")])
def test_a_comparison_is_drawn_in_every_form(tmp_path: Path, file_type: Any, suffix: str) -> None:
    files = twinprobe.draw(TARGET, DEMO / "golden", output_path=tmp_path, file_type=file_type, pair="numbers")
    assert {file.suffix for file in files} == {suffix}
    with pytest.raises(BadInput, match="file_type"):
        twinprobe.draw(TARGET, output_path=tmp_path, file_type="text")  # type: ignore[arg-type]


def test_editors_see_the_keywords_of_the_debugger() -> None:
    made = inspect.signature(PrecisionDebugger).parameters
    assert list(made) == ["config_path", "task", "dump_path", "level", "step", "rank", "more"]
    assert list(inspect.signature(PrecisionDebugger.start).parameters) == ["self", "model", "token_range"]


def test_no_room_takes_the_name_of_a_verb(tmp_path: Path) -> None:
    """Importing a subpackage would rebind a verb of its name: each is called twice, with the rooms loaded between."""
    code = (
        "import twinprobe\n"
        "for _ in range(2):\n"
        f"    run = twinprobe.open({TARGET!r})\n"
        f"    assert not twinprobe.compare(run, {str(GOLDEN)!r})\n"
        "    assert twinprobe.align(run, run).alignment.relations\n"
        f"    assert twinprobe.draw({TARGET!r}, output_path='drawn')\n"
        "import twinprobe._compare.job, twinprobe._align.auto, twinprobe._record.engine\n"
        f"assert twinprobe.compare(run, {TARGET!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_comparison_says_in_a_few_lines_where_the_runs_part() -> None:
    result = twinprobe.compare(TARGET, GOLDEN)
    assert not result
    assert not result.agrees
    assert result.first is not None
    assert result.first.op == "Module.layers.1.post_norm.Norm.forward.0"
    assert result.first.op in repr(result)
    assert len(repr(result).splitlines()) <= 10
    assert "first divergence" in result.summary


def test_the_table_holds_numbers_under_plain_names() -> None:
    table = twinprobe.compare(TARGET, GOLDEN).table
    assert table.schema["relative_error"] == pl.Float64
    assert table.schema["target_norm"] == table.schema["golden_norm"] == pl.Float64
    row = table.filter(pl.col("target") == "Module.layers.1.post_norm.Norm.forward.0.output.0").to_dicts()[0]
    assert row["verdict"] == "error"
    assert row["relative_error"] == pytest.approx(1.0, rel=1e-4)
    assert set(table["verdict"]) <= {"pass", "warning", "error"}


def test_results_are_saved_as_the_command_saves_them(tmp_path: Path) -> None:
    result = twinprobe.compare(TARGET, str(GOLDEN))
    files = result.save(tmp_path / "new" / "folder", formats=["csv", "html"])
    assert [file.suffix for file in files] == [".csv", ".html"]
    assert pl.read_csv(files[0], infer_schema=False).height == result.table.height
    assert result.save(str(tmp_path), "json")[0].is_file()


def test_equal_runs_agree_and_many_ranks_are_one_result(tmp_path: Path) -> None:
    for side in ("a", "b"):
        for rank in range(2):
            folder = tmp_path / side / "step0" / f"rank{rank}"
            folder.mkdir(parents=True)
            source = DEMO / ("golden" if (side, rank) != ("a", 1) else "target") / "step0" / "rank0"
            for file in source.glob("*.json"):
                (folder / file.name).write_bytes(file.read_bytes())
    same = twinprobe.compare(tmp_path / "a", tmp_path / "b", rank=0)
    assert same
    assert same.first is None
    assert len(repr(same).splitlines()) == 1
    both = twinprobe.compare(tmp_path / "a", tmp_path / "b")
    assert not both
    assert set(both.table["run"]) == {"step0/rank0", "step0/rank1"}
    assert [file.name.split("_")[2] for file in both.save(tmp_path / "out", "csv")] == ["rank0", "rank1"]


def test_bad_input_is_one_of_our_errors(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        twinprobe.compare(tmp_path / "nowhere", GOLDEN)
    with pytest.raises(BadInput):
        twinprobe.open(tmp_path)
    with pytest.raises(BadInput, match="not a model"):
        twinprobe.record("resnet", tmp_path)


def test_a_run_is_opened_from_any_depth_and_prints_itself_in_a_line() -> None:
    runs = [twinprobe.open(path) for path in (TARGET, DEMO / "target" / "step0", GOLDEN.parent, GOLDEN)]
    assert {len(run.ops) for run in runs} == {166}
    assert repr(runs[0]).count("\n") == 0
    assert len(repr(runs[0])) < 300


def test_a_model_is_recorded_by_the_framework_it_was_written_in(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2))
    for name in ("a", "b"):
        with twinprobe.record(model, tmp_path / name, level="L0"):
            model(torch.ones(4, 3)).sum().backward()
    assert twinprobe.compare(tmp_path / "a", tmp_path / "b")
