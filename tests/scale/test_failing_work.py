"""Work that fails: tried again twice, then told with its reason, while all the rest goes on."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from twinprobe._scale.engine import EngineOptions
from twinprobe._scale.spread import open_stream, spread
from twinprobe.errors import BadInput, TwinProbeError

PROCESSES = EngineOptions("process", workers=2)


def tried(folder: str, item: int) -> int:
    """Note one more try of this item, in a file that outlives its process."""
    with Path(folder, str(item)).open("a") as file:
        file.write("x")
    return Path(folder, str(item)).stat().st_size


def dies_once(job: tuple[str, int]) -> int:
    folder, item = job
    if tried(folder, item) == 1 and item % 3 == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return item * item


def dies_always(job: tuple[str, int]) -> int:
    folder, item = job
    tried(folder, item)
    if item == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def storage_fails_twice(job: tuple[str, int]) -> int:
    folder, item = job
    if tried(folder, item) < 3:
        raise OSError(5, os.strerror(5), "the disk")
    return item


def storage_fails(job: tuple[str, int]) -> int:
    tried(*job)
    try:
        raise OSError(5, os.strerror(5))
    except OSError as error:
        raise BadInput("cannot be read: Input/output error", where="the disk") from error


def is_wrong(job: tuple[str, int]) -> int:
    tried(*job)
    raise BadInput("is no dump", where="here")


def has_a_defect(job: tuple[str, int]) -> Any:
    tried(*job)
    return {}["nothing"]


def cannot_be_sent(item: int) -> Any:
    return threading.Lock() if item == 1 else item


def tries(folder: Path) -> dict[int, int]:
    return {int(path.name): path.stat().st_size for path in folder.iterdir()}


def test_a_killed_worker_costs_only_its_own_piece(tmp_path: Path) -> None:
    found = dict(spread(dies_once, [(str(tmp_path), at) for at in range(9)], options=PROCESSES))
    assert found == {at: at * at for at in range(9)}
    assert tries(tmp_path) == {at: 2 if at % 3 == 0 else 1 for at in range(9)}


def test_a_piece_that_always_kills_its_worker_is_given_up_and_named(tmp_path: Path) -> None:
    items = [(str(tmp_path), at) for at in range(5)]
    found = dict(spread(dies_always, items, options=PROCESSES, name=lambda job: f"rank{job[1]}"))
    lost = found.pop(2)
    assert found == {0: 0, 1: 1, 3: 3, 4: 4}
    assert str(lost).startswith("rank2: its worker process died (SIGKILL) (tried 3 times)")
    assert tries(tmp_path)[2] == 3


@pytest.mark.parametrize("options", [EngineOptions("inline"), PROCESSES], ids=["inline", "process"])
@pytest.mark.parametrize(
    ("work", "times", "says"),
    [
        (storage_fails, 3, "the disk: cannot be read: Input/output error (tried 3 times)"),
        (is_wrong, 1, "here: is no dump"),
        (has_a_defect, 3, "KeyError: 'nothing' (tried 3 times)"),
    ],
)
def test_what_may_pass_is_tried_again_and_what_is_wrong_is_not(
    tmp_path: Path, options: EngineOptions, work: Any, times: int, says: str
) -> None:
    ((_, error),) = spread(work, [(str(tmp_path), 0)], options=options)
    assert isinstance(error, TwinProbeError)
    assert str(error) == says
    assert tries(tmp_path) == {0: times}


def test_storage_that_answers_the_third_time_is_enough(tmp_path: Path) -> None:
    items = [(str(tmp_path), at) for at in range(3)]
    assert dict(spread(storage_fails_twice, items, options=PROCESSES)) == {0: 0, 1: 1, 2: 2}


def test_a_result_that_cannot_travel_is_an_error_and_the_worker_lives_on() -> None:
    found = dict(spread(cannot_be_sent, range(4), options=EngineOptions("process", workers=1)))
    assert "cannot be sent" in str(found.pop(1))
    assert found == {0: 0, 2: 2, 3: 3}


def half(number: int) -> int:
    return number // 2


@pytest.mark.parametrize("engine", ["inline", "process"])
def test_work_may_be_added_while_results_come(engine: str) -> None:
    found = []
    with open_stream(EngineOptions(engine, workers=2), 2) as stream:
        stream.add(half, 40)
        stream.add(half, 24)
        for _, result in stream:
            found.append(result)
            if result > 3:
                stream.add(half, result)
    assert sorted(found) == [2, 3, 5, 6, 10, 12, 20]


def test_unknown_engines_and_widths_are_refused() -> None:
    for wrong in (
        {"engine": "dask"},
        {"workers": 0},
        {"engine": "process", "address": "h:1"},
    ):
        with pytest.raises(BadInput):
            EngineOptions(**wrong)  # type: ignore[arg-type]


def test_small_work_stays_here_and_large_work_is_spread() -> None:
    auto = EngineOptions(workers=None)
    assert auto.choose(64, size=1000) == "inline"
    assert auto.choose(1, size=1 << 30) == "inline"
    assert EngineOptions(workers=2).choose(64, size=1000) == "process"
    assert EngineOptions(workers=1).choose(64, size=1 << 30) == "inline"
    assert EngineOptions(address="host:6379").choose(1, size=1) == "ray"
