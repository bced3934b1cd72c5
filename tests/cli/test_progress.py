"""Progress is shown on a terminal for work of more than a second, and never gets in the way."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

PROGRAM = """
import time
from twinprobe._cli.common import Progress
with Progress(enabled={enabled}) as progress:
    for done in range(30):
        time.sleep({pause})
        progress.advance("tensors", done, 30)
print("the end")
"""


# Before the work: a busy machine may take seconds for what is short.
PATIENT = """
import sys
assert sys.modules[Progress.__module__]._PATIENCE >= 1
sys.modules[Progress.__module__]._PATIENCE = 600
with"""


def on_a_terminal(enabled: bool, pause: float, *, patient: bool = False) -> str:
    ours, theirs = pty.openpty()
    program = PROGRAM.format(enabled=enabled, pause=pause)
    command = [sys.executable, "-c", program.replace("with", PATIENT, 1) if patient else program]
    child = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=os.environ | {"TERM": "xterm"})
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    assert child.wait() == 0
    os.close(ours)
    return shown.decode()


def test_long_work_shows_how_far_it_is() -> None:
    shown = on_a_terminal(enabled=True, pause=0.05)
    assert "tensors" in shown
    assert "/30" in shown
    assert "/s" in shown
    assert " left" in shown
    assert shown.rstrip().endswith("the end")


def test_short_work_shows_nothing() -> None:
    assert on_a_terminal(enabled=True, pause=0.001, patient=True).split() == ["the", "end"]


def test_quiet_work_shows_nothing() -> None:
    assert on_a_terminal(enabled=False, pause=0.05).split() == ["the", "end"]
