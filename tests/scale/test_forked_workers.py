"""Workers forked from a command that has no other thread: as good as new ones, and none outlives it for long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from twinprobe._scale.ledger import earlier_session

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

COMMAND = """
import os, sys, time
from pathlib import Path
from twinprobe._scale.engine import EngineOptions
from twinprobe._scale.spread import open_stream
from twinprobe._scale.ledger import new_session

place = Path(sys.argv[1])
told = "nothing"

def work(item):
    (place / f"pid{item}").write_text(str(os.getpid()))
    while item == 1 and sys.argv[2:] == ["busy"] and not (place / "enough").exists():
        time.sleep(0.01)
    return item, told, os.environ["POLARS_MAX_THREADS"]

told = "by the command"
with new_session(place, "20260102030405", "a command"):
    with open_stream(EngineOptions("process", workers=2), 2) as stream:
        for item in range(4):
            stream.add(work, item)
        print(sorted(result for _, result in stream), flush=True)
        sys.stdin.readline()
"""


@contextmanager
def command(place: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(place), *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "TWINPROBE_THREADS": "2"},
    )  # fmt: skip
    with child:
        try:
            yield child
        finally:
            child.kill()


def pids(place: Path) -> set[int]:
    return {int(path.read_text() or 0) for path in place.glob("pid*")} - {0}


def becomes(true: object, *, seconds: float = 600) -> bool:
    assert callable(true)
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return bool(true())


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_forked_worker_knows_what_the_command_knew_and_has_its_share_of_the_cores(tmp_path: Path) -> None:
    with command(tmp_path) as child:
        said, _ = child.communicate("\n", timeout=600)
    assert said == f"{[(item, 'by the command', '1') for item in range(4)]}\n"
    assert child.returncode == 0
    assert child.pid not in pids(tmp_path)
    assert len(pids(tmp_path)) == 2


def test_workers_end_when_their_command_is_killed(tmp_path: Path) -> None:
    with command(tmp_path) as child:
        assert child.stdout is not None
        assert child.stdout.readline()
        workers = pids(tmp_path)
        assert all(alive(pid) for pid in workers)
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert becomes(lambda: not any(alive(pid) for pid in workers))


def test_a_worker_that_is_still_busy_does_not_keep_its_dead_commands_notes_locked(tmp_path: Path) -> None:
    with command(tmp_path, "busy") as child:
        assert becomes(lambda: len(pids(tmp_path)) == 2 and (tmp_path / "pid1").exists())
        with earlier_session(tmp_path, "a command") as session:
            assert session is None
        child.send_signal(signal.SIGKILL)
        child.wait()
        busy = int((tmp_path / "pid1").read_text())
        with earlier_session(tmp_path, "a command") as session:
            assert session is not None
        assert alive(busy)
        (tmp_path / "enough").touch()
        assert becomes(lambda: not alive(busy))
