"""What waits to be measured on a device is measured before anyone writes to it: programs that write in every way."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, logging, math, sys
from pathlib import Path
import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
import twinprobe._record.torch.tensors as tensors
from twinprobe.torch import record

class WritesUnseen(torch.autograd.Function):
    '''Forward overwrites its input and backward its gradient, both behind autograd's back.'''
    @staticmethod
    def forward(ctx, x):
        out = torch.zeros_like(x)
        memory = x.detach().numpy()
        out.copy_(x)
        memory *= 3
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.clone()
        grad.detach().numpy()[:] = 7
        return out * 2

class Overwriting(nn.Module):
    def forward(self, x):
        return WritesUnseen.apply(x * 1.0)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(6, 6)
        self.act = nn.ReLU(inplace=True)
        self.over = Overwriting()
        self.two = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x):
        h = self.act(self.one(x))
        h = self.over(h)
        h = self.norm(h)
        h += 1
        h[:, 0] = 2.0
        g = self.two(h)
        g.mul_(0.5)
        spare = self.one(x).detach()
        torch.mul(spare, 3.0, out=spare)
        other = self.two(x).detach()
        other.data.add_(5.0)
        third = self.two(x).detach()
        third.numpy()[:] = -1.0
        fourth = self.two(x).detach()
        torch.nn.functional.relu(fourth, inplace=True)
        fifth = self.two(x).detach()
        torch.nn.init.constant_(fifth, 4.0)
        sixth = self.two(x).detach()
        torch.ops.aten.zero_.default(sixth)
        seventh = self.two(x).detach()
        torch._foreach_mul_([seventh], 9.0)
        eighth = self.two(x)
        eighth.data = torch.full_like(eighth, 5.0)
        return g

class Net(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.block = Block()
        self.last = nn.Linear(6, 6)

    def forward(self, x):
        x = self.last(x)  # shared, outside and inside of the checkpoint
        x = x + checkpoint(lambda t: self.last(self.block(t)), x, use_reentrant=self.reentrant)
        return self.last(x)

def run(folder, level, reentrant, device):
    (tensors.DEVICE_TYPES.add if device else tensors.DEVICE_TYPES.discard)("cpu")
    torch.manual_seed(0)
    model = Net(reentrant)
    for one in model.block.one.parameters():
        one.register_hook(lambda g: None)
        one.register_post_accumulate_grad_hook(lambda p: (p.grad.mul_(1.5), None)[1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with record(model, folder, level=level, sketch=False):  # which the interpreter takes minutes for
        for _ in range(2):
            for _ in range(2):
                model(torch.randn(5, 6)).square().sum().backward()
            for one in model.parameters():
                one.grad.data.mul_(0.5)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        with torch.no_grad():
            y = model(torch.randn(5, 6))
            y.zero_()
    (index,) = Path(folder).glob("step0/*/dump.json")
    return json.loads(index.read_text())["data"]

def same(a, b):
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=2e-5, abs_tol=1e-6) or (math.isnan(a) and math.isnan(b))
    return a == b

for level in ("L0", "mix"):
    for reentrant in (False, True):
        host = run(f"{sys.argv[1]}/host_{level}_{reentrant}", level, reentrant, False)
        device = run(f"{sys.argv[1]}/device_{level}_{reentrant}", level, reentrant, True)
        assert list(host) == list(device)
        for name in host:
            assert same(host[name], device[name]), (level, reentrant, name, host[name], device[name])
print("never late", len(host))
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_writes_of_every_kind_come_after_the_measurement(tmp_path: Path) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
        env=environment,
    )
    assert "never late" in done.stdout, done.stderr[-3000:]
    assert "before it was measured" not in done.stderr
