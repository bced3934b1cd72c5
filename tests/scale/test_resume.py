"""Commands that are interrupted, run side by side, or meet files that change under them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from many_ranks import begun, compare, leftovers, ranks_at, tables, tensors_at

from support import slow
from twinprobe._compare.job import run_request
from twinprobe._compare.request import Request
from twinprobe._report.tables import find_dataset
from twinprobe._runs.run import run_fingerprint
from twinprobe._scale.engine import EngineOptions

MANY = 18
LONG_RANKS = 24


def parts(out: Path) -> dict[str, int]:
    """Every part of the dataset and when it was written."""
    dataset = find_dataset(out)
    assert dataset is not None
    return {str(path.relative_to(dataset)): path.stat().st_mtime_ns for path in dataset.rglob("part.parquet")}


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    ranks_at(tmp_path / "t", MANY, off={3: 1.0})
    ranks_at(tmp_path / "g", MANY)
    return tmp_path


@pytest.fixture(scope="module")
def long_dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("long")
    ranks_at(root / "t", LONG_RANKS, off={3: 1.0})
    ranks_at(root / "g", LONG_RANKS)
    return root


def compare_begun(dumps: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    return begun(out, "compare", "-tp", dumps / "t", "-gp", dumps / "g", *more)


@pytest.mark.parametrize("engine", ["process", *slow("inline", "ray")])
def test_an_interrupted_command_keeps_what_is_done_and_goes_on_from_there(
    long_dumps: Path, tmp_path: Path, engine: str
) -> None:
    out = tmp_path / "out"
    child = compare_begun(long_dumps, out, "--engine", engine)
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does: to the command and to its workers
    _, said = child.communicate(timeout=600)
    assert child.returncode == 130, said
    assert said.rstrip().endswith("interrupted; finished results are kept")
    assert "Traceback" not in said
    assert leftovers(out) == []
    first = parts(out)
    assert 2 <= len(first) < LONG_RANKS
    assert len(list(out.glob("compare_summary_*.html"))) == 1
    assert compare(long_dumps / "t", long_dumps / "g", out, "--resume") == 0
    whole = parts(out)
    assert len(whole) == LONG_RANKS
    kept = [name for name in first if whole[name] == first[name]]
    assert len(kept) >= len(first) - 1  # one may have been written but not yet noted
    assert compare(long_dumps / "t", long_dumps / "g", tmp_path / "plain") == 0
    assert tables(out) == tables(tmp_path / "plain")


def test_a_command_that_was_killed_is_resumed_as_well(long_dumps: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    child = compare_begun(long_dumps, out, "--engine", "inline")
    child.kill()
    child.communicate()
    first = parts(out)
    assert compare(long_dumps / "t", long_dumps / "g", out, "--resume") == 0
    assert leftovers(out) == []
    assert len(parts(out)) == LONG_RANKS
    assert sum(parts(out)[name] == when for name, when in first.items()) >= len(first) - 1


def test_what_is_finished_is_known_by_its_content_and_not_by_its_date(dumps: Path) -> None:
    out = dumps / "out"
    assert compare(dumps / "t", dumps / "g", out) == 0
    first = parts(out)
    for path in (dumps / "t").rglob("dump.json"):
        os.utime(path, (1, 1))
    assert compare(dumps / "t", dumps / "g", out, "--resume") == 0
    assert parts(out) == first
    changed = dumps / "t/rank4/dump.json"
    before = changed.stat()
    changed.write_text(changed.read_text().replace('"Mean": 0.1', '"Mean": 0.2', 1))
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert changed.stat().st_size == before.st_size
    assert compare(dumps / "t", dumps / "g", out, "--resume") == 0
    again = parts(out)
    assert [name for name in first if again[name] != first[name]] == ["step=0/rank=4/part.parquet"]


PARTS = "compare_dataset_*/step=0/rank=*/part.parquet"


@pytest.mark.parametrize(("form", "files"), [("csv", "compare_result_rank*.json"), ("dataset", PARTS)])
def test_the_search_for_the_first_difference_is_resumed_too(dumps: Path, form: str, files: str) -> None:
    late, out = dumps / "t/rank9/dump.json", dumps / "out"
    content = late.read_bytes()
    late.write_text("not yet")
    command = [dumps / "t", dumps / "g", out, "--rank", "0-12", "-da", "--format", form]
    assert compare(*command) == 2  # type: ignore[arg-type]  # rank 9 is missing until it is resumed
    first = {path: path.stat().st_mtime_ns for path in out.glob(files)}
    assert len(first) == 12
    late.write_bytes(content)
    assert compare(*command, "--resume") == 0  # type: ignore[arg-type]
    assert all(path.stat().st_mtime_ns == when for path, when in first.items())
    assert len(list(out.glob(files))) == 13
    (found,) = out.glob("diff_analyze_*.json")
    assert list(json.loads(found.read_text())) == ["rank_3"]


def test_a_result_that_is_gone_is_made_again(dumps: Path) -> None:
    out = dumps / "out"
    assert compare(dumps / "t", dumps / "g", out) == 0
    dataset = find_dataset(out)
    assert dataset is not None
    (dataset / "step=0/rank=2/part.parquet").unlink()
    assert compare(dumps / "t", dumps / "g", out, "--resume") == 0
    assert len(parts(out)) == MANY


def test_other_options_are_another_command(dumps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = dumps / "out"
    assert compare(dumps / "t", dumps / "g", out) == 0
    more = ["--resume", "--rounding", "5", "--json"]
    from twinprobe._cli import main

    assert main(["compare", "-tp", str(dumps / "t"), "-gp", str(dumps / "g"), "-o", str(out), *more]) == 0
    assert "no interrupted run of this command was found" in capsys.readouterr().out
    assert len(list(out.glob("compare_dataset_*"))) == 2


def test_a_changed_tensor_file_changes_the_fingerprint(tmp_path: Path) -> None:
    tensors_at(tmp_path / "a", 40, seed=1)
    known = run_fingerprint(tmp_path / "a/dump.json")
    assert run_fingerprint(tmp_path / "a/dump.json") == known
    for name in ("Torch.f.0.forward.output.0.npy", "Torch.f.39.forward.output.0.npy"):
        path = tmp_path / "a/dump_tensor_data" / name
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert run_fingerprint(tmp_path / "a/dump.json") != known
        path.write_bytes(content)
    assert run_fingerprint(tmp_path / "a/dump.json") == known


def test_two_commands_in_one_folder_do_not_harm_each_other(long_dumps: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    child = compare_begun(long_dumps, out, "--engine", "inline", "--rank", "0-17")
    assert compare(long_dumps / "t", long_dumps / "g", out, "--rank", "6-23", "--engine", "process") == 0
    (tmp_path / "out.go").touch()
    child.communicate(timeout=600)
    assert child.returncode == 0
    datasets = sorted(out.glob("compare_dataset_*"))
    found = [sorted(int(path.parent.name[5:]) for path in one.rglob("part.parquet")) for one in datasets]
    assert sorted(found) == [list(range(18)), list(range(6, 24))]
    assert len(list(out.glob("compare_summary_*.json"))) == 2
    assert leftovers(out) == []


def test_a_running_command_is_not_resumed_by_another(long_dumps: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    child = compare_begun(long_dumps, out, "--engine", "inline")
    os.kill(child.pid, signal.SIGSTOP)
    try:
        assert compare(long_dumps / "t", long_dumps / "g", out, "--resume") == 0
    finally:
        os.kill(child.pid, signal.SIGCONT)
    (tmp_path / "out.go").touch()
    child.communicate(timeout=600)
    assert child.returncode == 0
    assert len(list(out.glob("compare_dataset_*"))) == 2


def test_a_rank_that_disappears_during_the_run_costs_only_itself(dumps: Path) -> None:
    def advance(_what: str, done: int, _total: int) -> None:
        if done == 3:
            (dumps / "g/rank17/dump.json").unlink()

    options = EngineOptions("process", workers=1)
    request = Request(dumps / "t", dumps / "g", dumps / "out", timestamp="20260102030405", engine=options)
    outcome = run_request(request, advance)
    assert len(outcome.summaries) == MANY - 1
    (failure,) = outcome.failures
    assert "rank17" in failure


def test_a_tensor_that_disappears_during_the_run_costs_only_its_row(tmp_path: Path) -> None:
    for side, seed in (("t", 1), ("g", 2)):
        for rank in (0, 1):
            tensors_at(tmp_path / side / f"rank{rank}", 6, seed=seed)
    gone = tmp_path / "t/rank1/dump_tensor_data/Torch.f.4.forward.output.0.npy"

    def advance(_what: str, done: int, _total: int) -> None:
        if done == 1:
            gone.unlink()

    options = EngineOptions("process", workers=1)
    request = Request(tmp_path / "t", tmp_path / "g", tmp_path / "out", ("csv",), "20260102030405", engine=options)
    outcome = run_request(request, advance)
    assert outcome.failures == []
    (table,) = (tmp_path / "out").glob("compare_result_rank1_*.csv")
    told = [line for line in table.read_text().splitlines() if "could not be read" in line]
    assert [line.partition(",")[0] for line in told] == ["Torch.f.4.forward.output.0"]
