"""Many ranks: one dataset, one summary, and every command that works from them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from many_ranks import compare, ranks_at, tables, tensors_at

from support import forward, tensor, write_dump
from twinprobe._cli import main
from twinprobe._compare.merge.job import merge_results
from twinprobe._report.tables import find_dataset, places

MANY = 18


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("dumps")
    for step, off in ((0, {}), (3, {7: 3.0})):
        ranks_at(root / f"t/step{step}", MANY, off=off)
        ranks_at(root / f"g/step{step}", MANY)
    return root


@pytest.fixture(scope="module")
def out(dumps: Path) -> Path:
    assert compare(dumps / "t", dumps / "g", dumps / "out") == 0
    return dumps / "out"


def summary(out: Path) -> dict:
    (path,) = out.glob("compare_summary_*.json")
    return json.loads(path.read_text())


def test_more_than_sixteen_ranks_become_one_dataset(out: Path) -> None:
    dataset = find_dataset(out)
    assert dataset is not None
    assert [(place.step, place.rank) for place in places(dataset)] == [(s, r) for s in (0, 3) for r in range(MANY)]
    assert (dataset / "step=3/rank=7/part.parquet").is_file()
    assert list(out.rglob("*.xlsx")) == []


def test_the_dataset_is_read_lazily_by_step_and_rank(out: Path) -> None:
    dataset = find_dataset(out)
    assert dataset is not None
    table = pl.scan_parquet(dataset / "**/part.parquet", hive_partitioning=True)
    errors = table.filter(pl.col("Result") == "error").select("step", "rank", "NPU Name").collect()
    assert errors["step"].unique().to_list() == [3]
    assert "Torch.a.0.forward.output.0" in errors.filter(pl.col("rank") == 7)["NPU Name"].to_list()
    assert table.select(pl.len()).collect().item() == summary(out)["rows"]


def test_the_summary_maps_ranks_and_steps_and_names_the_beginning(out: Path) -> None:
    found = summary(out)
    assert found["steps"] == [0, 3]
    assert found["ranks"] == MANY
    assert found["finished"] is True
    assert found["first"][0].startswith("step 3, rank 7: the difference begins at Torch.a.0.forward")
    by_place = {(cell["step"], cell["rank"]): cell for cell in found["map"]}
    assert len(by_place) == 2 * MANY
    assert by_place[3, 7]["verdict"] == "error"
    assert by_place[3, 7]["first"]["op"] == "Torch.a.0.forward"
    assert {by_place[0, rank]["verdict"] for rank in range(MANY)} == {"pass"}


def test_the_page_shows_the_map(out: Path, chromium: object) -> None:
    (path,) = out.glob("compare_summary_*.html")
    page = chromium.new_page()  # type: ignore[attr-defined]
    try:
        troubles: list[str] = []
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.goto(path.as_uri())
        page.wait_for_selector("canvas")
        told = f"{2 * MANY} results ({MANY} ranks, 2 steps)"
        assert page.title() == f"TwinProbe: {told}: {MANY} with errors"
        assert page.locator("#rows tr").count() < MANY  # ranks with the same finding are one line
        assert "rank 7" in page.inner_text("#findings")
        assert f"error: {summary(out)['cells']['error']}" in page.inner_text("#legend")
        page.locator("canvas").focus()
        for key in ("ArrowDown", *["ArrowRight"] * 7):
            page.keyboard.press(key)
        page.wait_for_function("document.getElementById('details').textContent.includes('step 3, rank 7')")
        assert troubles == []
    finally:
        page.close()


def test_workbooks_come_for_few_ranks_or_when_asked_for(dumps: Path, tmp_path: Path) -> None:
    assert compare(dumps / "t/step3", dumps / "g/step3", tmp_path / "few", "--rank", "0-15") == 0
    assert len(list((tmp_path / "few").glob("compare_result_rank*.xlsx"))) == 16
    assert find_dataset(tmp_path / "few") is None
    assert [path.name for path in (tmp_path / "few").iterdir() if path.name.startswith(".")] == []
    assert compare(dumps / "t/step3", dumps / "g/step3", tmp_path / "many", "--format", "xlsx") == 0
    assert len(list((tmp_path / "many").glob("compare_result_rank*.xlsx"))) == MANY
    assert find_dataset(tmp_path / "many") is not None


def test_the_first_difference_is_found_from_the_dataset(dumps: Path, tmp_path: Path) -> None:
    assert compare(dumps / "t", dumps / "g", tmp_path, "-da") == 0
    assert list(tmp_path.rglob("compare_result_rank*.json")) == []
    (path,) = tmp_path.rglob("diff_analyze_*.json")
    assert path.parent.name == "step3"
    found = json.loads(path.read_text())
    assert list(found) == ["rank_7"]
    assert [entry["op_name"] for entry in found["rank_7"]] == ["Torch.a.0.forward"]
    assert find_dataset(tmp_path) is not None


def test_ranks_are_merged_from_the_dataset(dumps: Path, out: Path, tmp_path: Path) -> None:
    from openpyxl import load_workbook

    config = tmp_path / "merge.yaml"
    config.write_text("api: [Torch.a, Distributed.all_reduce]\n")
    assert compare(dumps / "t/step3", dumps / "g/step3", tmp_path / "flat", "--format", "csv") == 0
    books = []
    dataset = find_dataset(out)
    assert dataset is not None
    for folder in (dataset / "step=3", tmp_path / "flat"):
        outcome = merge_results(folder, tmp_path / "merged", config)
        assert outcome.ranks == list(range(MANY))
        book = load_workbook(outcome.path, read_only=True)
        books.append({sheet.title: [list(row) for row in sheet.iter_rows(values_only=True)] for sheet in book})
    assert books[0] == books[1]


def test_a_dataset_of_several_steps_is_merged_one_step_at_a_time(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "merge.yaml"
    config.write_text("api: [Torch.a]\n")
    assert main(["merge_result", "-i", str(out), "-o", str(tmp_path / "m"), "-config", str(config)]) == 2
    assert "name one of step=0, step=3" in capsys.readouterr().err


def test_a_rank_that_fails_is_on_the_map_with_its_reason(tmp_path: Path) -> None:
    ranks_at(tmp_path / "t", MANY)
    ranks_at(tmp_path / "g", MANY)
    (tmp_path / "t/rank5/dump.json").write_text("broken")
    assert compare(tmp_path / "t", tmp_path / "g", tmp_path / "out") == 2  # a rank that was asked for is missing
    found = summary(tmp_path / "out")
    (failed,) = [cell for cell in found["map"] if cell["verdict"] == "failed"]
    assert failed["rank"] == 5
    assert "is not JSON" in failed["reason"]
    assert found["cells"] == {"pass": MANY - 1, "warning": 0, "error": 0, "failed": 1}


def test_processes_give_the_tables_of_this_process_byte_for_byte(dumps: Path, tmp_path: Path) -> None:
    for engine in ("inline", "process"):
        more = ["--engine", engine, "--workers", "2", "--format", "csv,parquet,dataset"]
        assert compare(dumps / "t/step3", dumps / "g/step3", tmp_path / engine, *more) == 0
    found = tables(tmp_path / "inline")
    assert len(found) == 4 * MANY
    assert found == tables(tmp_path / "process")


@pytest.fixture
def tensors(tmp_path: Path) -> Path:
    for rank in (0, 1):
        for side, seed in (("t", 2), ("g", 3)):
            tensors_at(tmp_path / side / f"rank{rank}", 12, seed=seed + 10 * rank)
    return tmp_path


def sliced(root: Path, out: Path, engine: str, kilobytes: int) -> dict[str, str]:
    """The tables of a comparison whose slices hold so many KiB."""
    from twinprobe._compare.job import run_request
    from twinprobe._compare.request import Request
    from twinprobe._scale.engine import EngineOptions

    options = EngineOptions(engine, 2, slice_bytes=kilobytes << 10)
    request = Request(root / "t", root / "g", out, ("csv", "dataset"), "20260102030405", engine=options)
    outcome = run_request(request, lambda _what, _done, _total: None)
    assert outcome.failures == []
    return tables(out)


def test_a_rank_in_slices_gives_the_same_tables(tensors: Path, tmp_path: Path) -> None:
    whole = sliced(tensors, tmp_path / "whole", "inline", 1 << 20)
    assert sliced(tensors, tmp_path / "inline", "inline", 8) == whole
    assert sliced(tensors, tmp_path / "process", "process", 8) == whole
    assert list((tmp_path / "inline").rglob("slice*")) == []


def test_an_interrupted_rank_may_be_resumed_in_other_slices(tensors: Path, tmp_path: Path) -> None:
    from twinprobe._compare.job import run_request
    from twinprobe._compare.request import Request
    from twinprobe._scale.engine import EngineOptions

    def after_two(what: str, done: int, _total: int) -> None:
        if (what, done) == ("slices", 2):
            raise KeyboardInterrupt

    sides = (tensors / "t/rank0", tensors / "g/rank0")
    request = Request(*sides, tmp_path / "out", ("csv",), "20260102030405", resume=True)
    with pytest.raises(KeyboardInterrupt):
        run_request(replace(request, engine=EngineOptions("inline", slice_bytes=8 << 10)), after_two)
    assert len(list((tmp_path / "out").rglob("slice*"))) == 2
    run_request(
        replace(request, engine=EngineOptions("inline", slice_bytes=20 << 10)), lambda _what, _done, _total: None
    )
    plain = Request(*sides, tmp_path / "plain", ("csv",), "20260102030405")
    run_request(plain, lambda _what, _done, _total: None)
    assert tables(tmp_path / "out") == tables(tmp_path / "plain")


def test_one_large_rank_is_spread_over_workers_when_asked(tensors: Path, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    from twinprobe._compare.job import run_request
    from twinprobe._compare.request import Request
    from twinprobe._scale.engine import EngineOptions

    options = EngineOptions("process", 2, slice_bytes=8 << 10)
    sides = (tensors / "t/rank0", tensors / "g/rank0")
    request = Request(*sides, tmp_path / "out", ("csv",), "20260102030405", engine=options)
    run_request(request, lambda what, done, total: told.append((what, done, total)))
    plain = Request(*sides, tmp_path / "plain", ("csv",), "20260102030405")
    run_request(plain, lambda _what, _done, _total: None)
    assert tables(tmp_path / "out") == tables(tmp_path / "plain")
    assert told[-1][0] == "slices"
    assert told[-1][1] == told[-1][2] > 4


def test_a_step_with_only_saved_values_has_its_own_parts(tmp_path: Path) -> None:
    for side in "tg":
        for rank in range(2):
            write_dump(tmp_path / side / f"rank{rank}", {"x.0.debug": tensor()}, name="debug.json", level="debug")
            write_dump(tmp_path / side / f"rank{rank}", {"Torch.f.0.forward": forward([tensor()], [tensor()])})
    assert compare(tmp_path / "t", tmp_path / "g", tmp_path / "out", "--format", "dataset") == 0
    dataset = find_dataset(tmp_path / "out")
    assert dataset is not None
    names = sorted(path.name for path in (dataset / "step=0/rank=1").iterdir())
    assert names == ["debug.parquet", "meetings.parquet", "part.parquet"]


def test_few_ranks_with_pages_have_a_map_and_an_index_with_links_to_all(
    dumps: Path, tmp_path: Path, chromium: object, capsys: pytest.CaptureFixture[str]
) -> None:
    for side in ("t", "g"):
        for step in (0, 3):
            for rank in (6, 7, 8):
                shutil.copytree(dumps / side / f"step{step}/rank{rank}", tmp_path / side / f"step{step}/rank{rank}")
    out = tmp_path / "out"
    assert compare(tmp_path / "t", tmp_path / "g", out, "--format", "html,csv") == 0
    page = chromium.new_page()  # type: ignore[attr-defined]
    try:
        page.goto((out / "index.html").as_uri())
        links = page.eval_on_selector_all("a", "all => all.map(a => decodeURIComponent(a.getAttribute('href')))")
        written = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
        assert set(links) == written - {"index.html"}
        page.get_by_text("compare_summary").first.click()
        page.wait_for_selector("canvas")
        assert "6 results (3 ranks, 2 steps)" in page.title()
        places = page.locator("#rows td[data-name='steps and ranks']").all_inner_texts()
        assert sorted(places) == ["step 3: rank 6, 8", "step 3: rank 7"]
        page.locator("canvas").focus()
        for key in ("ArrowDown", "ArrowRight", "Enter"):
            page.keyboard.press(key)
        page.wait_for_url("**/step3/compare_result_rank7_*.html")
    finally:
        page.close()
    assert main(["compare", "-tp", str(tmp_path / "t"), "-gp", str(tmp_path / "g"), "-o", str(tmp_path / "one"),
                 "--rank", "7"]) == 0  # fmt: skip
    said = capsys.readouterr().out
    assert "the runs agree up to step 0; step 3 differs" in said
    assert "ranks compared" not in said
