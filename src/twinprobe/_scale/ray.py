"""The engine of many machines: a Ray cluster, one that runs or one started here for the length of the command."""

from __future__ import annotations

import os
import platform
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinprobe import __version__
from twinprobe._runs.names import listed
from twinprobe._scale.engine import THREAD_VARIABLES, Failed, Outcome, carry_out
from twinprobe.errors import BadInput, TwinProbeError

PATIENCE = 15.0  # seconds until a cluster that does not answer is given up
_TO_CONNECT = 4.0  # of these, for the connection alone


@dataclass(frozen=True)
class Versions:
    """What a node runs; ``twinprobe`` is empty where it is not installed."""

    node: str
    python: str
    twinprobe: str


@dataclass
class Cluster:
    """The ray package, connected; ``own``: it was started here and ends here, ``joined``: we leave it in the end."""

    ray: Any
    own: bool
    joined: bool

    def leave(self) -> None:
        """Disconnect, and stop the cluster if it is ours."""
        if self.joined:
            self.ray.shutdown()


def connect(address: str | None, workers: int | None) -> Cluster:
    """Join the cluster at an address (or at RAY_ADDRESS), or start one on this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        hint = 'pip install "twinprobe[ray]"'
        raise BadInput("--engine ray needs Ray, which is not installed", hint=hint) from error
    if ray.is_initialized():
        return Cluster(ray, own=False, joined=False)
    address = address or os.environ.get("RAY_ADDRESS") or None
    own = address is None or address == "local"
    if address is not None and not own and address != "auto":
        _answers(address)
    _init(ray, address, workers if own else None)
    cluster = Cluster(ray, own, joined=True)
    try:
        if not own:
            check_versions(Versions("this machine", platform.python_version(), __version__), _ask_nodes(ray))
        if not ray.cluster_resources().get("CPU"):
            raise BadInput("the Ray cluster has no free processor", where=address)
    except BaseException:
        cluster.leave()
        raise
    return cluster


def check_versions(here: Versions, nodes: list[Versions]) -> None:
    """Raise BadInput that names the nodes whose Python (3.x) or TwinProbe differs from this process's."""
    wrong = []
    for node in nodes:
        if not node.twinprobe:
            wrong.append(f"{node.node} has no TwinProbe")
        elif node.twinprobe != here.twinprobe:
            wrong.append(f"{node.node} has TwinProbe {node.twinprobe}")
        if node.python.split(".")[:2] != here.python.split(".")[:2]:
            wrong.append(f"{node.node} has Python {node.python}")
    if wrong:
        raise BadInput(
            f"the Ray cluster runs different versions: {listed(wrong, 6)}; here are TwinProbe {here.twinprobe}, "
            f"Python {here.python}",
            hint="install the same versions on every node",
        )


def _answers(address: str) -> None:
    """Make sure that somebody listens there; Ray alone would wait for minutes."""
    place = address.partition("://")[2] if "://" in address else address
    host, _, port = place.rpartition(":")
    if not host or not port.isdecimal():
        raise BadInput("is not a Ray address", where=address, hint="expected HOST:PORT, ray://HOST:PORT or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_TO_CONNECT).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _silent(address, reason) from error


def _silent(address: str | None, reason: str) -> BadInput:
    hint = "is the cluster up, and its port open to this machine? 'ray status --address' tells"
    return BadInput(f"the Ray cluster does not answer: {reason}", where=address, hint=hint)


def _init(ray: Any, address: str | None, workers: int | None) -> None:
    options: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if address is None or address == "local":
        options |= {"address": "local", "include_dashboard": False, "num_cpus": workers}
    else:
        options |= {"address": address}
    errors: list[BaseException] = []

    def join() -> None:
        try:
            ray.init(**options)
        except BaseException as error:
            errors.append(error)

    if "num_cpus" in options:
        join()
    else:
        # Whatever listens at the address may be no Ray at all and never answer.
        thread = threading.Thread(target=join, daemon=True, name="twinprobe-ray")
        thread.start()
        thread.join(PATIENCE - _TO_CONNECT)
        if thread.is_alive():
            raise _silent(address, f"nothing within {PATIENCE - _TO_CONNECT:.0f} seconds")
    if errors:
        raise _explained(address, errors[0])


def _explained(address: str | None, error: BaseException) -> BaseException:
    text = str(error).strip()
    if "Version mismatch" in text:
        return BadInput("the Ray cluster runs different versions: " + " ".join(text.split()), where=address,
                        hint="install the same versions of Python and Ray on every node")  # fmt: skip
    if isinstance(error, ConnectionError | RuntimeError | ValueError | TimeoutError):
        return _silent(address, text.splitlines()[0] if text else type(error).__name__)
    return error


def _ask_nodes(ray: Any) -> list[Versions]:
    """What every node runs. The question travels as text of its own: a node without TwinProbe can answer it."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def versions() -> tuple[str, str]:
        import platform

        try:
            import twinprobe

            return platform.python_version(), str(getattr(twinprobe, "__version__", "unknown"))
        except ImportError:
            return platform.python_version(), ""

    ask = ray.remote(num_cpus=0, max_retries=0)(versions)
    asked = {}
    for node in ray.nodes():
        if node["Alive"] and node["Resources"].get("CPU"):
            place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            asked[ask.options(scheduling_strategy=place).remote()] = f"node {node['NodeManagerAddress']}"
    began = time.monotonic()
    ready, silent = ray.wait(list(asked), num_returns=len(asked), timeout=60) if asked else ([], [])
    if silent:
        waited = time.monotonic() - began
        raise BadInput(f"{asked[silent[0]]} of the Ray cluster did not answer within {waited:.0f} seconds")
    versions_of = []
    for reference in ready:
        try:
            versions_of.append(Versions(asked[reference], *ray.get(reference)))
        except ray.exceptions.RayError:
            continue  # a node that has left since then gets no work
    return versions_of


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
        ended = dict.fromkeys([*ready, *more])
        return [(self._tickets.pop(reference), self._outcome(reference)) for reference in ended]

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
            first = str(error).strip().splitlines()[:1]
            reason = f"{type(error).__name__}: {first[0][:200]}" if first else type(error).__name__
            return Failed(TwinProbeError(f"a Ray worker or node was lost ({reason})"), again=True)
        return outcome


def _on_node(function: Callable[[Any], Any], item: Any, folder: str) -> Outcome:
    """Do a piece of work on a node, where relative paths mean what they mean to the user."""
    for variable in THREAD_VARIABLES:
        os.environ.setdefault(variable, "1")  # Ray gives a piece one processor
    with suppress(OSError):
        os.chdir(folder)
    return carry_out(function, item)
