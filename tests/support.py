"""Small dumps for tests, written as recorders write them."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.version import Version


def slow(*values: Any) -> list[Any]:
    """Parameters that only ./test --all runs: the rest of a matrix whose representatives ./test has."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def has(package: str, oldest: str) -> bool:
    """Whether this version of a package or a later one is installed."""
    try:
        return Version(version(package)) >= Version(oldest)
    except PackageNotFoundError:
        return False


def needs(package: str, oldest: str, why: str) -> pytest.MarkDecorator:
    """For a test whose program earlier versions cannot run, which ./test --oldest has."""
    return pytest.mark.skipif(not has(package, oldest), reason=f"{why} from {package} {oldest} on")


def tensor(
    *, norm: float = 2.0, high: float = 1.0, low: float = -1.0, mean: float = 0.1, **extra: Any
) -> dict[str, Any]:
    """A float32 tensor's entry."""
    leaf = {
        "type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 3],
        "Max": high, "Min": low, "Mean": mean, "Norm": norm, "requires_grad": False,
    }  # fmt: skip
    return leaf | extra


def forward(inputs: list[Any], outputs: list[Any], **kwargs: Any) -> dict[str, Any]:
    """A forward call's entry."""
    return {"input_args": inputs, "input_kwargs": kwargs, "output": outputs}


def value(content: Any, kind: str = "") -> dict[str, Any]:
    """A plain Python value's entry."""
    return {"type": kind or type(content).__name__, "value": content}


def write_dump(
    folder: Path,
    data: dict[str, Any],
    *,
    task: str = "statistics",
    level: str = "L1",
    framework: str = "pytorch",
    name: str = "dump.json",
    stacks: dict[str, Any] | None = None,
    parents: dict[str, Any] | None = None,
) -> Path:
    """Write a dump folder; return the path of its dump.json."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {"task": task, "level": level, "framework": framework, "dump_data_dir": None, "data": data}
    (folder / name).write_text(json.dumps(document, indent=1))
    if stacks is not None:
        (folder / "stack.json").write_text(json.dumps(stacks))
    if parents is not None:
        (folder / "construct.json").write_text(json.dumps(parents))
    return folder / name


def tensor_dump(folder: Path, calls: dict[str, dict[str, np.ndarray]]) -> Path:
    """Write a tensor-task dump: for each call, its named arrays ("input.0", "output.0") as .npy files."""
    store = folder / "dump_tensor_data"
    store.mkdir(parents=True, exist_ok=True)
    data: dict[str, Any] = {}
    for op, arrays in calls.items():
        entry = forward([], [])
        for place, array in arrays.items():
            file = f"{op}.{place}.npy"
            np.save(store / file, array)
            leaf = tensor(shape=list(array.shape), dtype=f"torch.{array.dtype}", data_name=file)
            entry["input_args" if place.startswith("input") else "output"].append(leaf)
        data[op] = entry
    return write_dump(folder, data, task="tensor")
