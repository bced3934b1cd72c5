"""The same dropout masks for both models, whatever generator each framework has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe.live.live_run import Values
from twinprobe.measure.decode import FLOAT64, numbers
from twinprobe.runs.leaf import TENSOR
from twinprobe.runs.names import FORWARD, parse_op
from twinprobe.runs.table import INPUT, OUTPUT


class Masks:
    """The n-th dropout of either model gets the n-th mask; the first model to ask for it settles it."""

    def __init__(self, seed: int, made: list[NDArray[np.float32]] | None = None) -> None:
        self._seed = seed
        self._made: list[NDArray[np.float32]] = made or []
        self.notes: list[str] = []

    def begin(self) -> Callable[[tuple[int, ...], float], Any]:
        """A model starts: its dropouts are counted from here."""
        at = 0

        def mask(shape: tuple[int, ...], p: float) -> NDArray[np.float32]:
            nonlocal at
            number, at = at, at + 1
            return self._mask(number, tuple(int(size) for size in shape), float(p))

        return mask

    def _mask(self, number: int, shape: tuple[int, ...], p: float) -> NDArray[np.float32]:
        if number < len(self._made) and self._made[number].shape == shape:
            return self._made[number]
        if number < len(self._made):
            self.notes.append(
                f"dropout {number + 1} has shape {list(shape)} in one model and {list(self._made[number].shape)} in "
                "the other: their masks differ"
            )
        generator = np.random.default_rng([self._seed, number])
        keep = generator.random(shape) >= p
        made: NDArray[np.float32] = keep.astype(np.float32) / np.float32(max(1 - p, 1e-12))
        if number == len(self._made):
            self._made.append(made)
        return made


def recorded_masks(run: Values, seed: int) -> Masks | None:
    """The masks of a recording's dropouts, told from what went in and what came out; None where it has none."""
    found = []
    numbers_of = _tensors_of(run)
    for op, name in enumerate(run.ops):
        whole = parse_op(name)
        kind = whole.cls if whole.is_module else whole.body.rpartition(".")[2]
        around = parse_op(run.parents.get(name) or "").cls
        if whole.direction != FORWARD or kind.lower() != "dropout" or around == "Dropout":
            continue
        taken, given = numbers_of(op, INPUT), numbers_of(op, OUTPUT)
        if taken is not None and given is not None and taken.shape == given.shape:
            found.append(_ratio(taken, given))
    return Masks(seed, found) if found else None


def _ratio(taken: NDArray[Any], given: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(all="ignore"):
        ratio = np.where(taken != 0, given / taken, np.nan)
    scale = np.nanmax(ratio) if np.isfinite(ratio).any() else 1.0
    # Where a zero went in, nothing tells whether it was kept: for the result it does not matter.
    return np.where(np.isnan(ratio), scale, np.where(ratio != 0, scale, 0)).astype(np.float32)


def _tensors_of(run: Values) -> Callable[[int, int], NDArray[Any] | None]:
    columns = [run.columns[name] for name in ("op", "role", "kind")]
    first: dict[tuple[int, int], int] = {}
    for row, (op, role, kind) in enumerate(zip(*columns, strict=True)):
        if kind == TENSOR:
            first.setdefault((op, role), row)

    def tensor(op: int, role: int) -> NDArray[Any] | None:
        host = run.tensor(first[op, role]) if (op, role) in first else None
        return None if host is None else numbers(host.dtype, host.data, FLOAT64).reshape(host.shape)

    return tensor
