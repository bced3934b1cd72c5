"""Checks of two recordings (check_report and its kin), and of two data loaders."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from twinprobe._live.auto_diff import Comparison, compare_sides, read_tolerance, shown
from twinprobe._live.findings import INJECTED, Finding, FirstDifference
from twinprobe._live.frameworks.adapter import FRAMEWORKS, adapter_named, array_on_host
from twinprobe._live.pairing.layer_map import LayerMap
from twinprobe._live.result import Calls, Result
from twinprobe._live.running import BOTH, PHASES, Options
from twinprobe._measure.tolerance import Gap, Tolerance, compare
from twinprobe._runs.dtypes import STORAGE
from twinprobe._runs.names import FORWARD
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe.errors import BadInput, NothingToCompare, did_you_mean

Folder = str | Path  # of a recording
Config = Mapping[str, Any] | None  # the keys below
_KEYS = ("atol", "rtol", "compare_mode", "equal_nan")


def check_report(
    base: Folder, raw: Folder, cfg: Config = None, diff_phase: str = BOTH, *, quiet: bool = False
) -> Result:
    """Compare two recordings: all steps and all ranks, forward and backward. True when they agree."""
    if diff_phase not in PHASES:
        raise BadInput(f"diff_phase is {diff_phase!r}", hint=f"allowed: {', '.join(PHASES)}")
    return shown(_compare_recordings(base, raw, cfg, diff_phase), quiet)


def check_weights(base: Folder, raw: Folder, cfg: Config = None, *, quiet: bool = False) -> Result:
    """Compare the recorded parameters."""
    return shown(_compare_recordings(base, raw, cfg, FORWARD, ("parameter",)), quiet)


def check_grads(base: Folder, raw: Folder, cfg: Config = None, *, quiet: bool = False) -> Result:
    """Compare the recorded gradients of the parameters."""
    return shown(_compare_recordings(base, raw, cfg, BOTH, ("gradient",)), quiet)


def check_params(base: Folder, raw: Folder, cfg: Config = None, *, quiet: bool = False) -> Result:
    """Compare the recorded parameters and their gradients."""
    return shown(_compare_recordings(base, raw, cfg, BOTH, ("parameter", "gradient")), quiet)


def _compare_recordings(base: Folder, raw: Folder, cfg: Config, phase: str, places: tuple[str, ...] = ()) -> Result:
    for key in cfg or {}:
        if key not in _KEYS:
            hint = f"{did_you_mean(key, _KEYS)}known: {', '.join(_KEYS)}"
            raise BadInput(f"unknown key {key!r} in cfg", hint=hint)
    options = Options(tolerance=read_tolerance(cfg or {}), phase=phase, only=places)
    return compare_sides(Comparison(Path(base), Path(raw), LayerMap(), options))


PHASE = "data"
_END: Any = object()


def check_dataloader(
    base: Iterable[Any], raw: Iterable[Any], atol: float | None = None, rtol: float | None = None,
    compare_mode: str = "strict", *, equal_nan: bool = False, quiet: bool = False,
) -> Result:  # fmt: skip
    """Compare the batches of two loaders. True when all are equal and neither loader is longer."""
    tolerance = read_tolerance({"atol": atol, "rtol": rtol, "compare_mode": compare_mode, "equal_nan": equal_nan})
    findings: list[Finding] = []
    first: FirstDifference | None = None
    batches = 0
    for number, (target, golden) in enumerate(zip_longest(raw, base, fillvalue=_END)):
        if target is _END or golden is _END:
            which = "base" if target is _END else "raw"
            findings.append(_finding(number, "batch", Gap(False, f"only the {which} loader has a batch {number}", nan)))
        else:
            batches += 1
            findings += _compare_batch(number, target, golden, tolerance)
        differing = [finding for finding in findings if finding.step == number and finding.differs]
        if differing:
            first = FirstDifference(
                number, PHASE, differing[0].raw, differing[0].base, INJECTED, differing[0].gap.why, differing
            )
            break
    if not batches and first is None:
        raise NothingToCompare("both loaders are empty")
    no_calls = Calls([], {})
    return shown(Result("base loader", "raw loader", [findings], first, no_calls, no_calls, batches), quiet)


def _compare_batch(number: int, raw: Any, base: Any, tolerance: Tolerance) -> list[Finding]:
    sides = dict(_leaves(raw, "")), dict(_leaves(base, ""))
    findings = []
    for name in sides[0] | sides[1]:
        if name not in sides[0] or name not in sides[1]:
            which = "raw" if name in sides[0] else "base"
            findings.append(_finding(number, name, Gap(False, f"only the {which} batch has {name}", nan)))
            continue
        target, golden = sides[0][name], sides[1][name]
        if isinstance(target, HostTensor) and isinstance(golden, HostTensor):
            gap = compare(target, golden, tolerance)
        else:
            same = type(target) is type(golden) and bool(target == golden)
            gap = Gap(same, "" if same else f"{target!r} against {golden!r}"[:200], nan)
        findings.append(_finding(number, name, gap))
    return findings


def _finding(number: int, name: str, gap: Gap) -> Finding:
    return Finding(number, PHASE, f"batch {number}", f"batch {number}", "data", name or "batch", gap, True)


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every array, number and text of a batch by its place; lists and tuples count alike."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{name}.{key}".lstrip("."))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _leaves(getattr(value, field.name), f"{name}.{field.name}".lstrip("."))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{name}.{index}".lstrip("."))
    else:
        yield name, _hosted(value)


def _hosted(value: Any) -> Any:
    framework = type(value).__module__.partition(".")[0]
    if framework in FRAMEWORKS and hasattr(value, "shape"):
        return adapter_named(framework).to_host(value)
    if isinstance(value, bool | int | float | np.generic | np.ndarray):
        array = np.asarray(value)
        if array.dtype.name in STORAGE:
            return array_on_host(array)
    return value
