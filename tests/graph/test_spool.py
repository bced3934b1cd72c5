"""Messages between two processes: whole, in order, and the sender never waits."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os
from twinprobe._graph.golden_process import Spool
spool, done = Spool(), Spool()
if os.fork() == 0:
    spool.receives(); done.sends()
    assert done is not spool
    go = os.read(0, 1)  # nothing is read before all was sent
    while (message := spool.receive()) is not None:
        done.send(message[::-1])
    os._exit(0)
spool.sends(); done.receives()
sent = [b"", b"a", bytes(range(256)) * 20000, b"end"]
spool.send(*sent)
spool.close()
os.write(1, b"x")
back = []
while (message := done.receive()) is not None:
    back.append(message[::-1])
assert back == sent
os.wait()
alone = Spool()
alone.sends()
alone.send(b"nobody is there")
"""


def test_messages_arrive_whole_and_in_order_after_the_sender_has_gone() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], input="go", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "x"), done.stderr
