"""Progress is shown on a terminal for work of more than a second, and never gets in the way."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

PROGRAM = """
import time
from twinprobe._cli import show
from twinprobe._cli.show import Progress
assert show._PATIENCE >= 1
show._PATIENCE = {patience}  # a busy machine may take seconds for what is short
with Progress(enabled={enabled}) as progress:
    for done in range(30):
        time.sleep({pause})
        progress.advance("tensors", done, 30)
print("the end")
"""


def on_a_terminal(enabled: bool, pause: float, patience: float = 1.0) -> str:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", PROGRAM.format(enabled=enabled, pause=pause, patience=patience)]
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
    assert on_a_terminal(enabled=True, pause=0.001, patience=600).split() == ["the", "end"]


def test_quiet_work_shows_nothing() -> None:
    assert on_a_terminal(enabled=False, pause=0.05).split() == ["the", "end"]
