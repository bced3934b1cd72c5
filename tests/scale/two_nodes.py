"""A real Ray cluster of two nodes with a processor each; lost nodes are noticed soon."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = str(Path(__file__).parent)


@contextmanager
def two_nodes() -> Iterator[Any]:
    """Start it, with the environment as it is now, and end it."""
    import ray
    from ray.cluster_utils import Cluster

    # The nodes find the functions of these tests as the tests themselves do.
    known = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([HERE, *([known] if known else [])])
    quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 3}
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": quick, "object_store_memory": 80 << 20}
    made = Cluster(initialize_head=True, head_node_args=head)
    made.add_node(num_cpus=1, object_store_memory=80 << 20)
    yield made
    ray.shutdown()
    made.shutdown()
    os.environ.pop("PYTHONPATH")
    if known is not None:
        os.environ["PYTHONPATH"] = known
