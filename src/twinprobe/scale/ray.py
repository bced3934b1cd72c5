"""The engine of many machines: a Ray cluster, one that runs or one started here for the length of the command."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from twinprobe.errors import TwinProbeError
from twinprobe.scale.cluster import Cluster, connect
from twinprobe.scale.stream import THREAD_VARIABLES, Failed, Outcome, carry_out

_LOOK_EVERY = 5.0  # seconds between looks at how large the cluster is
_AHEAD = 2  # pieces per processor, so that none waits for the driver


class RayEngine:
    """Hands pieces to the cluster; Ray itself tries nothing again, so that tries are counted in one place."""

    def __init__(self, address: str | None, workers: int | None) -> None:
        self._cluster: Cluster = connect(address, workers)
        self._ray = self._cluster.ray
        self._limit = workers if address is not None or not self._cluster.own else None
        self._tickets: dict[Any, int] = {}
        self._looked = float("-inf")
        self._slots = 1
        remote = self._ray.remote(max_retries=0, num_cpus=1, scheduling_strategy="SPREAD")
        self._work = remote(_on_node)
        self._here = str(Path.cwd())

    @property
    def slots(self) -> int:
        """Twice the processors of the cluster as it is now, or as many as the user allows."""
        if time.monotonic() - self._looked > _LOOK_EVERY:
            self._looked = time.monotonic()
            self._slots = max(1, _AHEAD * int(self._ray.cluster_resources().get("CPU", 1)))
        return min(self._slots, self._limit or self._slots)

    def start(self, ticket: int, function: Callable[[Any], Any], item: Any) -> None:
        """Hand the piece to the cluster."""
        self._tickets[self._work.remote(function, item, self._here)] = ticket

    def finished(self) -> list[tuple[int, Outcome]]:
        """Wait for the first outcomes, or for a node or worker to be lost."""
        ready, _ = self._ray.wait(list(self._tickets), num_returns=1)
        more, _ = self._ray.wait(list(self._tickets), num_returns=len(self._tickets), timeout=0)
        found = dict.fromkeys([*ready, *more])
        return [(self._tickets.pop(reference), self._outcome(reference)) for reference in found]

    def close(self) -> None:
        """Cancel what is under way and leave the cluster."""
        with suppress(Exception):  # a cluster that is gone has nothing to cancel
            # Ctrl-C has reached the workers as well. Ray aborts when it cancels what is just coming to its end, so
            # what ends by itself is let go first.
            for reference in self._unfinished(1):
                self._ray.cancel(reference)
            self._unfinished(5)
        self._tickets.clear()
        self._cluster.leave()

    def _unfinished(self, seconds: float) -> list[Any]:
        """What is still under way after so long a wait."""
        if not self._tickets:
            return []
        _, left = self._ray.wait(list(self._tickets), num_returns=len(self._tickets), timeout=seconds)
        return list(left)

    def _outcome(self, reference: Any) -> Outcome:
        errors = self._ray.exceptions
        try:
            outcome: Outcome = self._ray.get(reference)
        except errors.RayTaskError as error:
            reason = str(error.cause or error).strip().splitlines()[-1]
            return Failed(TwinProbeError(f"the work cannot be loaded on a node: {reason}"), again=False)
        except errors.RayError as error:
            return Failed(TwinProbeError(f"a Ray worker or node was lost ({_reason(error)})"), again=True)
        return outcome


def _on_node(function: Callable[[Any], Any], item: Any, folder: str) -> Outcome:
    """Do a piece of work on a node, where relative paths mean what they mean to the user."""
    for variable in THREAD_VARIABLES:
        os.environ.setdefault(variable, "1")  # Ray gives a piece one processor
    with suppress(OSError):
        os.chdir(folder)
    return carry_out(function, item)


def _reason(error: Exception) -> str:
    first = str(error).strip().splitlines()[:1]
    return f"{type(error).__name__}: {first[0][:200]}" if first else type(error).__name__
