"""Make recorded runs of any size for the benchmarks: the shape of real dumps, made-up numbers."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np

FRAMES = [
    f"File /env/lib/python3.11/site-packages/torch/nn/modules/module.py, line {1700 + at}, in _call_impl, \n"
    f" return forward_call(*args, **kwargs)  # level {at}"
    for at in range(16)
]
SITES = 1000


def tensor_leaf(rng: random.Random, shift: float, **extra: object) -> dict[str, object]:
    """One float32 tensor with its statistics."""
    high = rng.uniform(1.0, 4.0)
    return {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": [2, 2048, rng.choice([512, 1024, 2048])],
        "Max": high * (1 + shift),
        "Min": -high,
        "Mean": rng.uniform(-0.01, 0.01) * (1 + shift),
        "Norm": high * 100 * (1 + shift),
        "requires_grad": True,
    } | extra


def write_run(folder: Path, data: dict[str, object], *, task: str = "statistics", level: str = "L1") -> Path:
    """Write dump.json (as recorders indent it), stack.json and construct.json; return the dump.json."""
    folder.mkdir(parents=True, exist_ok=True)
    header = {"task": task, "level": level, "framework": "pytorch", "dump_data_dir": None, "data": data}
    (folder / "dump.json").write_text(json.dumps(header, indent=1))
    forward = [name for name in data if name.endswith("forward")]
    # Recorders keep each call site once; a model of many equal layers has few of them.
    stacks = {
        str(site): [forward[site::SITES], [f"File /home/user/train.py, line {site}, in step, \n model(x)", *FRAMES]]
        for site in range(min(SITES, len(forward)))
    }
    (folder / "stack.json").write_text(json.dumps(stacks, indent=1))
    (folder / "construct.json").write_text("{}")
    return folder / "dump.json"


def statistics_run(folder: Path, entries: int, *, shift_from: int | None = None, digests: bool = False) -> Path:
    """A statistics run of so many calls; from call ``shift_from`` on the numbers are off by one per cent."""
    rng = random.Random(7)
    data: dict[str, object] = {}
    for at in range(entries):
        shift = 0.01 if shift_from is not None and at >= shift_from else 0.0
        extra = {"md5": f"{rng.getrandbits(32) ^ int(shift * 100):08x}"} if digests else {}
        api = ("Functional.linear", "Torch.matmul", "Tensor.add", "Functional.softmax")[at % 4]
        data[f"{api}.{at // 4}.forward"] = {
            "input_args": [tensor_leaf(rng, shift, **extra), tensor_leaf(rng, 0.0, **extra)],
            "input_kwargs": {"dim": {"type": "int", "value": -1}} if at % 32 == 0 else {},
            "output": [tensor_leaf(rng, shift, **extra)],
        }
    return write_run(folder, data)


def tensor_run(folder: Path, files: int, *, seed: int) -> Path:
    """A tensor run: so many outputs of 2 MiB each, written with torch.save as recorders do."""
    import torch

    data: dict[str, object] = {}
    store = folder / "dump_tensor_data"
    store.mkdir(parents=True, exist_ok=True)
    rng = random.Random(7)
    numbers = np.random.default_rng(seed)
    base = np.random.default_rng(0)
    for at in range(files):
        values = base.standard_normal((512, 1024), dtype=np.float32)
        values += 1e-6 * numbers.standard_normal(values.shape, dtype=np.float32)
        name = f"Functional.linear.{at}.forward.output.0.pt"
        torch.save(torch.from_numpy(values), store / name)
        leaf = tensor_leaf(rng, 0.0, shape=list(values.shape), data_name=name)
        data[f"Functional.linear.{at}.forward"] = {"input_args": [], "input_kwargs": {}, "output": [leaf]}
    return write_run(folder, data, task="tensor")
