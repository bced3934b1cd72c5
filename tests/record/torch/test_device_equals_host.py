"""The device's kernels, run by Triton's interpreter on the host, record what the host's kernels record."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, math, sys
from pathlib import Path
import torch
import twinprobe._record.torch.tensors as tensors
from twinprobe.torch import record

def run(folder, level, mode, device):
    (tensors.DEVICE_TYPES.add if device else tensors.DEVICE_TYPES.discard)("cpu")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(inplace=True), torch.nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model, folder, level=level, summary_mode=mode):
        y = model(torch.randn(5, 8)).bfloat16()
        numbers = torch.arange(7) + 1
        flags = (numbers > 3) & (numbers < 9)
        wide = y.t() * 2.0
        repeated = y[0].expand(4, 3) + 0.5
        ones = torch.ones(5, 3, dtype=torch.bfloat16)
        ones.add_(1)
        bad = torch.tensor([1.0, float("nan"), float("inf")]) * 1
        (y * y).sum().backward()
        optimizer.step()
    (index,) = Path(folder).glob("step0/*/dump.json")
    return json.loads(index.read_text())["data"]

def same(a, b):
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-7) or (math.isnan(a) and math.isnan(b))
    return a == b

for level in ("L0", "mix"):
    for mode in ("statistics", "md5", "xor"):
        host = run(f"{sys.argv[1]}/host_{level}_{mode}", level, mode, False)
        device = run(f"{sys.argv[1]}/device_{level}_{mode}", level, mode, True)
        assert list(host) == list(device)
        for name in host:
            assert same(host[name], device[name]), (level, mode, name, host[name], device[name])
print("the same")
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_device_rows_equal_host_rows(tmp_path: Path) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment,
    )
    assert "the same" in done.stdout, done.stderr[-3000:]
