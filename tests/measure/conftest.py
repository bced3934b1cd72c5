"""Both engines, by name, for every test that asks for one."""

from __future__ import annotations

import pytest

from twinprobe.measure.blocks import Engine
from twinprobe.measure.plain import PlainEngine


@pytest.fixture(scope="session", params=["numpy", "kernels"])
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "numpy":
        return PlainEngine()
    pytest.importorskip("numba")
    from twinprobe.measure.kernels import KernelEngine

    return KernelEngine()
