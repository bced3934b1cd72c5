"""Joining a Ray cluster: what can be wrong with it is said before any work begins."""

from __future__ import annotations

import os
import platform
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any

from twinprobe import __version__
from twinprobe.errors import BadInput

PATIENCE = 15.0  # seconds until a cluster that does not answer is given up
_TO_CONNECT = 4.0  # of these, for the connection alone
_EXTRA = 'pip install "twinprobe[ray]"'


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
    ray = _import()
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
            raise BadInput("the Ray cluster has no processor to offer", where=address)
    except BaseException:
        cluster.leave()
        raise
    return cluster


def check_versions(mine: Versions, nodes: list[Versions]) -> None:
    """Raise BadInput that names the nodes whose Python (3.x) or TwinProbe differs from this process's."""
    wrong = []
    for node in nodes:
        if not node.twinprobe:
            wrong.append(f"{node.node} has no TwinProbe")
        elif node.twinprobe != mine.twinprobe:
            wrong.append(f"{node.node} has TwinProbe {node.twinprobe}")
        if node.python.split(".")[:2] != mine.python.split(".")[:2]:
            wrong.append(f"{node.node} has Python {node.python}")
    if wrong:
        shown = ", ".join(wrong[:6]) + (f" and {len(wrong) - 6} more" if len(wrong) > 6 else "")
        raise BadInput(
            f"the Ray cluster runs other versions: {shown}; here are TwinProbe {mine.twinprobe}, Python {mine.python}",
            hint="install the same versions on every node",
        )


def _import() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise BadInput("--engine ray needs Ray, which is not installed", hint=_EXTRA) from error
    return ray


def _answers(address: str) -> None:
    """Make sure that somebody listens there; Ray alone would wait for minutes."""
    place = address.partition("://")[2] if "://" in address else address
    host, _, port = place.rpartition(":")
    if not host or not port.isdecimal():
        raise BadInput("is no Ray address", where=address, hint="expected HOST:PORT, ray://HOST:PORT or auto")
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
        return BadInput("the Ray cluster runs other versions: " + " ".join(text.split()), where=address,
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
    found = []
    for reference in ready:
        try:
            found.append(Versions(asked[reference], *ray.get(reference)))
        except ray.exceptions.RayError:
            continue  # a node that has left since then gets no work
    return found
