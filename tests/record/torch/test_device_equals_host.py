"""The device's kernels, run by Triton's interpreter on the host, record what the host's kernels record."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from twinprobe._measure.cuda.measure import Copies, Page, _sketch_room
from twinprobe._runs.sketches import ROW

SCRIPT = """
import json, math, sys
from pathlib import Path
import numpy as np
import torch
from twinprobe._runs.sketches import read_file
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
        masked = torch.full((40, 40), torch.finfo(torch.bfloat16).min, dtype=torch.bfloat16).triu(1) * 1
        turns = torch.polar(torch.rand(9, 7), torch.rand(9, 7)) * 1
        large = (torch.randn(260, 257).t() * 1, torch.randn(70_000).bfloat16() * 1, torch.randn(9_000).double() * 1)
        odd = torch.randn(66_000)[1:] * 1
        (y * y).sum().backward()
        optimizer.step()
    (index,) = Path(folder).glob("step0/*/dump.json")
    rows, places, _ = read_file(index.with_name("dump.sketch")) if mode == "statistics" else (None, None, None)
    return json.loads(index.read_text())["data"], rows, places

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
        host, *sketches = run(f"{sys.argv[1]}/host_{level}_{mode}", level, mode, False)
        device, *others = run(f"{sys.argv[1]}/device_{level}_{mode}", level, mode, True)
        assert list(host) == list(device)
        if mode == "statistics":
            assert np.array_equal(sketches[1], others[1]) and len(set(sketches[1].tolist())) > 10
            for one, other in zip(sketches[0], others[0], strict=True):
                reach = 1e-5 * max(float(one["norm"]), float(one["count"]) ** 0.5 if one["flags"] & 2 else 0.0)
                for field in one.dtype.names:
                    absolute = reach if one[field].dtype.kind == "f" else 0
                    near = np.allclose(one[field], other[field], rtol=1e-5, atol=absolute)
                    assert near, (field, one["flags"], one["count"], one[field], other[field])
        for name in host:
            assert same(host[name], device[name]), (level, mode, name, host[name], device[name])
print("the same")
"""

COMPILED = """
import triton.language as tl
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from twinprobe._measure.cuda import sketches

def built(function, name, constants):
    signature = {"table": "*i64", "slots": "*fp64", "kind": "*" + name, **dict.fromkeys(constants, "constexpr")}
    places = {(function.arg_names.index(key),): value for key, value in constants.items()}
    aligned = {(place,): [["tt.divisibility", 16]] for place in range(3)}
    made = compile(ASTSource(function, signature, places, aligned), target=GPUTarget("cuda", 90, 32))
    assert made.asm["cubin"]
    return made.asm["ptx"]

kinds = (("bf16", tl.float32, 8), ("fp32", tl.float32, 4), ("fp64", tl.float64, 2), ("bf16", tl.float32, 1))
for name, acc, width in kinds:
    constants = {"ACC": acc, "LIMIT": 1e37, "CHUNK": 65536, "ROWS": 1024 // width, "WIDTH": width}
    built(sketches.float_sketches, name, {**constants, "ALIGNED": width > 1})
    code = built(sketches.strided_float_sketches, name, constants)
    assert width == 1 or "ld.global.v" in code  # neighbours come in one load
for function in (sketches.integer_sketches, sketches.strided_integer_sketches):
    built(function, "i32", {"CHUNK": 65536, "BLOCK": 1024})
print("compiled")
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_device_rows_equal_host_rows(tmp_path: Path) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
        env=environment,
    )
    assert "the same" in done.stdout, done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_sketches_compile_for_a_device_that_is_not_here() -> None:
    """Triton's interpreter runs what its compiler refuses, such as a second return of another type."""
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=1800, check=False)
    assert "compiled" in done.stdout, done.stderr[-3000:]


def test_blocks_of_large_tensors_are_put_together_on_the_device_as_on_the_host() -> None:
    """The slots that kernels write for each chunk, with and without the device's own summing up."""
    random = np.random.default_rng(0)
    sizes = [5_000_000, 3_000_000, 100, 2_500_000]
    found = []
    for _ in range(2):
        page = Page("sketched floats", None, 1 << 20)
        for size in sizes:
            slots, _ = _sketch_room(size)
            page.starts.append(page.used)
            page.sizes.append(size)
            page.receivers.append(size)
            page.used += slots
        found.append(page)
    raw, reduced = found
    numbers = random.standard_normal((raw.used, 16))
    numbers[:, [4, 5, 14, 15]] = random.integers(0, 9, (raw.used, 4))
    numbers[:, [11, 13]] = np.abs(numbers[:, [11, 13]])
    reduced.buffer, raw.buffer = torch.from_numpy(numbers), torch.from_numpy(numbers)
    copies = Copies(torch, torch.device("cpu"))
    copies.add(reduced)
    assert reduced.used < raw.used  # otherwise nothing is tested
    plain = Copies(torch, torch.device("cpu"))
    plain._by_block = lambda _page, slots: slots  # type: ignore[method-assign]
    plain.add(raw)
    (_, _, one), (_, _, other) = copies.results()[0], plain.results()[0]
    for here, there in zip(one, other, strict=True):
        assert here[:2] == there[:2]
        assert here[2:6] == pytest.approx(there[2:6], rel=1e-12)
        for mine, theirs in zip(*(np.frombuffer(each.sketch, ROW) for each in (here, there)), strict=True):
            for field in ROW.names:
                assert np.allclose(mine[field], theirs[field], rtol=1e-6, atol=1e-9), field
