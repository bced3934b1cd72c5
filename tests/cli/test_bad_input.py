"""Bad input: exit code 2, one message that names file and key, no traceback, no output file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support import forward, tensor, tensor_dump, write_dump
from twinprobe._cli import main
from warm_python import run_warm

GOOD = {"Torch.f.0.forward": forward([tensor()], [tensor()])}


def refused(target: Path, golden: Path, out: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    """Run the command; check the promises; return the message."""
    assert main(["compare", "-tp", str(target), "-gp", str(golden), "-o", str(out), *more]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert shown.err.startswith("twinprobe: error: ")
    assert "Traceback" not in shown.err
    assert not out.exists() or list(out.iterdir()) == []
    return shown.err


def good(folder: Path) -> Path:
    return write_dump(folder, GOOD)


def missing(folder: Path) -> Path:
    return folder / "dump.json"


def folder_only(folder: Path) -> Path:
    folder.mkdir()
    return folder


def other_name(folder: Path) -> Path:
    return good(folder).rename(folder / "results.json")


def not_json(folder: Path) -> Path:
    path = good(folder)
    path.write_text("hello")
    return path


def an_array(folder: Path) -> Path:
    path = good(folder)
    path.write_text("[]")
    return path


def wrong_leaf(folder: Path) -> Path:
    return write_dump(folder, {"Torch.f.0.forward": forward([tensor(shape=[-4])], [])})


def other_task(folder: Path) -> Path:
    return write_dump(folder, GOOD, task="tensor")


def with_digests(folder: Path) -> Path:
    return write_dump(folder, {"Torch.f.0.forward": forward([tensor(md5="00000000")], [])})


def without_data(folder: Path) -> Path:
    return write_dump(folder, {})


def structure(folder: Path) -> Path:
    return write_dump(folder, GOOD, task="structure")


def debug_file(folder: Path) -> Path:
    return write_dump(folder, {"x.0.debug": tensor()}, name="debug.json", level="debug")


@pytest.mark.parametrize("as_target", [True, False], ids=["target", "golden"])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (missing, "does not exist"),
        (folder_only, "is a folder, but"),
        (other_name, "is neither dump.json nor debug.json"),
        (not_json, "is not JSON"),
        (an_array, "is not a dump"),
        (wrong_leaf, "data['Torch.f.0.forward'].input_args[0]: is not a recorded value"),
        (other_task, "the tasks differ"),
        (with_digests, "holds checksums"),
        (without_data, "nothing to compare"),
        (structure, "nothing to compare"),
        (debug_file, "cannot be compared with"),
    ],
)
def test_inputs_that_cannot_be_compared(
    make: Callable[[Path], Path], message: str, as_target: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, fine = make(tmp_path / "bad"), good(tmp_path / "good")
    pair = (bad, fine) if as_target else (fine, bad)
    shown = refused(*pair, tmp_path / "out", capsys)
    assert message in shown
    assert str(tmp_path / "bad") in shown


def test_two_folders_without_a_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left, right = folder_only(tmp_path / "a"), folder_only(tmp_path / "b")
    assert "holds no recorded run" in refused(left, right, tmp_path / "out", capsys)


def test_a_tensor_run_without_its_tensors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left, right = other_task(tmp_path / "a"), other_task(tmp_path / "b")
    assert "dump_tensor_data" in refused(left, right, tmp_path / "out", capsys)


def test_an_output_folder_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").write_text("here I am")
    left, right = good(tmp_path / "a"), good(tmp_path / "b")
    assert main(["compare", "-tp", str(left), "-gp", str(right), "-o", str(tmp_path / "out")]) == 2
    assert str(tmp_path / "out") in capsys.readouterr().err
    assert (tmp_path / "out").read_text() == "here I am"


@pytest.mark.parametrize("options", [["--format", "pdf"], ["--rank", "x"], ["--step", "3-1"], ["--fail-on", "pass"]])
def test_options_with_wrong_values(options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left, right = good(tmp_path / "a"), good(tmp_path / "b")
    with pytest.raises(SystemExit) as caught:
        main(["compare", "-tp", str(left), "-gp", str(right), "-o", str(tmp_path / "out"), *options])
    assert caught.value.code == 2
    assert options[0] in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("options", [["-m", "torchair"], ["--consistent_check"], ["--config", "x.yaml"]])
def test_modes_that_are_not_taken_over(options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left, right = good(tmp_path / "a"), good(tmp_path / "b")
    assert "not part of TwinProbe" in refused(left, right, tmp_path / "out", capsys, *options)


@pytest.mark.parametrize("name", ["../secret.npy", "/etc/passwd", "link.npy"])
def test_a_tensor_file_outside_the_dump_is_not_read(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [tensor_dump(tmp_path / side, {"Torch.f.0.forward": {"output.0": np.ones(3)}}) for side in "tg"]
    np.save(tmp_path / "t" / "secret.npy", np.ones(3))
    (tmp_path / "t" / "dump_tensor_data" / "link.npy").symlink_to(tmp_path / "t" / "secret.npy")
    document = json.loads(runs[0].read_text())
    document["data"]["Torch.f.0.forward"]["output"][0]["data_name"] = name
    document["data"]["Torch.f.0.forward"]["input_args"] = [tensor()]
    runs[0].write_text(json.dumps(document))
    golden = json.loads(runs[1].read_text())
    golden["data"]["Torch.f.0.forward"]["input_args"] = [tensor()]
    runs[1].write_text(json.dumps(golden))
    assert main(["compare", "-tp", str(runs[0]), "-gp", str(runs[1]), "-o", str(tmp_path / "out"), "--json"]) == 0
    verdicts = json.loads(capsys.readouterr().out)["verdicts"]
    assert verdicts["warning"] >= 1
    assert verdicts["error"] == 0


def test_a_full_disk_leaves_nothing_under_the_final_name(tmp_path: Path) -> None:
    left, right = (
        write_dump(tmp_path / side, {f"Torch.f.{at}.forward": forward([tensor()], [tensor()]) for at in range(300)})
        for side in "tg"
    )

    program = (
        "import resource, signal, sys\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "from twinprobe._cli import main\nsys.exit(main(sys.argv[1:]))"
    )
    for kind in ("xlsx", "csv", "parquet", "json", "html"):
        out = tmp_path / f"out_{kind}"
        done = run_warm(program, "compare", "-tp", str(left), "-gp", str(right), "-o", str(out), "--format", kind)
        assert done.returncode == 2, (kind, done.stderr)
        assert "Traceback" not in done.stderr
        assert str(out) in done.stderr
        assert list(out.iterdir()) == []
