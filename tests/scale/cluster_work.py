"""Work for a cluster: its nodes import it from here."""

from __future__ import annotations

import os
import time
from pathlib import Path

from twinprobe._compare.job import run_rank
from twinprobe._compare.request import Job
from twinprobe.errors import BadInput


def node_and_square(item: tuple[str, int]) -> tuple[int, str]:
    import ray

    folder, number = item
    node = ray.get_runtime_context().get_node_id()
    Path(folder, f"{number}-{node}-{os.getpid()}").touch()
    while Path(folder, f"doomed-{node}").exists():
        time.sleep(0.05)  # until the node is gone, and this process with it
    return number * number, node


def wrong(_: int) -> int:
    raise BadInput("is not wanted", where="here")


def dies_at_first(item: tuple[str, int]) -> int:
    folder, number = item
    if number == 2 and not Path(folder, "died").exists():
        Path(folder, "died").touch()
        os.kill(os.getpid(), 9)
    return number


def rank_or_death(job: Job) -> object:
    """Compare a rank as the command does, but on rank 5 the worker is lost, each time."""
    if job.label == "rank5":
        os.kill(os.getpid(), 9)
    return run_rank(job)
