"""Shared by the tests of weight copying: fill a model with random weights, copy, and compare what both compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from twinprobe._live.frameworks.adapter import adapter_of
from twinprobe._live.weights.copying import WeightReport, copy_aligned
from twinprobe._live.weights.layers import StoredTensor, held_below

_STAND_INS = ("bias_ih", "bias_hh", "gamma", "beta")


@dataclass(frozen=True)
class Case:
    """The same layer in two frameworks and the arrays that both are called with."""

    name: str
    one: Callable[[], Any]
    other: Callable[[], Any]
    inputs: tuple[tuple[int, ...], ...] = ((4, 3),)
    indices: int | None = None  # the inputs are integers below this


def scramble(model: Any, seed: int = 0) -> None:
    """Random weights, statistics too; variances stay positive."""
    adapter, random = adapter_of(model), np.random.default_rng(seed)
    done = set()
    for held in held_below(model):
        if held.key in done or adapter.dtype(held.tensor).startswith("int") or _fixed(held):
            continue
        done.add(held.key)
        low = 0.5 if "var" in held.name else -0.5
        adapter.write(held.tensor, random.uniform(low, low + 1, held.shape).astype(np.float32))


def _fixed(held: StoredTensor) -> bool:
    """Not a weight but a stand-in for one that the layer was made without."""
    return "dropout_state" in held.name or (not held.trainable and held.name.endswith(_STAND_INS))


def weights(model: Any) -> dict[str, Any]:
    """Every weight of a model as an array of its own."""
    adapter = adapter_of(model)
    return {held.name: np.array(adapter.read(held.tensor)) for held in held_below(model)}


def arrays(case: Case) -> list[Any]:
    random = np.random.default_rng(7)
    if case.indices is not None:
        return [random.integers(0, case.indices, shape) for shape in case.inputs]
    return [random.standard_normal(shape).astype(np.float32) for shape in case.inputs]


def copy_whole(target: Any, source: Any) -> WeightReport:
    """Copy as one aligned pair, the models themselves."""
    report = copy_aligned(target, source, [("", "")])
    assert report.copied
    return report
