"""Two data loaders, batch by batch: whatever a batch is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from math import nan
from typing import Any

import numpy as np

from twinprobe.live.causes import INJECTED, First
from twinprobe.live.findings import Finding
from twinprobe.live.options import read_tolerance
from twinprobe.live.result import Result
from twinprobe.live.trees import Calls
from twinprobe.measure.tolerance import Gap, Tolerance, compare
from twinprobe.runs.host_tensor import STORAGE, HostTensor

PHASE = "data"
_END: Any = object()


def check_dataloader(
    base: Iterable[Any], raw: Iterable[Any], atol: float | None = None, rtol: float | None = None,
    compare_mode: str = "strict", *, equal_nan: bool = False, quiet: bool = False,
) -> Result:  # fmt: skip
    """Compare the batches of two loaders. True when all are equal and neither loader is longer."""
    tolerance = read_tolerance({"atol": atol, "rtol": rtol, "compare_mode": compare_mode, "equal_nan": equal_nan})
    findings: list[Finding] = []
    first: First | None = None
    batches = 0
    for number, (one, other) in enumerate(zip_longest(raw, base, fillvalue=_END)):
        if one is _END or other is _END:
            which = "base" if one is _END else "raw"
            findings.append(_finding(number, "batch", Gap(False, f"only the {which} loader has a batch {number}", nan)))
        else:
            batches += 1
            findings += _compare_batch(number, one, other, tolerance)
        differing = [finding for finding in findings if finding.step == number and finding.differs]
        if differing:
            first = First(number, PHASE, differing[0].raw, differing[0].base, INJECTED, differing[0].gap.why, differing)
            break
    if not batches and first is None:
        from twinprobe.errors import NothingToCompare

        raise NothingToCompare("both loaders are empty")
    result = Result("base loader", "raw loader", [findings], first, Calls([], {}), Calls([], {}), batches)
    if not quiet:
        result.show()
    return result


def _compare_batch(number: int, raw: Any, base: Any, tolerance: Tolerance) -> list[Finding]:
    sides = dict(_leaves(raw, "")), dict(_leaves(base, ""))
    found = []
    for name in sides[0] | sides[1]:
        if name not in sides[0] or name not in sides[1]:
            which = "raw" if name in sides[0] else "base"
            found.append(_finding(number, name, Gap(False, f"only the {which} batch has {name}", nan)))
            continue
        one, other = sides[0][name], sides[1][name]
        if isinstance(one, HostTensor) and isinstance(other, HostTensor):
            gap = compare(one, other, tolerance)
        else:
            same = type(one) is type(other) and bool(one == other)
            gap = Gap(same, "" if same else f"{one!r} against {other!r}"[:200], nan)
        found.append(_finding(number, name, gap))
    return found


def _finding(number: int, name: str, gap: Gap) -> Finding:
    return Finding(number, PHASE, f"batch {number}", f"batch {number}", "data", name or "batch", gap, True)


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every array, number and text of a batch by its place; lists and tuples count alike."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{name}.{key}".lstrip("."))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for one in dataclasses.fields(value):
            yield from _leaves(getattr(value, one.name), f"{name}.{one.name}".lstrip("."))
    elif isinstance(value, list | tuple):
        for at, item in enumerate(value):
            yield from _leaves(item, f"{name}.{at}".lstrip("."))
    else:
        yield name, _hosted(value)


def _hosted(value: Any) -> Any:
    framework = type(value).__module__.partition(".")[0]
    if framework in ("torch", "paddle", "mindspore") and hasattr(value, "shape"):
        from importlib import import_module

        return import_module(f"twinprobe.live.frameworks.{framework}").adapter.to_host(value)
    if isinstance(value, bool | int | float | np.generic | np.ndarray):
        array = np.asarray(value)
        if array.dtype.name in STORAGE:
            return HostTensor(array.dtype.name, array.shape, np.ascontiguousarray(array).reshape(-1))
    return value
