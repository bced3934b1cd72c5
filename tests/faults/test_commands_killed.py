"""A command that is killed, at any point, leaves whole results or none, and the next one clears away the rest."""

from __future__ import annotations

import logging
import os
import random
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from fault_checks import FORMATS, check_results, hidden, visible
from fault_tools import Victims

from support import forward, tensor, write_dump
from twinprobe._report.files import prepare_folder, sweep
from twinprobe._runs.whole_files import temporary_name

ROWS = 600


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    place = tmp_path_factory.mktemp("dumps")
    data = {f"Torch.mul.{i}.forward": forward([tensor(norm=i)], [tensor(norm=i)]) for i in range(ROWS // 2)}
    target, golden = (str(write_dump(place / name, data)) for name in "ab")
    return ["compare", "-tp", target, "-gp", golden, "--quiet", "--format", ",".join(FORMATS)]


def _kill_points(victims: Victims, words: list[str], path: Path, points: int, caplog: pytest.LogCaptureFixture) -> None:
    calm = victims.command(path / "calm", *words, "-o", path / "calm", kill_call=0)
    assert calm["told"] == [0], calm["said"]
    check_results(path / "calm", ROWS)
    assert len(visible(path / "calm")) == len(FORMATS) + 1  # and index.html
    chance = random.Random(points)
    killed = swept = 0
    for point in range(points):
        out = path / f"out{point}"
        share = (point + chance.random()) / points
        fault: dict[str, Any] = {"kill_call": 1 + int(share * calm["calls"])}
        if point % 3 == 2:
            fault = {"kill_after": share * calm["seconds"]}
        result = victims.command(out, *words, "-o", out, **fault)
        killed += result["status"] == -signal.SIGKILL
        if not out.is_dir():
            continue
        check_results(out, ROWS)
        left = hidden(out)
        caplog.clear()
        prepare_folder(out)
        assert ("removed a half-written file of a killed command" in caplog.text) is bool(left), left
        assert hidden(out) == []
        swept += bool(left)
        check_results(out, ROWS)
    assert killed >= points // 2
    assert swept


def test_killed_at_random_points(
    victims: Victims, words: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _kill_points(victims, words, tmp_path, 8, caplog)


@pytest.mark.slow
def test_killed_at_a_hundred_random_points(
    victims: Victims, words: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _kill_points(victims, words, tmp_path, 100, caplog)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_command_told_to_end_tidies_up(
    victims: Victims, words: list[str], tmp_path: Path, number: signal.Signals
) -> None:
    calm = victims.command(tmp_path / "calm", *words, "-o", tmp_path / "calm")
    for event in range(calm["events"] // 2, calm["events"], 3):  # the second half is the writing
        out = tmp_path / f"out{event}"
        result = victims.command(out, *words, "-o", out, kill_event=event, signal=number)
        assert result["told"] == [{signal.SIGTERM: 143, signal.SIGINT: 130}[number]], result["said"]
        assert "finished results are kept" in result["said"]
        assert "Traceback" not in result["said"]
        assert hidden(out) == []
        check_results(out, ROWS)


def test_what_is_in_use_is_not_swept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = tmp_path / temporary_name("result.xlsx")
    own.write_text("half")
    other = tmp_path / ".result.xlsx.0123abcd-1-0123abcd.part"
    other.write_text("half")
    (tmp_path / ".part").write_text("somebody's own")
    (tmp_path / ".notes.part").write_text("somebody's own")
    with caplog.at_level(logging.WARNING):
        sweep(tmp_path)
    assert sorted(hidden(tmp_path)) == sorted([own.name, other.name, ".part", ".notes.part"])
    assert caplog.text.count(".result.xlsx.0123abcd-1-0123abcd.part (kept; delete it") == 1
    assert own.name not in caplog.text


def test_a_folder_that_a_killed_command_left_is_swept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    child = os.fork()
    if child == 0:
        (tmp_path / temporary_name("result.xlsx")).mkdir()
        tempfile.mkdtemp(temporary_name("graph"), ".twinprobe.", tmp_path)
        os._exit(0)
    os.waitpid(child, 0)
    for folder in tmp_path.iterdir():
        (folder / "0.db").write_text("half")
    assert len(hidden(tmp_path)) == 2
    sweep(tmp_path)
    assert hidden(tmp_path) == []
    assert "removed" in caplog.text
