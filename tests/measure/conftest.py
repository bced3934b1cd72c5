"""Both engines, by name, for every test that asks for one."""

from __future__ import annotations

import pytest

from twinprobe._measure.engine import PlainEngine
from twinprobe._measure.loops.sums import Engine


@pytest.fixture(scope="session", params=["numpy", "kernels"])
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "numpy":
        return PlainEngine()
    pytest.importorskip("numba")
    from twinprobe._measure.kernels import KernelEngine

    return KernelEngine()
