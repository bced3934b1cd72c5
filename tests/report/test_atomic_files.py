"""A report appears whole under its name or not at all."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from report_tables import names_in

from twinprobe._report.files import Staging, prepare_folder, replacing
from twinprobe.errors import BadInput


def _write_half(path: Path, error: BaseException) -> None:
    path.write_text("half of the n")
    raise error


def test_a_finished_file_replaces_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "result.csv"
    path.write_text("old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names_in(tmp_path) == ["result.csv"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_any_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "result.csv"
    path.write_text("old")
    with pytest.raises(error), replacing(path) as temporary:
        _write_half(temporary, error())
    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["result.csv"]


def test_a_result_can_be_read_by_others_as_the_umask_allows(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    with replacing(tmp_path / "result.csv") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "result.csv").stat().st_mode == plain.stat().st_mode


def test_files_staged_together_appear_together(tmp_path: Path) -> None:
    staging = Staging()
    staging.file(tmp_path / "first.csv").write_text("whole")
    with pytest.raises(BadInput, match=r"second\.csv"), staging:
        _write_half(staging.file(tmp_path / "second.csv"), OSError(28, "No space left on device"))
    assert names_in(tmp_path) == []
    with Staging() as staging:
        for name in ("first.csv", "second.csv"):
            staging.file(tmp_path / name).write_text(name)
    assert names_in(tmp_path) == ["first.csv", "second.csv"]


def test_a_full_disk_is_named_with_the_file_the_reason_and_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught, replacing(tmp_path / "r.csv"):
        Path("/dev/full").write_text("x" * 10_000)
    assert str(caught.value) == (
        f"{tmp_path / 'r.csv'}: cannot be written: No space left on device "
        "(free some space or choose another folder with -o)"
    )


def test_a_system_error_inside_a_library_error_is_recognised(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No space left on device"), replacing(tmp_path / "r.parquet"):
        raise RuntimeError("parquet: underlying IO error: No space left on device (os error 28)")


def test_other_errors_pass_through_unchanged(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "r.csv"):
        raise ZeroDivisionError


def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = pytest.raises(BadInput, match=r"file.*: cannot be written: Not a directory")
    with refused, replacing(tmp_path / "file" / "r.csv"):
        pytest.fail("there is no place to write to")
    with pytest.raises(BadInput, match="the output folder cannot be made: Not a directory"):
        prepare_folder(tmp_path / "file" / "out")


def test_an_output_folder_is_made_with_its_parents_and_left_empty(tmp_path: Path) -> None:
    out = prepare_folder(tmp_path / "a" / "b")
    assert prepare_folder(out).is_dir()
    assert names_in(out) == []


def test_a_file_as_output_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(BadInput, match="is a file, not a folder"):
        prepare_folder(tmp_path / "out")


def test_a_folder_in_the_place_of_the_result_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r.csv").mkdir()
    with pytest.raises(BadInput, match="a folder has the name of the result"), replacing(tmp_path / "r.csv") as part:
        part.write_text("new")
    assert names_in(tmp_path) == ["r.csv"]


def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    if os.geteuid() == 0:  # root may write anywhere, except where the kernel itself does not allow it
        folder = Path("/proc/self")
    else:
        folder = tmp_path / "locked"
        folder.mkdir()
        folder.chmod(0o500)
    with pytest.raises(BadInput, match="the output folder cannot be written to"):
        prepare_folder(folder)


_WRITE_ALL = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from report_tables import long_table, summary_of
from twinprobe.errors import BadInput
from twinprobe._report.reports import write_reports
table = long_table(20_000)
try:
    write_reports(table, summary_of(table), Path(sys.argv[1]), "r", [sys.argv[3]])
except BadInput as error:
    print(error)
    sys.exit(2)
"""


@pytest.mark.parametrize("name", ["xlsx", "csv", "parquet", "json", "html"])
def test_no_format_leaves_a_half_file_where_the_file_size_is_limited(tmp_path: Path, name: str) -> None:
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    command = [sys.executable, "-c", _WRITE_ALL, str(tmp_path), str(Path(__file__).parent), name]
    done = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 2, done.stderr
    assert f"r.{name}: cannot be written: File too large" in done.stdout
    assert names_in(tmp_path) == []
