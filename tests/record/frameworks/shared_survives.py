"""A killed process leaves a readable dump; a full disk or a defect in the recorder never stops the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from framework_kit import Kit

import survival
from dump_reading import Dump
from support import slow


@pytest.mark.parametrize("task", [*slow("statistics"), "tensor"])
def test_a_killed_process_leaves_a_readable_dump(kit: Kit, tmp_path: Path, task: str) -> None:
    survival.check_kill(kit.script, tmp_path / "dump", task)


def test_steps_that_were_closed_outlive_an_exit_without_cleaning(kit: Kit, tmp_path: Path) -> None:
    survival.check_closed_steps(kit.script, tmp_path / "dump", "os._exit(0)", whole=3)


@pytest.mark.slow
def test_a_killed_process_loses_no_closed_step_but_the_last(kit: Kit, tmp_path: Path) -> None:
    survival.check_closed_steps(kit.script, tmp_path / "dump", "os.kill(os.getpid(), signal.SIGKILL)", whole=2)


@pytest.mark.slow  # the engine is the one of torch, whose test ./test has
def test_a_forked_child_never_waits_for_its_parents_writer(kit: Kit, tmp_path: Path) -> None:
    survival.check_forks(kit.script, tmp_path)


@pytest.mark.slow
def test_a_forked_process_with_a_recorder_of_its_own_writes_everything(kit: Kit, tmp_path: Path) -> None:
    survival.check_forked_process(kit.script, tmp_path)


def test_the_loop_of_the_guide_leaves_no_empty_step(kit: Kit, tmp_path: Path) -> None:
    inner = kit.module("Inner", lambda _, x: x * 2)
    model = kit.module("Outer", lambda self, x: self.inner(x), inner=inner)
    with kit.api.record(model, tmp_path / "dump", level="mix") as recording:
        for _ in range(2):
            model(kit.tensor([1, 1, 1]))
            recording.step()
    assert sorted(one.name for one in (tmp_path / "dump").iterdir()) == ["step0", "step1"]


def test_a_full_disk_stops_recording_and_not_the_training(kit: Kit, tmp_path: Path) -> None:
    survival.check_full_disk(kit.script, tmp_path / "dump")


@pytest.mark.slow  # the engine is the one of torch, whose test ./test has
def test_an_unwritable_place_stops_recording_and_not_the_training(kit: Kit, tmp_path: Path) -> None:
    survival.check_unwritable(kit.script, tmp_path / "file")


@pytest.mark.slow  # the engine is the one of torch, whose test ./test has
def test_an_earlier_dump_is_not_overwritten(kit: Kit, tmp_path: Path) -> None:
    survival.check_earlier_dump(kit.script, tmp_path / "dump")


class Awkward:
    """An argument whose attributes cannot be read."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("do not look at me")


def test_an_error_in_the_recorder_is_logged_once_and_training_goes_on(kit: Kit, tmp_path: Path) -> None:
    inner = kit.module("Inner", lambda _, x, ignored: x * 2)
    model = kit.module("Outer", lambda self, x: self.inner(x, Awkward()) + self.inner(x, Awkward()), inner=inner)
    with kit.api.record(model, tmp_path / "dump", level="mix"):
        output = model(kit.tensor([1, 1, 1]))
    assert kit.array(output).tolist() == [4.0, 4.0, 4.0]
    dump = Dump(tmp_path / "dump")
    assert dump.log().count("RuntimeError: do not look at me") == 1
    assert "Tensor.__mul__.1.forward" in dump.data
